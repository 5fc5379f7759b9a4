"""The events of turns as a stream of server-sent events, in the protocol of a front end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from turnwise.engine.config.results import Chat
from turnwise.engine.subscriptions.turns import AT_WORK
from turnwise.http_problems import TYPE, NotAuthenticated
from turnwise.service.caller import Caller
from turnwise.service.problems import build_problem
from turnwise.service.routes.subagent_calls import OperatorsFeed, with_subagent_calls
from turnwise.service.sse import EventFeed
from turnwise.states.errors import ChatNotFound, EngineClosed, TurnwiseError
from turnwise.states.events import (
    AttemptDiscardedEvent,
    ErrorEvent,
    ErrorInfo,
    Event,
    HistoryResetEvent,
    MessageEvent,
    PartEvent,
    QueueEvent,
    RetryEvent,
    StatusEvent,
    TurnFinishedEvent,
)
from turnwise.states.names import ChatState

_WAITS: Final = ErrorInfo(
    kind="message-queued", message="The message waits for its turn: the chat's open calls have to be answered first."
)
_REMOVED: Final = ErrorInfo(
    kind="message-removed", message="The message was taken out of the queue, or cut away by an edit."
)


class TurnRange(msgspec.Struct, frozen=True):
    """What a stream shows: one turn, or those in which the messages of a request are answered."""

    after: int
    """The number of an event before the first one to show."""
    messages: tuple[str, ...] = ()
    """The messages that are answered, by id."""
    has_started: bool = True
    """Whether the next event is the first one to show; or else it is that of the first message, in its own turn."""
    corrected: frozenset[str] = frozenset()
    """Calls that ended otherwise than the client's messages say."""
    chat: Chat | None = None
    """The chat as it stood once the messages were accepted; a turn that had ended then may have been resumed since."""
    waits_for_operators: bool = False
    """Whether the stream goes on while the turn waits for answers that the caller may not give."""


async def follow_turns(source: EventFeed, chat_id: str, turns: TurnRange, *, hold_back: bool) -> AsyncGenerator[Event]:
    """Yield the events of the turns; or, if none of them begins, how the chat has come to rest instead.

    For a chat that rests behind open calls an error says that the message waits. The calls are not repeated: a second
    page would run a client's tool again.
    """
    awaited = _Awaited(turns.has_started, {*turns.messages}, newest=0 if turns.chat is None else turns.chat.last_seq)
    rest: list[Event] = [] if turns.chat is None else [StatusEvent(state=turns.chat.state)]
    async with aclosing(_valid_events(source, chat_id, turns.after, hold_back=hold_back)) as events:
        async for event in events:
            if awaited.shows(event):
                yield event
            elif isinstance(event, StatusEvent | ErrorEvent):
                rest = [*rest[-1:], event]  # an error comes just before the state
            if awaited.removed:
                yield ErrorEvent(error=_REMOVED)
            if awaited.over:
                return
    if rest and isinstance(last := rest[-1], StatusEvent) and last.state is ChatState.requires_action:
        rest = [ErrorEvent(error=_WAITS)]
    for event in () if awaited.has_started else rest:
        yield event


class _Awaited(msgspec.Struct):
    """Which messages are still to be answered."""

    has_started: bool
    """Whether a turn to show has started."""
    unanswered: set[str]
    """Those whose turns have not started."""
    newest: int
    """The number of an event: a turn that ended up to there may have been resumed since."""
    removed: bool = False
    """Whether the turn will not come, or not end: its message is gone."""
    over: bool = False
    """Whether there is nothing more to show."""
    _ended: int | None = None
    """The number of the turn that has ended; it cannot be resumed while others wait."""

    def shows(self, event: Event) -> bool:
        """Note what becomes of the messages; return whether the event belongs to their turns."""
        match event:
            case MessageEvent() if event.message.id in self.unanswered:
                self.unanswered.remove(event.message.id)
                self.has_started, self._ended = True, None
            case MessageEvent() | HistoryResetEvent() if self._is_behind_end(event):
                self.over = not self.unanswered
                return not self.over
            case HistoryResetEvent():
                self.removed = self.over = self.has_started
            case QueueEvent():
                if event.change == "deleted":
                    self.unanswered -= {*event.ids}
                elif event.change == "kept":
                    self.unanswered &= {*event.ids}
                self.removed = not self.unanswered and not self.has_started
                self.over = self.removed or self._is_at_end(event)
            case StatusEvent() if event.state in AT_WORK and not self.unanswered:
                self._ended = None
            case TurnFinishedEvent() if self.has_started:
                self._ended = event.turn
                self.over = self._is_at_end(event)
        return self.has_started

    def _is_behind_end(self, event: Event) -> bool:
        """Whether an event shows that the turn was not resumed after its end: the history continues without it."""
        if self._ended is None:
            return False
        return not isinstance(event, MessageEvent) or event.message.turn > self._ended

    def _is_at_end(self, event: Event) -> bool:
        return not self.unanswered and self._ended is not None and event.seq > self.newest


