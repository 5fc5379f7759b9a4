"""What a chat has lived through, read from its events: its stays in states, and what went on meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from turnwise.states.errors import InvalidArgument
from turnwise.states.events import (
    EVENTS,
    AttemptDiscardedEvent,
    CompactionEvent,
    ErrorEvent,
    Event,
    HistoryResetEvent,
    MessageEvent,
    PartEvent,
    RetryEvent,
    StatusEvent,
    ToolResultEvent,
    TurnFinishedEvent,
)
from turnwise.states.messages import Message, ToolCallPart, ToolResultPart
from turnwise.states.names import NEW, UNKNOWN, ChatState, Executor
from turnwise.states.values.plain import shown

Kind = Literal["attempt", "failed attempt", "local call", "client call", "subagent", "compaction", "failed compaction"]


class Instant(msgspec.Struct, frozen=True):
    """A point in a chat's life: the clock's time, and how much time had passed.

    A clock may be set back, and chats move between machines. What the clock says then goes back, time does not.
    """

    at: datetime
    passed: timedelta
    """Since the first event; where the clock went back, none has passed."""

    def then(self, at: datetime) -> Instant:
        """Return the instant at which the clock says `at`, the next time that it is read."""
        return Instant(at, self.passed + max(at - self.at, timedelta()))


class Stay(msgspec.Struct, frozen=True):
    """A time in one state; `until` is `None` for the state in which the chat is."""

    state: ChatState
    previous: str
    """What led to it: a state, `new` where a life begins, or that the stored state was unknown, before a repair."""
    since: Instant
    until: Instant | None

    def lasted(self, end: Instant) -> timedelta:
        """Return its duration, if the life so far ends at `end`."""
        return (self.until or end).passed - self.since.passed


class Activity(msgspec.Struct, frozen=True):
    """Something that took time: an attempt, a call, a compaction; `until` is `None` if it still goes on."""

    kind: Kind
    name: str
    since: Instant
    until: Instant | None


class ChatLife(msgspec.Struct, frozen=True):
    """A chat's life so far."""

    stays: tuple[Stay, ...]
    activities: tuple[Activity, ...]
    message_times: tuple[Instant, ...]
    """When a user's message entered the history."""
    steering_times: tuple[Instant, ...]
    """When one of them entered a turn under way."""
    end: Instant
    """The time of the last event."""


def life_of(events: Iterable[Event]) -> ChatLife:
    """Return a chat's life, read from its stored events, from the first on.

    Raises:
        InvalidArgument: one of them is no event, or none is a change of state.
    """
    reader = _Reader()
    for event in events:
        if not isinstance(event, _EVENTS):
            raise InvalidArgument("events", f"must be events; one was {shown(event)}")
        if event.at is not None:
            reader.read(event, event.at)
    return reader.life()


class _Reader:
    """Reads events in order. What has started and not ended is open."""

    def __init__(self) -> None:
        self._stays: list[tuple[ChatState, str, Instant]] = []
        self._activities: list[Activity] = []
        self._message_times: list[Instant] = []
        self._steering_times: list[Instant] = []
        self._message_ids: set[str] = set()
        self._attempts = _Attempts()
        self._calls: dict[str, tuple[Kind, str, Instant]] = {}
        self._compaction: Instant | None = None
        self._end: Instant | None = None

    def life(self) -> ChatLife:
        if self._end is None or not self._stays:
            raise InvalidArgument(
                "events", "must be the stored events of a chat, from the first on; none is a change of state"
            )
        self._activities += self._attempts.until(self._end)
        self._activities += [Activity(*call, None) for call in self._calls.values()]
        if self._compaction is not None:
            self._activities.append(Activity("compaction", "compaction", self._compaction, None))
        ends: Sequence[Instant | None] = [*(since for _, _, since in self._stays[1:]), None]
        stays = tuple(Stay(*stay, until) for stay, until in zip(self._stays, ends, strict=True))
        return ChatLife(
            stays, tuple(self._activities), tuple(self._message_times), tuple(self._steering_times), self._end
        )

    def read(self, event: Event, clock: datetime) -> None:
        """Read an event that was stored when the clock showed `clock`."""
        self._end = at = Instant(clock, timedelta()) if self._end is None else self._end.then(clock)
        if isinstance(event, MessageEvent):
            if event.message.id in self._message_ids:
                return  # an erasure publishes it again
            self._message_ids.add(event.message.id)
        self._attempts.read(event, at)
        match event:
            case StatusEvent():
                self._enter(event, at)
            case MessageEvent():
                self._read_message(event.message, at)
            case ToolResultEvent():
                self._answer(event.call_id, at)
            case CompactionEvent():
                self._compact(event, at)
            case HistoryResetEvent():
                for call_id in tuple(self._calls):  # they are cut away with the message that asked for them
                    self._answer(call_id, at)
            case _:
                pass

    def _enter(self, event: StatusEvent, at: Instant) -> None:
        if event.state is not ChatState.compacting:
            self._end_compaction("failed compaction", at)  # what has succeeded is over already
        self._stays.append((event.state, str(event.previous or (UNKNOWN if self._stays else NEW)), at))

    def _read_message(self, message: Message, at: Instant) -> None:
        if message.role == "user" and not message.synthetic:
            self._message_times.append(at)
            self._steering_times += [at] if message.steered else []
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                self._answer(part.call_id, at)
            elif isinstance(part, ToolCallPart) and part.executor is not Executor.provider:
                kind: Kind = _KINDS[part.executor]
                self._calls.setdefault(part.call_id, (kind, part.name, at))

    def _answer(self, call_id: str, at: Instant) -> None:
        if call_id in self._calls:
            self._activities.append(Activity(*self._calls.pop(call_id), at))

    def _compact(self, event: CompactionEvent, at: Instant) -> None:
        if event.phase == "started":
            self._compaction = self._compaction or at  # one that is tried again is still the same
        elif event.phase in _COMPACTED:
            self._end_compaction(_COMPACTED[event.phase], at)

    def _end_compaction(self, kind: Kind, at: Instant) -> None:
        if self._compaction is not None:
            self._activities.append(Activity(kind, "compaction", self._compaction, at))
            self._compaction = None


