"""Invented events of chats: stays, calls and compactions, at given seconds."""

from datetime import UTC, datetime, timedelta
from itertools import count

from turnwise import Event
from turnwise.states.events import (
    AttemptDiscardedEvent,
    CompactionEvent,
    ErrorEvent,
    ErrorInfo,
    MessageEvent,
    PartDelta,
    PartEvent,
    RetryEvent,
    StatusEvent,
    ToolResultEvent,
)
from turnwise.states.messages import Message, TextPart, ToolCallPart
from turnwise.states.names import CallStatus, ChatState, CompactionPhase, Executor

START = datetime(2026, 11, 24, 12, tzinfo=UTC)
_NUMBERS = count(1)
"""Of messages."""


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def stays(*states: tuple[ChatState, float]) -> list[Event]:
    """Return the events of a chat that enters each state at that second."""
    before = [None, *(state for state, _ in states)]
    pairs = zip(states, before, strict=False)
    return [StatusEvent(state=state, previous=previous, at=after(at)) for (state, at), previous in pairs]


def asked(name: str, call_id: str = "c", executor: Executor = Executor.local, at: float = 2) -> Event:
    return asked_at_once((name, call_id, executor), at=at)


def asked_at_once(*calls: tuple[str, str, Executor], at: float) -> Event:
    """Return the event of a message with calls, each by name, id and executor."""
    parts = tuple(ToolCallPart(call_id=one, name=name, arguments={}, executor=how) for name, one, how in calls)
    message = Message(
        id=f"m{next(_NUMBERS)}", role="assistant", parts=parts, turn=1, step=1, created_at=after(at), position=2
    )
    return MessageEvent(message=message, at=after(at))


def answered(name: str, call_id: str = "c", at: float = 4) -> Event:
    status = CallStatus.succeeded
    return ToolResultEvent(
        step=1, call_id=call_id, index=0, name=name, output=1, is_error=False, outcome=status, at=after(at)
    )


def phase(name: CompactionPhase, at: float) -> Event:
    return CompactionEvent(phase=name, step=1, at=after(at))


def replied(step: int, at: float, *, partial: bool = False) -> Event:
    message = Message(
        id=f"m{next(_NUMBERS)}",
        role="assistant",
        parts=(TextPart(text="x"),),
        turn=1,
        step=step,
        created_at=after(at),
        partial=partial,
    )
    return MessageEvent(message=message, at=after(at))


def shown(step: int, attempt: int, at: float) -> Event:
    return PartEvent(step=step, attempt=attempt, index=0, part=PartDelta(type="text", delta="x"), at=after(at))


def failed(step: int, attempt: int, at: float, *, delay: float = 1) -> list[Event]:
    """Return the events of a failed attempt with a retry."""
    error, again = ErrorInfo(kind="network", message="away"), after(at + delay)
    return [
        discarded(step, attempt, at),
        RetryEvent(step=step, attempt=attempt, delay=delay, error=error, retry_at=again, at=after(at)),
    ]


def discarded(step: int, attempt: int, at: float) -> Event:
    return AttemptDiscardedEvent(step=step, attempt=attempt, reason="network", at=after(at))


def broken(at: float) -> list[Event]:
    error = ErrorEvent(error=ErrorInfo(kind="network", message="away"), at=after(at))
    return [error, StatusEvent(state=ChatState.error, previous=ChatState.streaming, at=after(at))]


_S = ChatState
_BEGINS = [*stays((_S.pending, 0), (_S.compacting, 5)), phase("started", 6)]
_LEFT = stays((_S.compacting, 0), (_S.streaming, 9))[1:]
_LOST = stays((_S.compacting, 0), (_S.pending, 9), (_S.compacting, 10))[1:]
COMPACTIONS: dict[str, tuple[list[Event], list[tuple[str, float, float | None]]]] = {
    "goes on": (_BEGINS, [("compaction", 6, None)]),
    "made room": ([*_BEGINS, phase("finished", 8), *_LEFT], [("compaction", 6, 8)]),
    "made too little": ([*_BEGINS, phase("finished", 8), *_LEFT, phase("unproductive", 20)], [("compaction", 6, 8)]),
    "failed": ([*_BEGINS, phase("failed", 8), *_LEFT], [("failed compaction", 6, 8)]),
    "was tried again": ([*_BEGINS, phase("started", 7), phase("finished", 8)], [("compaction", 6, 8)]),
    "was stopped": ([*_BEGINS, *stays((_S.compacting, 0), (_S.interrupted, 9))[1:]], [("failed compaction", 6, 9)]),
    "lost its worker": (
        [*_BEGINS, *_LOST, phase("started", 11), phase("finished", 12)],
        [("failed compaction", 6, 9), ("compaction", 11, 12)],
    ),
}
"""Lives with a compaction, and their compactions: kind, start and end, `None` while it continues."""
