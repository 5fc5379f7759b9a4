"""Threads: chats under the names that front ends give them, and what a front end's request does to one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final, TypeGuard

from msgspec.structs import replace

from turnwise.engine.blobs.streams import check_message
from turnwise.engine.chat_ids import chat_id_for
from turnwise.engine.config.results import Chat, SendReceipt
from turnwise.engine.engine import Engine
from turnwise.service.caller import Caller
from turnwise.service.problems import rest_of_request
from turnwise.service.protocols.new_input import Content, NewInput
from turnwise.service.routes.known_messages import known_messages, latest_edit, says
from turnwise.service.routes.subagent_calls import answer_subagents
from turnwise.service.routes.turn_stream import TurnRange
from turnwise.states.calls import ClientTool
from turnwise.states.errors import ChatNotFound, ConflictingReplay, InvalidArgument, InvalidContent, MessageNotFound
from turnwise.states.events import ActionRequiredEvent, Event, MessageEvent, PartEvent
from turnwise.states.messages import Message
from turnwise.states.names import ChatState
from turnwise.states.values.checked import fit
from turnwise.states.values.hints import validator_of
from turnwise.states.values.limits import Name

_LOOK_BACK: Final = 256
_CLIENT_ID: Final = validator_of(Name)
_STOPPED: Final = frozenset({ChatState.interrupted, ChatState.error})
"""States in which no message of the queue is answered by itself."""


async def find_chat(caller: Caller, name: str) -> Chat | None:
    """Return the caller's chat of that name: of its own choice, or a chat's id. `None` if there is none."""
    for chat_id in (chat_id_for(caller.principal.name, name), name):
        try:
            return await caller.chat(chat_id)
        except ChatNotFound:
            continue
    return None


async def check_messages(caller: Caller, chat: Chat | None, new_input: NewInput) -> None:
    """Check the messages of a request before any of it is applied."""
    if new_input.messages:
        await caller.check("send_message", chat_id=None if chat is None else chat.id)
    for client_id, content in new_input.messages:
        try:
            fit("client_id", _CLIENT_ID, client_id)
            check_message(caller.engine.settings, content)
        except InvalidArgument as error:
            problem = str(error).removesuffix("; nothing was written")
            raise InvalidContent(f"message {client_id!r:.100}: {problem}", argument=error.argument) from None


async def create(
    caller: Caller, name: str, agent: str | None, tools: Sequence[ClientTool], new_input: NewInput
) -> tuple[Chat, bool]:
    """Create a chat of the caller under a name of its own choice, with the first message of a request.

    Returns:
        The chat, and `False` if a concurrent request created it with another message: then send this one.
    """
    await caller.check("create_chat", *(["create_chat.agent"] if agent is not None else []))
    message_client_id, message = new_input.messages[0] if new_input.messages else (None, None)
    owner = caller.principal.name
    try:
        chat = await caller.chats.create_chat(
            owner=owner,
            client_id=name,
            agent=agent,
            client_tools=tools,
            metadata={"thread": name},
            message=message,
            message_client_id=message_client_id,
        )
    except ConflictingReplay:
        return await caller.chat(chat_id_for(owner, name)), False
    return chat, True


def clients_calls(chat: Chat) -> set[str]:
    """Return the ids of a chat's open calls that the client may answer; those of its subagents are none of them."""
    return {call.call_id for call in chat.open_calls if call.is_client}