async def _valid_events(source: EventFeed, chat_id: str, after: int, *, hold_back: bool) -> AsyncGenerator[Event]:
    """Yield events until the chat rests, without parts that were discarded already."""
    lost: set[tuple[int, int]] = set()
    newest = after
    async with aclosing(source.events(chat_id, after=after, follow=False)) as stored:
        async for event in stored:
            newest = event.seq
            if isinstance(event, AttemptDiscardedEvent):
                lost.add((event.step, event.attempt))
    held: list[Event] = []
    async with aclosing(source.events(chat_id, after=after, until_rest=True)) as events:
        async for event in events:
            if isinstance(event, PartEvent) and (event.step, event.attempt) in lost:
                continue
            if isinstance(event, MessageEvent) and event.message.imported:  # the last turn, the only one here
                event = replace(event, message=replace(event.message, imported=False))  # noqa: PLW2901
            if isinstance(event, AttemptDiscardedEvent):
                discarded = (event.step, event.attempt)
                held = [one for one in held if not isinstance(one, PartEvent) or (one.step, one.attempt) != discarded]
            is_old_part = hold_back and isinstance(event, PartEvent) and event.seq <= newest
            if is_old_part or (held and isinstance(event, StatusEvent | RetryEvent)):
                held.append(event)
                continue
            for one in (*held, event):
                yield one
            held.clear()
    for one in held:
        yield one


_CUTS: Final[Mapping[type[TurnwiseError], str]] = {
    EngineClosed: "the service stops; come back",
    NotAuthenticated: "your token has expired; come back with another",
}


class Encoder(Protocol):
    """Encodes the events of one turn."""

    def encode(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the chunks that an event adds."""
        ...

    def end(self, *, cut: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the chunks that end the stream."""
        ...


async def stream_turns(  # noqa: PLR0913 - what a stream is made of
    source: EventFeed,
    chat_id: str,
    turns: TurnRange,
    encoder: Encoder,
    *,
    first: Iterable[dict[str, Any]] = (),
    last: bytes = b"",
    hold_back: bool = False,
) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream that shows turns, between `first` and `last`.

    A page that cannot remove text needs `hold_back`: text of a worker that may be lost waits until the reply goes on.
    """
    for one in first:
        yield _line(one)
    cut: str | None = None
    try:
        feed = OperatorsFeed(source) if isinstance(source, Caller) and turns.waits_for_operators else source
        shown = follow_turns(feed, chat_id, turns, hold_back=hold_back)
        if isinstance(source, Caller):  # one who may answer for subagents
            shown = with_subagent_calls(shown, source, chat_id, waits_for_operators=turns.waits_for_operators)
        async with aclosing(shown) as events:
            async for event in events:
                for one in encoder.encode(event):
                    yield _line(one)
    except ChatNotFound as error:
        problem = build_problem(error)
        gone = ErrorInfo(kind=problem["type"].removeprefix(TYPE), message=problem["detail"])
        for one in encoder.encode(ErrorEvent(error=gone)):  # a client that reconnects does not get the chat either
            yield _line(one)
    except TurnwiseError as error:
        cut = _CUTS.get(type(error), "the chat cannot be read now; come back")
    for one in encoder.end(cut=cut):
        yield _line(one)
    if last:
        yield last


def _line(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
