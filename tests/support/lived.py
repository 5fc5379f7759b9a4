"""Events of chats that nobody has lived: stays, calls and compactions, at seconds of one's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from turnwise import Event
from turnwise.states.events import CompactionEvent, MessageEvent, StatusEvent, ToolResultEvent
from turnwise.states.messages import Message, ToolCallPart
from turnwise.states.names import CallStatus, ChatState, Executor

START = datetime(2026, 11, 24, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    """Return the time so many seconds after `START`."""
    return START + timedelta(seconds=seconds)


def stays(*states: tuple[ChatState, float]) -> list[Event]:
    """Return the events of a chat that comes into each state at that second."""
    before = [None, *(state for state, _ in states)]
    pairs = zip(states, before, strict=False)
    return [StatusEvent(state=state, previous=previous, at=after(at)) for (state, at), previous in pairs]


def asked(name: str, call_id: str = "c", executor: Executor = Executor.local, at: float = 2) -> Event:
    """Return the event of a message that asks for a call."""
    call = ToolCallPart(call_id=call_id, name=name, arguments={}, executor=executor)
    message = Message(id="m", role="assistant", parts=(call,), turn=1, step=1, created_at=after(at), position=2)
    return MessageEvent(message=message, at=after(at))


def answered(name: str, call_id: str = "c", at: float = 4) -> Event:
    """Return the event of a call's result."""
    status = CallStatus.succeeded
    return ToolResultEvent(
        step=1, call_id=call_id, index=0, name=name, output=1, is_error=False, outcome=status, at=after(at)
    )


def phase(name: Literal["started", "finished", "failed", "stored"], at: float) -> Event:
    """Return an event of a compaction."""
    return CompactionEvent(phase=name, step=1, at=after(at))
