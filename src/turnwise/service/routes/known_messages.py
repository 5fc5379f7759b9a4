"""Finds the messages of a request that the history has already, by the ids that the page got from the store."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import aclosing
from typing import Final

from turnwise.engine.config.results import Chat
from turnwise.engine.engine import Engine
from turnwise.service.protocols.new_input import Content, NewInput
from turnwise.states.events import HistoryResetEvent, MessageEvent
from turnwise.states.messages import FilePart, Message, TextPart

_STORED_ID: Final = re.compile(r"m\d+")
_ANSWER_ID: Final = re.compile(r".*-([st])(\d+)(?:-(m\d+))?", re.DOTALL)
"""An id that a stream has given an answer: its turn or step, and perhaps the message that had steered the turn."""


async def known_messages(engine: Engine, chat: Chat, new_input: NewInput, *, anew: bool) -> dict[str, Message]:
    """Return those messages of a request that stand in the history behind the answer that it goes on from.

    They are found by their ids in the store. A page may number its own messages in the same way: a last message with
    a different text is a different message, unless the page has edited it, or requests another answer (`anew`). The
    page of a fork may use the ids of the parent chat: the message to answer again is then found by its position.

    Returns:
        The messages as they are by now, by the ids of the request.
    """
    names = {name for name, _ in new_input.messages if _STORED_ID.fullmatch(name)}
    is_of_fork = anew and chat.parent is not None
    if not names and not is_of_fork:
        return {}
    history = await engine.messages(chat.id)
    behind = _find_answer(new_input.behind, history)
    later = [message for message in history if message.role == "user" and message.position > (behind or 0)]
    by_id = {message.id: message for message in later}
    by_name = {name: by_id[name] for name in names & by_id.keys()}
    others = names - by_id.keys() if later else ()
    edits = await _latest_edits(engine, chat.id, others, after=0) if others else {}
    by_name |= {name: by_id[edit.message.id] for name, edit in edits.items() if edit.message.id in by_id}
    if is_of_fork and behind is not None:
        for (name, content), message in zip(new_input.messages, later, strict=False):
            if says(message, content):
                by_name.setdefault(name, message)
    name, content = new_input.messages[-1]
    if name in by_name and not (anew or name == new_input.edited or says(by_name[name], content)):
        del by_name[name]
    return by_name


async def latest_edit(engine: Engine, chat_id: str, message_id: str, *, after: int) -> MessageEvent | None:
    """Return the latest edit of a message, by its first id: each edit and each repeated answer gives it another id.

    `after` is the number of an event before the first edit.
    """
    return (await _latest_edits(engine, chat_id, {message_id}, after=after)).get(message_id)


async def _latest_edits(
    engine: Engine, chat_id: str, message_ids: Collection[str], *, after: int
) -> dict[str, MessageEvent]:
    latest: dict[str, MessageEvent] = {}
    first_ids = {message_id: [message_id] for message_id in message_ids}
    cut: list[str] = []
    async with aclosing(engine.events(chat_id, after=after, follow=False)) as events:
        async for event in events:
            if isinstance(event, HistoryResetEvent):
                cut = first_ids.pop(event.first_removed, [])
            elif cut and isinstance(event, MessageEvent):
                latest.update(dict.fromkeys(cut, event))
                first_ids[event.message.id] = [*first_ids.get(event.message.id, ()), *cut]
                cut = []
    return latest


def says(message: Message, content: Content) -> bool:
    """Whether a stored message has a page's text, and as many files: the store gives them another form."""
    stored_files = [part for part in message.parts if isinstance(part, FilePart)]
    files = [part for part in content if isinstance(part, FilePart)]
    text = "".join(part.text for part in content if isinstance(part, TextPart))
    return message.text == text and len(stored_files) == len(files)


def _find_answer(answer_id: str | None, history: Sequence[Message]) -> int | None:
    """Return where an answer begins, by its id in a page; 0 if there is no answer, `None` if it is unknown."""
    if answer_id is None:
        return 0
    by_id = {message.id: message for message in history}
    if (named := _ANSWER_ID.fullmatch(answer_id)) is None:
        return by_id[answer_id].position if answer_id in by_id else None
    number, steered_by = int(named[2]), by_id.get(named[3])
    if named[1] == "s":
        return next((message.position for message in history if message.step == number), None)
    begins = 0 if steered_by is None else steered_by.position
    places = (one.position for one in history if one.turn == number and one.role != "user" and one.position > begins)
    return next(places, max((one.position for one in history if one.turn <= number), default=0))
