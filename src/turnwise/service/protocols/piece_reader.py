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

_Whole = FilePart | SourcePart | ToolResultPart
_HISTORY_CUT: Final = "the history was cut"


class _Words(msgspec.Struct):
    kind: p.Kind
    text: str = ""
    is_open: bool = False


class _Call(msgspec.Struct):
    name: str
    arguments_text: str = ""


class _Live(msgspec.Struct):
    """The reply under way, as far as it was shown."""

    step: int
    attempt: int
    whole: bool
    """Whether the reader has seen it from its beginning."""
    words: dict[int, _Words] = msgspec.field(default_factory=dict)
    calls: dict[str, _Call] = msgspec.field(default_factory=dict)
    """Those that were begun and are not complete."""
    made: list[str] = msgspec.field(default_factory=list)
    wholes: list[int] = msgspec.field(default_factory=list)
    """The indices of parts that came in one piece."""


class PieceReader:
    """Turns the events of a turn, from any of them on, into pieces; and those of the next turns, if it is given them.

    A reader that joins in the middle of a reply sees the rest of the part under way, begun anew, and calls only once
    they are complete. What was never shown, because its parts were pruned, is shown with the message that keeps it.

    Args:
        known_calls: ids of calls that the client knows already: they are not shown again, only their results are.
        answered: ids of calls whose results the client knows.
        takes_back: whether the protocol can take back what was shown; then a reply with a gap is shown anew.
        calls_stay: whether the client keeps calls of discarded attempts: a later one of the same id is not shown to it.
    """

    def __init__(
        self,
        known_calls: Collection[str] = (),
        answered: Collection[str] = (),
        *,
        takes_back: bool = True,
        calls_stay: bool = False,
    ) -> None:
        self._takes_back = takes_back
        self._calls_stay = calls_stay
        self.turn: int | None = None
        """The number of the turn, once an event has given it."""
        self.begun: int | None = None
        """The number of the turn whose first message was read."""
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
        self._live: _Live | None = None
        self._step_seen = False
        self._kept_step = 0
        self._seq = 0
        self._gap = False
        """Whether events are missing since the last stored reply: old parts may be pruned."""
        self._behind_end: list[e.Event] = []

    def read(self, event: e.Event) -> Iterator[p.Piece]:
        """Yield what the event adds."""
        ended, self._behind_end = self._behind_end, []
        if self.finished is None or _begins_turn_after(self.finished.turn, event):
            ended = [event]
        elif _resumes(self.finished.turn, event):
            ended.append(event)
        else:
            self._behind_end = [*ended, event]
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
                live = self._live
                if live is not None and (live.step, live.attempt) == (event.step, event.attempt):
                    yield from self._take_back(event.reason)
                self._step_seen = True
            case e.HistoryResetEvent():
                yield from self._take_back(_HISTORY_CUT)
                self._kept_step = 0
            case e.ActionRequiredEvent():
                yield from self._ask(event.calls)
            case e.ErrorEvent():
                self.error = event.error
            case e.TurnFinishedEvent():
                self.turn = event.turn
                yield from self.close(is_over=True)
                self.finished = event

    def close(self, *, is_over: bool) -> Iterator[p.Piece]:
        """Yield what ends the reply under way, as far as it is shown here. Its calls stand, unless it `is_over`."""
        if self._live is not None:
            yield from self._end_step(self._live, None, is_over=is_over)

    def _note(self, state: ChatState) -> None:
        self.state = state
        if state is ChatState.streaming:
            self._step_seen = True
        if state is not ChatState.requires_action:
            self.awaited_calls = ()
        if state is not ChatState.error:
            self.error = None

    # The reply under way

    def _read_part(self, event: e.PartEvent) -> Iterator[p.Piece]:
        live = self._live
        if live is None or (live.step, live.attempt) != (event.step, event.attempt):
            yield from self._take_back("another attempt has begun")
            live = self._begin(event.step, event.attempt)
            yield p.StepBegun(live.step)
        part = event.part
        if part.type in ("text", "reasoning"):
            kind: p.Kind = "text" if part.type == "text" else "reasoning"
            yield from self._add_words(live, event.index, kind, part.delta or "")
        elif part.type == "tool_call":
            yield from self._read_call(live, part)
        elif part.complete is not None:
            yield from self._end_words(live, event.index)
            yield from self._show(live, event.index, msgspec.convert(part.complete, _Whole))

    def _begin(self, step: int, attempt: int) -> _Live:
        self._live = live = _Live(step, attempt, whole=self._step_seen)
        self._step_seen = False
        return live

    def _add_words(self, live: _Live, index: int, kind: p.Kind, text: str) -> Iterator[p.Piece]:
        if not text:
            return
        yield from self._end_words(live, index)
        words = live.words.setdefault(index, _Words(kind))
        if not words.is_open:
            words.is_open = True
            yield p.WordsBegun(live.step, index, kind)
        words.text += text
        yield p.WordsAdded(live.step, index, kind, text)

    def _end_words(self, live: _Live, but: int | None = None) -> Iterator[p.WordsEnded]:
        for index, words in live.words.items():
            if words.is_open and index != but:
                words.is_open = False
                yield p.WordsEnded(live.step, index, words.kind)

    def _read_call(self, live: _Live, part: e.PartDelta) -> Iterator[p.Piece]:
        yield from self._end_words(live)
        if part.complete is not None:
            yield from self._make(live, msgspec.convert(part.complete, ToolCallPart))
        elif live.whole and part.call_id is not None and part.name:
            if part.call_id not in live.calls:
                live.calls[part.call_id] = _Call(part.name)
                yield p.CallBegun(live.step, part.call_id, part.name, part.executor)
            if part.delta:
                live.calls[part.call_id].arguments_text += part.delta
                yield p.CallAdded(part.call_id, part.delta)

    def _make(self, live: _Live, part: ToolCallPart) -> Iterator[p.Piece]:
        if part.call_id in self._known_calls:
            return
        call = live.calls.pop(part.call_id, None)
        if call is None:
            yield p.CallBegun(live.step, part.call_id, part.name, part.executor)
        self._known_calls.add(part.call_id)
        live.made.append(part.call_id)
        yield p.CallMade(part, "" if call is None else call.arguments_text)

    def _show(self, live: _Live, index: int, part: _Whole) -> Iterator[p.Piece]:
        if isinstance(part, ToolResultPart):
            yield from self._give(f"{self.chat_id}-{part.call_id}", part, by_provider=True)
        else:
            live.wholes.append(index)
            yield p.WholeShown(live.step, index, part)

    def _give(self, message_id: str, result: ToolResultPart, *, by_provider: bool) -> Iterator[p.Piece]:
        if result.call_id in self._known_calls and result.call_id not in self._answered:
            self._answered.add(result.call_id)
            yield p.ResultGiven(message_id, result, by_provider)

    def _take_back(self, reason: str) -> Iterator[p.Piece]:
        live, self._live = self._live, None
        if live is None:
            return
        if self._calls_stay:
            self._answered.update(live.made)
        else:
            self._known_calls.difference_update(live.made)
            self._answered.difference_update(live.made)
        open_words = tuple(self._end_words(live))
        open_calls = tuple(p.CallDropped(call_id, call.name) for call_id, call in live.calls.items())
        yield p.TakenBack(live.step, live.attempt, reason, open_words, open_calls, tuple(live.made))

    # Stored messages

    def _read_message(self, message: Message) -> Iterator[p.Piece]:
        if message.erased or message.imported:
            return
        if (result := message.result) is not None:
            yield from self._give(message.id, result, by_provider=False)
        elif message.role == "assistant" and message.step > self._kept_step:
            yield from self._keep(message)
        if message.role in ("user", "assistant") and not message.synthetic:
            self.turn = message.turn
            if message.role == "user":
                self.begun = message.turn

    def _keep(self, message: Message) -> Iterator[p.Piece]:
        live = self._live
        if live is None or live.step != message.step:
            yield from self._take_back("another step has begun")
            live = self._begin(message.step, 0)
            yield p.StepBegun(live.step)
        elif self._gap and not _begins_with(message, live):
            if self._takes_back:
                yield from self._take_back("what was shown of it has a gap")
                live = self._begin(message.step, live.attempt)
                yield p.StepBegun(live.step)
            else:
                live.whole = False
        self._kept_step = message.step
        yield from self._complete(live, message)
        yield from self._end_step(live, message, is_over=True)
        self._step_seen, self._gap = True, False

    def _complete(self, live: _Live, message: Message) -> Iterator[p.Piece]:
        """Show what the message holds, and was not shown. Who joined in the middle has missed the words before it."""
        unmatched = {kind: [one for one in live.words.items() if one[1].kind == kind] for kind in ("text", "reasoning")}
        missed = not live.whole and bool(live.words or live.made or live.wholes)
        shown_wholes = len(live.wholes)
        place = max([*live.words, *live.wholes], default=-1)
        for part in message.parts:
            if isinstance(part, TextPart | ReasoningPart):
                if not part.text:
                    continue
                words = unmatched[part.type].pop(0) if unmatched[part.type] else None
                if missed:
                    continue
                place += words is None
                index, shown_text = (place, "") if words is None else (words[0], words[1].text)
                if part.text.startswith(shown_text):
                    yield from self._add_words(live, index, part.type, part.text[len(shown_text) :])
            elif isinstance(part, ToolCallPart):
                yield from self._end_words(live)
                yield from self._make(live, part)
            elif isinstance(part, ToolResultPart):
                yield from self._show(live, place, part)
            elif isinstance(part, FilePart | SourcePart):
                if shown_wholes or missed:
                    shown_wholes -= 1
                    continue
                place += 1
                yield from self._end_words(live)
                yield from self._show(live, place, part)

    def _end_step(self, live: _Live, message: Message | None, *, is_over: bool) -> Iterator[p.Piece]:
        yield from self._end_words(live)
        for call_id, call in live.calls.items():
            yield p.CallDropped(call_id, call.name)
        if is_over:
            stored = (
                () if message is None else [part.call_id for part in message.parts if isinstance(part, ToolCallPart)]
            )
            yield from (p.CallWithdrawn(call_id) for call_id in live.made if call_id not in stored)
        self._live = None
        yield p.StepEnded(live.step, message)

    def _ask(self, calls: tuple[ToolCall, ...]) -> Iterator[p.Piece]:
        self.awaited_calls = calls
        new = [call for call in calls if call.call_id not in self._known_calls]
        if new and self._live is None:  # as those of subagents: they wait for a person, the step's own for them
            yield p.StepBegun(new[0].step)
        for call in new:
            self._known_calls.add(call.call_id)
            yield p.CallBegun(call.step, call.call_id, call.name, call.executor)
            part = ToolCallPart(call_id=call.call_id, name=call.name, arguments=call.arguments)
            yield p.CallMade(part, "")
        yield p.ActionRequired(calls)


def _begins_with(message: Message, live: _Live) -> bool:
    """Whether what was shown of a reply is the beginning of what is stored of it."""
    for kind in ("text", "reasoning"):
        beginnings = [words.text for words in live.words.values() if words.kind == kind]
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
    """Return whether an event shows that a turn went on after its end."""
    ends_again = isinstance(event, e.TurnFinishedEvent) and event.turn == turn
    return ends_again or (isinstance(event, e.StatusEvent) and event.state in AT_WORK)
