"""What readers and subscribers of a simulation got, and whether it is right."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Protocol

import msgspec

from turnwise.engine.config.results import TurnResult
from turnwise.engine.engine import Engine
from turnwise.engine.prompt.views import user_view
from turnwise.states import events as e
from turnwise.states.events import Event
from turnwise.states.messages import QueuedMessage
from turnwise.states.names import RESTING, ChatState
from turnwise.states.transcript import Transcript, fold
from turnwise.testing.simulation.checks import StoredRows, problems_of_parts


class _Moment(msgspec.Struct, frozen=True):
    """Where a chat stood after an event."""

    event: e.Event
    rests: bool
    queue: frozenset[str]
    """The ids of the messages that waited."""


class Reading(Protocol):
    """What a reader got from a chat."""

    chat_id: str
    over: bool
    """Whether the reader has stopped waiting."""

    def problems(self, log: Sequence[e.Event], *, pruned: bool) -> Iterator[str]:
        """Yield where it differs from the chat's events, of which the parts of old replies may be `pruned`."""


class StreamReading(msgspec.Struct):
    """What `Engine.stream` yielded for the turn of one message."""

    chat_id: str
    text: str
    over: bool = False
    seen: list[e.Event] = msgspec.field(default_factory=list)
    ended: bool = False
    """Whether it ended by itself."""

    def problems(self, log: Sequence[e.Event], *, pruned: bool) -> Iterator[str]:
        """Yield where it is not the turn of the message, from its beginning, in order, each event once."""
        message_id = _id_of(self.text, log)
        turn = _turn_of(message_id, log)
        left = {event.seq for event in log}
        seen = [event for event in self.seen if event.seq in left or not (pruned and event.kind == "part")]
        over = bool(seen) and isinstance(seen[-1], e.TurnFinishedEvent | e.HistoryResetEvent)
        if seen != [event for event in turn if event.seq <= _last(self.seen)]:
            yielded = [event.seq for event in self.seen]
            of_turn = [event.seq for event in turn]
            yield f"the stream of {self.text!r} yielded the events {yielded}; its turn has {of_turn}"
        elif self.ended and not (over or _could_rest(message_id, seen, log)):
            yield f"the stream of {self.text!r} ended after event {_last(self.seen)}, where the chat did not rest"


class AskReading(msgspec.Struct):
    """What `Engine.ask` answered."""

    chat_id: str
    text: str
    over: bool = False
    result: TurnResult | None = None

    def problems(self, log: Sequence[e.Event], *, pruned: bool) -> Iterator[str]:  # noqa: ARG002 - no part is in it
        """Yield where the answer is not of the message's own turn, or does not say why there is none."""
        if self.result is None:
            return
        message_id = _id_of(self.text, log)
        turn = _turn_of(message_id, log)
        answers = {
            "taken": self._is_of(turn, log),
            "queued": not self.result.messages and _could_rest(message_id, [], log),
            "removed": isinstance(turn[-1], e.HistoryResetEvent) if turn else _was_removed(message_id, log),
        }
        if not answers[self.result.message_state]:
            ids = [message.id for message in self.result.messages]
            yield (
                f"{self.text!r}, message {message_id}, was answered by {self.result.message_state}, {ids}, "
                f"{self.result.stop_reason}; its turn has {[message.id for message in fold(turn).messages]}"
            )

    def _is_of(self, turn: Sequence[e.Event], log: Sequence[e.Event]) -> bool:
        result, ids = self.result, [message.id for message in self.result.messages] if self.result is not None else []
        last = turn[-1] if turn else None
        if result is None or last is None:
            return False
        if result.stop_reason is not None:
            finished = isinstance(last, e.TurnFinishedEvent) and last.stop_reason == result.stop_reason
            return finished and ids == [message.id for message in fold(turn).messages]
        rests = (moment.event.seq for moment in _moments(log) if moment.rests)
        return any(ids == [message.id for message in fold(_until(seq, turn)).messages] for seq in rests)


class TranscriptReading(msgspec.Struct):
    """What `Engine.transcript` showed."""

    chat_id: str
    transcript: Transcript
    over: bool = True

    def problems(self, log: Sequence[e.Event], *, pruned: bool) -> Iterator[str]:
        """Yield where it is not what the events up to its number fold to, or where going on from it leads elsewhere."""
        seen, so_far = copy.deepcopy(self.transcript), fold(_until(self.transcript.seq, log))
        if pruned:  # it may have shown parts that are gone
            so_far.live = copy.deepcopy(seen.live)
        if _plain(seen) != _plain(so_far):
            yield f"a transcript shows {_plain(seen)} with event {seen.seq}; the log has {_plain(so_far)}"
        elif _plain(fold(log, seen)) != _plain(fold(log)):
            yield f"going on after event {self.transcript.seq} of a transcript does not lead where the log does"