async def act(caller: Caller, chat: Chat, new_input: NewInput, *, is_new: bool) -> TurnRange:
    """Send a request's answers and messages; return the turns that answer it.

    Answers beside a message count only if they are complete and the caller may give them; else the message is sent
    instead of them. A message that comes while only subagents are awaited waits as they do.
    """
    asked = clients_calls(chat)
    answers = [answer for call_id, answer in new_input.answers.items() if call_id in asked]
    if new_input.messages and (len(answers) < len(asked) or not caller.may_give(answers, chat)):
        answers = []
    after = chat.last_seq
    if answers:
        await caller.check("submit_tool_results", chat_id=chat.id)
        await caller.submit(chat, answers)
    with rest_of_request(has_begun=bool(answers)):
        given = await answer_subagents(caller, chat, new_input.answers, only_whole=bool(new_input.messages))
    has_answered = given or bool(answers)
    if not has_answered and not new_input.messages:  # the answers were taken before, or came too late
        return await _after_answers(caller.engine, chat, new_input)
    with rest_of_request(has_begun=has_answered):
        sent = await _send_messages(caller, chat, new_input, instead=not answers, anew=False, is_new=is_new)
    new = [receipt for receipt in sent if not receipt.replayed] or sent[-1:]
    goes_on = (has_answered and new_input.when_busy != "steer") or not new
    return TurnRange(after, _ids(new)) if goes_on else to_turn_range(new)


async def regenerate(caller: Caller, chat: Chat, new_input: NewInput, *, is_new: bool) -> TurnRange:
    """Let the last message be answered anew; or first of all, if it is new or waits in the queue."""
    sent = await _send_messages(caller, chat, new_input, instead=True, anew=True, is_new=is_new)
    if new := [receipt for receipt in sent if not receipt.replayed]:
        return to_turn_range(new)
    queued_ids = {queued.id for queued in await caller.engine.queued(chat.id)}
    if waiting := [receipt for receipt in sent if receipt.message_id in queued_ids]:
        if chat.state in _STOPPED or _asks_client(chat):  # or else its turn comes by itself
            await caller.check("promote_queued", chat_id=chat.id)
            await caller.chats.promote_queued(chat.id, waiting[0].message_id)
        return to_turn_range(waiting)
    edited = await _edit_again(caller, sent[-1], new_input.messages[-1][1])
    return TurnRange(await turn_start(caller.engine, edited))


async def _edit_again(caller: Caller, receipt: SendReceipt, content: Content) -> Chat:
    """Replace a message by its page's text, under the id that it has by now."""
    await caller.check("edit_message", chat_id=receipt.chat.id)
    tried: str | None = None
    while True:
        latest = await latest_edit(caller.engine, receipt.chat.id, receipt.message_id, after=receipt.seq)
        message_id = receipt.message_id
        if latest is not None and says(latest.message, content):  # or else it is another question by now
            message_id = latest.message.id
        try:
            return await caller.chats.edit_message(receipt.chat.id, message_id, content)
        except MessageNotFound:
            if message_id == tried:
                raise
            tried = message_id  # another page has given it the next id since it was looked for


async def _send_messages(
    caller: Caller, chat: Chat, new_input: NewInput, *, instead: bool, anew: bool, is_new: bool
) -> list[SendReceipt]:
    """Send the messages of a request, each once. With `instead`, the first new one interrupts open calls of the client.

    A new chat has the first one already.
    """
    moves_on = instead and _asks_client(chat)
    may_know = new_input.messages and not is_new
    by_name = await known_messages(caller.engine, chat, new_input, anew=anew) if may_know else {}
    sent: list[SendReceipt] = []
    for client_id, content in new_input.messages:
        try:
            with rest_of_request(has_begun=any(not receipt.replayed for receipt in sent)):
                if client_id in by_name:
                    receipt = await _known_receipt(caller.engine, chat, client_id, by_name[client_id], content)
                else:
                    receipt = await caller.chats.send_message(
                        chat.id,
                        content,
                        when_busy="interrupt" if moves_on and new_input.when_busy == "queue" else new_input.when_busy,
                        client_id=client_id,
                    )
        except ConflictingReplay as conflict:
            if client_id != new_input.messages[-1][0]:
                continue  # refused when it was the last: what follows it is not refused, too
            receipt = await _edit_receipt(caller.engine, chat, conflict, content)
        moves_on = moves_on and receipt.replayed
        sent.append(replace(receipt, replayed=False) if is_new else receipt)
    return sent


def _asks_client(chat: Chat) -> bool:
    return chat.awaits in ("client", "both")


