"""The initial history of a chat: imported messages, or the messages of a fork's parent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec.structs import asdict, replace
from pydantic import SkipValidation

from turnwise.engine.prompt.imported_message import ImportedMessage, read, refuse
from turnwise.states.arguments import Inheritance
from turnwise.states.facts import Facts
from turnwise.states.message_order import in_prompt_order
from turnwise.states.messages import (
    FilePart,
    Message,
    Part,
    ToolCallPart,
    ToolResultPart,
    files_in,
    marker_in,
    tokens_in,
)
from turnwise.states.names import Audience, CallStatus, Executor, Tail
from turnwise.states.values.checked import fit
from turnwise.states.values.hints import validator_of

FORKED_TEXT = "Not run here: the chat was forked before a result was there."


def inheritance_of(facts: Facts, history: Sequence[Message], now: datetime) -> Inheritance:
    """Return the initial history of a fork. Open calls get a synthetic result, so that every call has one."""
    messages = [*history, *_missing_results(history, now)]
    boundaries = [(message.position, marker) for message in history if (marker := marker_in(message)) is not None]
    start, carried = (boundaries[-1][0], boundaries[-1][1].carried) if boundaries else (0, ())
    seen = in_prompt_order(
        [
            message
            for message in messages
            if message.audience is not Audience.user and (message.position > start or message.position in carried)
        ],
        carried,
    )
    summaries = sum(message.audience is Audience.model and message.position > start for message in seen)
    return Inheritance(
        messages=tuple(messages),
        boundary=start,
        foldable=len(seen) - summaries,
        serial=facts.serial + len(messages) - len(history),
        tail=tail_of(seen),
        compactions=sum(marker.reason == "compaction" for _, marker in boundaries),
        tokens=sum(tokens_in(message.parts) for message in seen),
    )


def _missing_results(history: Sequence[Message], now: datetime) -> list[Message]:
    answered = {message.result.call_id for message in history if message.result is not None}
    open_calls = [
        (message, index, call)
        for message in history
        if message.audience is not Audience.model  # a copy that a strategy has changed asks for the same calls
        for index, call in enumerate(call for call in message.calls if call.executor is not Executor.provider)
        if call.call_id not in answered
    ]
    last = history[-1].position if history else 0
    return [
        Message(
            id=f"{call.call_id}-forked",
            role="tool",
            parts=(
                ToolResultPart(call_id=call.call_id, name=call.name, output=FORKED_TEXT, outcome=CallStatus.cancelled),
            ),
            turn=message.turn,
            step=message.step,
            created_at=now,
            position=last + place,
            call_index=index,
            synthetic=True,
        )
        for place, (message, index, call) in enumerate(open_calls, start=1)
    ]


def tail_of(seen: Sequence[Message]) -> Tail:
    if not seen:
        return Tail.empty
    last = seen[-1]
    if last.role == "user" and last.audience is Audience.model and last.step:
        return Tail.answered  # only a summary is left: a message without an answer would have been carried past it
    if last.role != "assistant":
        return Tail.awaits_answer
    return Tail.partial if last.partial else Tail.answered


History = Annotated[Sequence[Message | Mapping[str, Any]], SkipValidation]
"""Imported messages: `Message`s, or mappings with the fields of one, of which only a role and a content are needed:
`{"role": "user", "content": "Hi"}`."""

CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""The tolerance for times of messages after the store's time."""