def problems_of_readings(
    readings: Iterable[Reading], chat_id: str, log: Sequence[e.Event], *, pruned: bool, erased: bool
) -> Iterator[str]:
    """Yield what is wrong with what readers of a chat got; with erased messages, only which of them still wait."""
    for reading in readings:
        if reading.chat_id == chat_id and not reading.over:
            yield f"{chat_id}: {reading} waits, and the chat rests"
        elif reading.chat_id == chat_id and not erased:
            yield from (f"{chat_id}: {problem}" for problem in reading.problems(log, pruned=pruned))


def _id_of(text: str, log: Sequence[e.Event]) -> str | None:
    """Return the id of the message that was accepted with this text; a later change of the text comes later."""
    for event in log:
        match event:
            case e.MessageEvent(message=message) if message.text == text:
                return message.id
            case e.QueueEvent(message=queued) if queued is not None and queued.text == text:
                return queued.id
    return None


def _turn_of(message_id: str | None, log: Sequence[e.Event]) -> list[e.Event]:
    """Return the events of the turn that the message began, up to its end, or to the edit that removed it."""
    turn: list[e.Event] = []
    number: int | None = None
    for event in log:
        if not turn and isinstance(event, e.MessageEvent) and event.message.id == message_id:
            number = event.message.turn
            turn.append(event)
        elif turn:
            turn.append(event)
            if isinstance(event, e.HistoryResetEvent) or (
                isinstance(event, e.TurnFinishedEvent) and event.turn == number
            ):
                break
    return turn


def _could_rest(message_id: str | None, seen: Sequence[e.Event], log: Sequence[e.Event]) -> bool:
    """Return whether the chat was at rest after the last event seen; without one, while the message was queued."""
    moments = [*_moments(log)]
    if seen:
        follows = next((moment.event for moment in moments if moment.event.seq > seen[-1].seq), None)
        cut = isinstance(follows, e.ActionRequiredEvent | e.ErrorEvent)  # they come together with the state
        return not cut and any(moment.rests and moment.event.seq == seen[-1].seq for moment in moments)
    return _was_removed(message_id, log) or any(moment.rests and message_id in moment.queue for moment in moments)


def _was_removed(message_id: str | None, log: Sequence[e.Event]) -> bool:
    """Return whether the message left the queue without entering the history."""
    waited = any(message_id in moment.queue for moment in _moments(log))
    still = list(_moments(log))[-1:]
    return waited and not _turn_of(message_id, log) and not any(message_id in moment.queue for moment in still)


def _moments(log: Sequence[e.Event]) -> Iterator[_Moment]:
    state: ChatState | None = None
    queue: tuple[QueuedMessage, ...] = ()
    for event in log:
        match event:
            case e.StatusEvent():
                state = event.state
            case e.QueueEvent():
                queue = event.changed(queue)
        yield _Moment(event, state is None or state in RESTING, frozenset(queued.id for queued in queue))


def _last(events: Sequence[e.Event]) -> int:
    return events[-1].seq if events else 0


def _until(seq: int, events: Sequence[e.Event]) -> list[e.Event]:
    return [event for event in events if event.seq <= seq]


def _plain(transcript: Transcript) -> tuple[object, ...]:
    """Return the fields of a transcript that are compared."""
    return (
        transcript.state,
        [message.id for message in transcript.messages],
        transcript.queue,
        [call.call_id for call in transcript.open_calls],
        transcript.stop_reason,
        transcript.error,
        transcript.live,
    )


class Subscriber:
    """Follows one chat, and keeps every event it was shown."""

    def __init__(self, chat_id: str, random: Random) -> None:
        self.chat_id = chat_id
        self._random = random
        self._seen: list[Event] = []

    @property
    def cursor(self) -> int:
        return self._seen[-1].seq if self._seen else 0

    async def follow(self, engine: Engine) -> None:
        """Keep the events that come, and leave when the seed says so."""
        async for event in engine.events(self.chat_id, after=self.cursor):
            self._seen.append(event)
            if self._random.random() < 0.05:
                return

    def problems(self, chat: StoredRows, *, pruned: bool) -> list[str]:
        """Return where what it was shown is not what is stored, once it has caught up; parts may have been `pruned`."""
        stored, cursor, problems = chat.events, self.cursor, []
        left = {event.seq for event in stored}
        seen = [event for event in self._seen if event.seq in left or not (pruned and event.kind == "part")]
        if not chat.erased and seen != [event for event in stored if event.seq <= cursor]:
            problems.append("a subscriber was shown other events than are stored")
        whole = [*self._seen, *(event for event in stored if event.seq > cursor)]
        problems += [f"to a subscriber, {problem}" for problem in problems_of_parts(whole, gaps=pruned or chat.erased)]
        transcript = fold(whole)
        if transcript.messages != user_view(chat.history):
            problems.append("what a subscriber was shown does not fold to the history")
        return [f"{self.chat_id}: {problem}" for problem in problems]