class _Open(msgspec.Struct, frozen=True):
    """An attempt under way."""

    since: Instant
    name: str = "attempt"
    scheduled: bool = False
    """Whether it was only to begin at that time, after a back-off or right after a reply."""

    def has_started(self, at: Instant) -> bool:
        return not self.scheduled or self.since.passed < at.passed


class _Attempts:
    """Reads which attempts there were.

    Parts say it best, but they are pruned, and a picture would change overnight: what they call an attempt is used only
    while it is under way.
    """

    def __init__(self) -> None:
        self._over: list[Activity] = []
        self._open: _Open | None = None
        self._live = ""
        """What the parts call the attempt under way."""
        self._streaming = False
        self._left: int | None = None
        """The place of the attempt that a change of state has left without an answer."""
        self._failed = (0, 0)
        """A step, and how many of its attempts are over without an answer."""

    def until(self, end: Instant) -> list[Activity]:
        """Return all attempts of a life that ends then, so far."""
        if self._open is None or not self._open.has_started(end):
            return self._over
        return [*self._over, Activity("attempt", self._live or self._open.name, self._open.since, None)]

    def read(self, event: Event, at: Instant) -> None:
        match event:
            case StatusEvent():
                self._enter(event.state, at)
            case PartEvent():
                self._live = _name(event.step, event.attempt)
                self._open = msgspec.structs.replace(self._open or _Open(at), scheduled=False)
            case MessageEvent() if event.message.role == "assistant":
                self._answer(event.message, at)
            case AttemptDiscardedEvent():
                self._discard(event, at)
            case RetryEvent():
                self._close("failed attempt", at, _name(event.step, event.attempt))
                self._failed = (event.step, event.attempt)
                if self._streaming:
                    begins = Instant(event.retry_at, at.passed + timedelta(seconds=event.delay))
                    self._open = _Open(begins, _name(event.step, event.attempt + 1), scheduled=True)
            case CompactionEvent() if event.phase == "started":
                self._failed = (event.step, self._number(event.step))
            case ErrorEvent() if self._streaming:
                self._fail(at)
            case TurnFinishedEvent():
                self._left = None
            case _:
                pass

    def _number(self, step: int) -> int:
        """Return which attempt of a step the next one is, or the one under way."""
        return self._failed[1] + 1 if self._failed[0] == step else 1

    def _enter(self, state: ChatState, at: Instant) -> None:
        if self._open is not None and self._open.has_started(at):
            self._close("attempt", at)
            self._left = len(self._over) - 1
        self._streaming = state is ChatState.streaming
        self._open = _Open(at) if self._streaming else None
        self._live = ""

    def _answer(self, message: Message, at: Instant) -> None:
        name = _name(message.step, self._number(message.step))
        if self._open is not None:
            self._close("attempt", at, name)
        elif self._left is not None:
            self._over[self._left] = msgspec.structs.replace(self._over[self._left], name=name)
        if self._streaming and not message.partial:
            self._open = _Open(at, scheduled=True)

    def _discard(self, event: AttemptDiscardedEvent, at: Instant) -> None:
        """End the attempt; of a worker that is gone, it is the one before, and another one is under way."""
        self._failed, name = (event.step, event.attempt), _name(event.step, event.attempt)
        if self._left is None or self._open is None:
            self._close("failed attempt", at, name)
        else:
            self._over[self._left] = msgspec.structs.replace(self._over[self._left], kind="failed attempt", name=name)
            self._open = msgspec.structs.replace(self._open, name=_name(event.step, event.attempt + 1))
        self._left = None

    def _fail(self, at: Instant) -> None:
        """End the attempt by an error, although a part of it may be stored as a message."""
        if self._open is None and self._over:
            self._over[-1] = msgspec.structs.replace(self._over[-1], kind="failed attempt")
        elif self._open is not None and self._open.has_started(at):
            self._close("failed attempt", at)
        self._open = None

    def _close(self, kind: Kind, at: Instant, name: str = "") -> None:
        if self._open is not None:
            started = min(self._open.since, at, key=lambda one: one.passed)
            self._over.append(Activity(kind, name or self._open.name, started, at))
            self._open, self._live = None, ""


def _name(step: int, attempt: int) -> str:
    return f"step {step}, attempt {attempt}"


_EVENTS: Final = tuple(EVENTS.values())
_KINDS: Final[dict[Executor, Kind]] = {
    Executor.local: "local call",
    Executor.client: "client call",
    Executor.chat: "subagent",
}
_COMPACTED: Final[dict[str, Kind]] = {
    "finished": "compaction",
    "failed": "failed compaction",
}
