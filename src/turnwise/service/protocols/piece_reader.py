"""Reads the events of a turn, and of those after it, as pieces, wherever the reader joins."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from turnwise.engine.subscriptions.turns import AT_WORK
from turnwise.service.protocols import pieces as p
from turnwise.states import events as e
from turnwise.states.calls import ToolCall
from turnwise.states.messages import (
    FilePart,
    Message,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turnwise.states.names import ChatState

_WholeKind = FilePart | SourcePart | ToolResultPart
_HISTORY_CUT: Final = "the history was cut"


class _OpenText(msgspec.Struct):
    kind: p.Kind
    text: str = ""
    is_open: bool = False


class _OpenCall(msgspec.Struct):
    name: str
    arguments_text: str = ""


class _OpenReply(msgspec.Struct):
    """The open reply, as far as it was sent."""

    step: int
    attempt: int
    is_whole: bool
    """Whether the reader has seen it from its beginning."""
    texts: dict[int, _OpenText] = msgspec.field(default_factory=dict)
    open_calls: dict[str, _OpenCall] = msgspec.field(default_factory=dict)
    complete_calls: list[str] = msgspec.field(default_factory=list)
    whole_parts: list[int] = msgspec.field(default_factory=list)
    """The indices of parts that came in one piece."""


class PieceReader:
    """Turns the events of a turn, from any of them on, into pieces; and those of following turns, if it reads them.

    A reader that joins in the middle of a reply gets a new start of the open part with its remaining text, and tool
    calls only when complete. Content of pruned parts comes with the stored message.

    Args:
        known_calls: ids of calls that the client knows already: only their results are sent.
        answered: ids of calls whose results the client knows.
        can_reset: whether the protocol can remove a step. If so, a reply with a gap is removed and sent again.
        keeps_calls: whether the client keeps calls of discarded attempts: a later one of the same id is not sent.
    """

    def __init__(
        self,
        known_calls: Collection[str] = (),
        answered: Collection[str] = (),
        *,
        can_reset: bool = True,
        keeps_calls: bool = False,
    ) -> None:
        self._can_reset = can_reset
        self._keeps_calls = keeps_calls
        self.turn: int | None = None
        """The number of the turn, once an event has given it."""
        self.started_turn: int | None = None
        """The number of the turn whose first message was read."""
        self.steered_by: str | None = None
        """The message that has steered the turn last, as far as it was read."""
        self.chat_id = ""
        self.state: ChatState | None = None
        self.awaited_calls: tuple[ToolCall, ...] = ()
        """The calls that the client has to answer."""
        self.error: e.ErrorInfo | None = None
        self.finished: e.TurnFinishedEvent | None = None
        """The event that ended the turn; what comes after it is not read until a message begins another one, or it is
        resumed."""
        self._known_calls = set(known_calls)
        self._answered = set(answered)
        self._reply: _OpenReply | None = None
        self._step_seen = False
        self._stored_step = 0
        self._seq = 0
        self._gap = False
        """Whether events are missing since the last stored reply: old parts may be pruned."""
        self._after_end: list[e.Event] = []

    def read(self, event: e.Event) -> Iterator[p.Piece]:
        """Yield the pieces that the event adds."""
        ended, self._after_end = self._after_end, []
        if self.finished is None or _begins_turn_after(self.finished.turn, event):
            ended = [event]
        elif _resumes(self.finished.turn, event):
            ended.append(event)
        else:
            self._after_end = [*ended, event]
            return
        self.finished = None
        for one in ended:
            yield from self._read(one)

    def _read(self, event: e.Event) -> Iterator[p.Piece]:
        self.chat_id = event.chat_id or self.chat_id
        self._gap |= bool(self._seq) and event.seq != self._seq + 1
        self._seq = event.seq
        match event:
            case e.StatusEvent():
                self._note(event.state)
            case e.MessageEvent():
                yield from self._read_message(event.message)
            case e.PartEvent():
                yield from self._read_part(event)
            case e.AttemptDiscardedEvent():
                reply = self._reply
                if reply is not None and (reply.step, reply.attempt) == (event.step, event.attempt):
                    yield from self._reset(event.reason)
                self._step_seen = True
            case e.HistoryResetEvent():
                yield from self._reset(_HISTORY_CUT)
                self._stored_step = 0
            case e.ActionRequiredEvent():
                yield from self._ask(event.calls)
            case e.ErrorEvent():
                self.error = event.error
            case e.TurnFinishedEvent():
                self.turn = event.turn
                yield from self.close(is_over=True)
                self.finished = event

    def close(self, *, is_over: bool) -> Iterator[p.Piece]:
        """Yield the pieces that end the open reply. Its calls remain, unless it `is_over`."""
        if self._reply is not None:
            yield from self._end_step(self._reply, None, is_over=is_over)

    def _note(self, state: ChatState) -> None:
        self.state = state
        if state is ChatState.streaming:
            self._step_seen = True
        if state is not ChatState.requires_action:
            self.awaited_calls = ()
        if state is not ChatState.error:
            self.error = None

    # The open reply

    def _read_part(self, event: e.PartEvent) -> Iterator[p.Piece]:
        reply = self._reply
        if reply is None or (reply.step, reply.attempt) != (event.step, event.attempt):
            yield from self._reset("another attempt has started")
            reply = self._begin(event.step, event.attempt)
            yield p.StepStarted(reply.step)
        part = event.part
        if part.type in ("text", "reasoning"):
            kind: p.Kind = "text" if part.type == "text" else "reasoning"
            yield from self._add_text(reply, event.index, kind, part.delta or "")
        elif part.type == "tool_call":
            yield from self._read_call(reply, part)
        elif part.complete is not None:
            yield from self._end_texts(reply, event.index)
            yield from self._show_whole(reply, event.index, msgspec.convert(part.complete, _WholeKind))

    def _begin(self, step: int, attempt: int) -> _OpenReply:
        self._reply = reply = _OpenReply(step, attempt, is_whole=self._step_seen)
        self._step_seen = False
        return reply

    def _add_text(self, reply: _OpenReply, index: int, kind: p.Kind, text: str) -> Iterator[p.Piece]:
        if not text:
            return
        yield from self._end_texts(reply, index)
        text_part = reply.texts.setdefault(index, _OpenText(kind))
        if not text_part.is_open:
            text_part.is_open = True
            yield p.TextStarted(reply.step, index, kind)
        text_part.text += text
        yield p.TextAdded(reply.step, index, kind, text)

    def _end_texts(self, reply: _OpenReply, but: int | None = None) -> Iterator[p.TextEnded]:
        for index, text_part in reply.texts.items():
            if text_part.is_open and index != but:
                text_part.is_open = False
                yield p.TextEnded(reply.step, index, text_part.kind)

    def _read_call(self, reply: _OpenReply, part: e.PartDelta) -> Iterator[p.Piece]:
        yield from self._end_texts(reply)
        if part.complete is not None:
            yield from self._complete_call(reply, msgspec.convert(part.complete, ToolCallPart))
        elif reply.is_whole and part.call_id is not None and part.name:
            if part.call_id not in reply.open_calls:
                reply.open_calls[part.call_id] = _OpenCall(part.name)
                yield p.ToolCallStarted(reply.step, part.call_id, part.name, part.executor)
            if part.delta:
                reply.open_calls[part.call_id].arguments_text += part.delta
                yield p.ArgumentsAdded(part.call_id, part.delta)

    def _complete_call(self, reply: _OpenReply, part: ToolCallPart) -> Iterator[p.Piece]:
        if part.call_id in self._known_calls:
            return
        call = reply.open_calls.pop(part.call_id, None)
        if call is None:
            yield p.ToolCallStarted(reply.step, part.call_id, part.name, part.executor)
        self._known_calls.add(part.call_id)
        reply.complete_calls.append(part.call_id)
        yield p.CallCompleted(part, "" if call is None else call.arguments_text)

    def _show_whole(self, reply: _OpenReply, index: int, part: _WholeKind) -> Iterator[p.Piece]:
        if isinstance(part, ToolResultPart):
            yield from self._show_result(f"{self.chat_id}-{part.call_id}", part, by_provider=True)
        else:
            reply.whole_parts.append(index)
            yield p.WholePart(reply.step, index, part)

    def _show_result(self, message_id: str, result: ToolResultPart, *, by_provider: bool) -> Iterator[p.Piece]:
        if result.call_id in self._known_calls and result.call_id not in self._answered:
            self._answered.add(result.call_id)
            yield p.CallResult(message_id, result, by_provider)

    def _reset(self, reason: str) -> Iterator[p.Piece]:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if self._keeps_calls:
            self._answered.update(reply.complete_calls)
        else:
            self._known_calls.difference_update(reply.complete_calls)
            self._answered.difference_update(reply.complete_calls)
        open_texts = tuple(self._end_texts(reply))
        open_calls = tuple(p.CallAborted(call_id, call.name) for call_id, call in reply.open_calls.items())
        yield p.StepReset(reply.step, reply.attempt, reason, open_texts, open_calls, tuple(reply.complete_calls))

    # Stored messages

    def _read_message(self, message: Message) -> Iterator[p.Piece]:
        if message.erased or message.imported:
            return
        if (result := message.result) is not None:
            yield from self._show_result(message.id, result, by_provider=False)
        elif message.role == "assistant" and message.step > self._stored_step:
            yield from self._read_reply(message)
        if message.role in ("user", "assistant") and not message.synthetic:
            self.turn = message.turn
            if message.role == "user":
                self.started_turn = message.turn
                self.steered_by = message.id if message.steered else None

    def _read_reply(self, message: Message) -> Iterator[p.Piece]:
        reply = self._reply
        if reply is None or reply.step != message.step:
            yield from self._reset("another step has started")
            reply = self._begin(message.step, 0)
            yield p.StepStarted(reply.step)
        elif self._gap and not _begins_with(message, reply):
            if self._can_reset:
                yield from self._reset("what was shown of it has a gap")
                reply = self._begin(message.step, reply.attempt)
                yield p.StepStarted(reply.step)
            else:
                reply.is_whole = False
        self._stored_step = message.step
        yield from self._show_rest(reply, message)
        yield from self._end_step(reply, message, is_over=True)
        self._step_seen, self._gap = True, False

    def _show_rest(self, reply: _OpenReply, message: Message) -> Iterator[p.Piece]:
        """Yield the missing pieces of the message: a reader that joined late has missed earlier text."""
        texts = reply.texts.items()
        unmatched = {kind: [one for one in texts if one[1].kind == kind] for kind in ("text", "reasoning")}
        missed = not reply.is_whole and bool(reply.texts or reply.complete_calls or reply.whole_parts)
        shown_wholes = len(reply.whole_parts)
        place = max([*reply.texts, *reply.whole_parts], default=-1)
        for part in message.parts:
            if isinstance(part, TextPart | ReasoningPart):
                if not part.text:
                    continue
                text_part = unmatched[part.type].pop(0) if unmatched[part.type] else None
                if missed:
                    continue
                place += text_part is None
                index, shown_text = (place, "") if text_part is None else (text_part[0], text_part[1].text)
                if part.text.startswith(shown_text):
                    yield from self._add_text(reply, index, part.type, part.text[len(shown_text) :])
            elif isinstance(part, ToolCallPart):
                yield from self._end_texts(reply)
                yield from self._complete_call(reply, part)
            elif isinstance(part, ToolResultPart):
                yield from self._show_whole(reply, place, part)
            elif isinstance(part, FilePart | SourcePart):
                if shown_wholes or missed:
                    shown_wholes -= 1
                    continue
                place += 1
                yield from self._end_texts(reply)
                yield from self._show_whole(reply, place, part)

    def _end_step(self, reply: _OpenReply, message: Message | None, *, is_over: bool) -> Iterator[p.Piece]:
        yield from self._end_texts(reply)
        for call_id, call in reply.open_calls.items():
            yield p.CallAborted(call_id, call.name)
        if is_over:
            stored = (
                () if message is None else [part.call_id for part in message.parts if isinstance(part, ToolCallPart)]
            )
            yield from (p.CallRemoved(call_id) for call_id in reply.complete_calls if call_id not in stored)
        self._reply = None
        yield p.StepEnded(reply.step, message)

    def _ask(self, calls: tuple[ToolCall, ...]) -> Iterator[p.Piece]:
        self.awaited_calls = calls
        new = [call for call in calls if call.call_id not in self._known_calls]
        if new and self._reply is None:  # as those of subagents: they wait for a person, the step's own for them
            yield p.StepStarted(new[0].step)
        for call in new:
            self._known_calls.add(call.call_id)
            yield p.ToolCallStarted(call.step, call.call_id, call.name, call.executor)
            part = ToolCallPart(call_id=call.call_id, name=call.name, arguments=call.arguments)
            yield p.CallCompleted(part, "")
        yield p.ActionRequired(calls)


def _begins_with(message: Message, reply: _OpenReply) -> bool:
    """Whether the streamed reply is a prefix of the stored one."""
    for kind in ("text", "reasoning"):
        beginnings = [text_part.text for text_part in reply.texts.values() if text_part.kind == kind]
        parts = (part for part in message.parts if isinstance(part, TextPart | ReasoningPart) and part.type == kind)
        texts = [part.text for part in parts if part.text]
        if len(beginnings) > len(texts):
            return False
        if not all(text.startswith(beginning) for beginning, text in zip(beginnings, texts, strict=False)):
            return False
    return True


def _begins_turn_after(turn: int, event: e.Event) -> bool:
    return isinstance(event, e.MessageEvent) and event.message.role == "user" and event.message.turn > turn


def _resumes(turn: int, event: e.Event) -> bool:
    """Whether an event shows that a turn was resumed after its end."""
    ends_again = isinstance(event, e.TurnFinishedEvent) and event.turn == turn
    return ends_again or (isinstance(event, e.StatusEvent) and event.state in AT_WORK)