def to_turn_range(sent: Sequence[SendReceipt]) -> TurnRange:
    """Return the turns in which messages are answered, each once it has come."""
    return TurnRange(sent[0].seq, _ids(sent), has_started=False, chat=sent[0].chat)


def _ids(sent: Sequence[SendReceipt]) -> tuple[str, ...]:
    return tuple(receipt.message_id for receipt in sent)


async def _known_receipt(engine: Engine, chat: Chat, client_id: str, message: Message, content: Content) -> SendReceipt:
    """Return the receipt of a message that a page knows by an id of the store."""
    if not says(message, content):
        raise ConflictingReplay(client_id=client_id, message_id=message.id)
    before = await turn_start(engine, chat) if message.turn == chat.turn else 0
    return SendReceipt(chat, message.id, queued=False, replayed=True, seq=before)


async def _edit_receipt(engine: Engine, chat: Chat, conflict: ConflictingReplay, content: Content) -> SendReceipt:
    """Return the receipt of a message that was edited to its page's text; raise `conflict` if it was not."""
    first_id = conflict.message_id
    latest = None if first_id is None else await latest_edit(engine, chat.id, first_id, after=0)
    if latest is None or not says(latest.message, content):
        raise conflict
    return SendReceipt(chat, latest.message.id, queued=False, replayed=True, seq=latest.seq - 1)


async def turn_start(engine: Engine, chat: Chat) -> int:
    """Return the number of the event before the last turn's first."""
    return _before(await _last_turn(engine, chat))


async def answer_start(engine: Engine, chat: Chat) -> tuple[int, str | None]:
    """Return the number of the event before the last turn's last question, and its id if it has steered the turn."""
    turn = await _last_turn(engine, chat)
    questions: dict[str, MessageEvent] = {}
    for event in turn:
        if _is_question(event, chat.turn):
            questions.setdefault(event.message.id, event)  # one that was erased comes again
    if not questions:
        return _before(turn), None
    last = [*questions.values()][-1]
    return last.seq - 1, last.message.id if last.message.steered else None


async def _after_answers(engine: Engine, chat: Chat, new_input: NewInput) -> TurnRange:
    """Return the turns after answers to closed calls, and the results that differ from the client's answers."""
    turn = await _last_turn(engine, chat)
    asked_for = {call.call_id for event in turn if isinstance(event, ActionRequiredEvent) for call in event.calls}
    results = [
        (event.seq, result)
        for event in turn
        if isinstance(event, MessageEvent) and (result := event.message.result) is not None
        if result.call_id in new_input.answers
    ]
    wrong = [(seq, one.call_id) for seq, one in results if one.call_id in asked_for and not new_input.has_result(one)]
    if wrong:
        return TurnRange(wrong[0][0] - 1, corrected=frozenset(call_id for _, call_id in wrong), chat=chat)
    return TurnRange(results[-1][0] if results else _before(turn), chat=chat)


async def _last_turn(engine: Engine, chat: Chat) -> Sequence[Event]:
    """Return the stored events of a chat's last turn, except parts of replies."""
    look_back = _LOOK_BACK
    while True:
        start = max(0, chat.last_seq - look_back)
        async with aclosing(engine.events(chat.id, after=start, follow=False)) as events:
            stored = [event async for event in events if not _is_earlier(event, chat.turn)]
        question = next((event for event in stored if _is_question(event, chat.turn)), None)
        # One that was erased comes once more at the end: only the first of all is where the turn begins.
        if start == 0 or (question is not None and not question.message.erased):
            return stored if question is None else stored[stored.index(question) :]
        look_back *= 4


def _is_earlier(event: Event, turn: int) -> bool:
    """Whether an event is a part of a reply, or a message of an earlier turn: these may be large."""
    return isinstance(event, PartEvent) or (isinstance(event, MessageEvent) and event.message.turn < turn)


def _is_question(event: Event, turn: int) -> TypeGuard[MessageEvent]:
    return isinstance(event, MessageEvent) and event.message.turn == turn and event.message.role == "user"


def _before(events: Sequence[Event]) -> int:
    return events[0].seq - 1 if events else 0