class ImportedHistory(msgspec.Struct, frozen=True):
    """A checked history. Times and positions are those of the new chat."""

    entries: Sequence[tuple[str, ImportedMessage]]
    """Each with its place in the caller's list."""

    def __len__(self) -> int:
        return len(self.entries)

    async def with_parts(self, stored: Callable[[Sequence[Part]], Awaitable[tuple[Part, ...]]]) -> ImportedHistory:
        return ImportedHistory([(place, replace(one, parts=await stored(one.parts))) for place, one in self.entries])

    def inheritance(self, now: datetime) -> Inheritance:
        messages = self._messages(now)
        seen = [message for message in messages if message.audience is Audience.everyone]
        return Inheritance(
            messages=messages,
            boundary=0,
            foldable=len(seen),
            serial=len(messages),
            tail=tail_of(messages),
            compactions=0,
            tokens=sum(tokens_in(message.parts) for message in seen),
        )

    def _messages(self, now: datetime) -> tuple[Message, ...]:
        messages: list[Message] = []
        turn = step = 0
        calls: tuple[ToolCallPart, ...] = ()
        for position, (place, one) in enumerate(self.entries, start=1):
            if one.created_at is not None and one.created_at > now + CLOCKS_DIFFER:
                refuse(place, "created_at", f"must not be after the store's time, {now:%Y-%m-%d %H:%M} UTC")
            own = one.role == "user" and not one.is_made
            turn += own
            step = step + 1 if one.role == "assistant" else max(step, 1) if not own else step
            calls = one.calls if one.role == "assistant" else calls
            fields: dict[str, Any] = asdict(one) | {"created_at": one.created_at or now, "synthetic": one.is_made}
            messages.append(
                Message(
                    **fields,
                    id=f"m{position}",
                    turn=max(turn, 1),
                    step=0 if own else step,
                    position=position,
                    call_index=_index(one, calls),
                    imported=True,
                )
            )
        return tuple(messages)


def imported_history(
    history: Any, *, limit: int, refusal: Callable[[FilePart], str | None] = lambda _: None
) -> ImportedHistory:
    """Check imported messages, each of at most `limit` bytes, without markers and transient requests.

    `refusal` returns why a file is not allowed.
    """
    entries = fit("history", _ENTRIES, history)
    placed = [(f"history[{number}]", entry) for number, entry in enumerate(entries)]
    messages = [(place, one) for place, entry in placed if (one := read(place, entry, limit)) is not None]
    _check_pairs(messages)
    for place, one in messages:
        for problem in filter(None, map(refusal, files_in(one.parts))):
            refuse(place, "parts", problem)
    return ImportedHistory(messages)


def _check_pairs(entries: Sequence[tuple[str, ImportedMessage]]) -> None:
    """Check that each call has its one result, right behind the message that asks for it."""
    places: dict[str, str] = {}
    due: dict[str, ToolCallPart] = {}
    for place, one in entries:
        if one.role == "tool":
            _check_result(place, cast("ToolResultPart", one.parts[0]), due, places)
            continue
        _check_nothing_due(due, places)
        for part in one.parts:
            if isinstance(part, ToolCallPart):
                if part.call_id in places:
                    earlier = places[part.call_id]
                    refuse(
                        place, "parts", f"must not ask for call {part.call_id!r} again: {earlier} has a call of that id"
                    )
                places[part.call_id] = place
        _check_provider_results(place, one, places)
        due = {call.call_id: call for call in one.calls}
    _check_nothing_due(due, places)


def _check_result(place: str, result: ToolResultPart, due: dict[str, ToolCallPart], places: Mapping[str, str]) -> None:
    call = due.pop(result.call_id, None)
    if call is None:
        earlier = places.get(result.call_id)
        instead = (
            "which no message before it asks for" if earlier is None else f"whose one result stands behind {earlier}"
        )
        refuse(place, "parts", f"must answer a call of the message before it; it answers {result.call_id!r}, {instead}")
    if call.name != result.name:
        refuse(place, "parts", f"must name the tool of call {call.call_id!r}, {call.name!r}; it names {result.name!r}")


def _check_provider_results(place: str, message: ImportedMessage, places: Mapping[str, str]) -> None:
    """Check that results inside of a reply are those of calls that the provider ran."""
    own = {call.call_id for call in message.calls}
    for part in message.parts:
        if isinstance(part, ToolResultPart) and (part.call_id not in places or part.call_id in own):
            wanted = "a call that the provider ran; the result of any other call is a message of the role 'tool'"
            refuse(place, "parts", f"must answer {wanted}: {part.call_id!r}")


def _check_nothing_due(due: Mapping[str, ToolCallPart], places: Mapping[str, str]) -> None:
    for call_id in due:
        wanted = "needs its result right behind the message, in a message of the role 'tool'"
        refuse(places[call_id], "parts", f"call {call_id!r} {wanted}")


def _index(message: ImportedMessage, calls: Sequence[ToolCallPart]) -> int | None:
    """Return the place of a result's call among the calls of its step."""
    if message.role != "tool":
        return None
    result = cast("ToolResultPart", message.parts[0])
    return next(index for index, call in enumerate(calls) if call.call_id == result.call_id)


_ENTRIES: Final = validator_of(Sequence[object])
