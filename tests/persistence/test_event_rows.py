"""Rows of events: small, and read back as they were."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from turnwise.persistence.rows import MESSAGES, event_of
from turnwise.persistence.sqlite.event_rows import rows_of
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import (
    CompactionEvent,
    ErrorEvent,
    ErrorInfo,
    Event,
    MessageEvent,
    PartDelta,
    PartEvent,
    StatusEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwise.states.messages import FORMAT, Message, Part, Role, TextPart, ToolResultPart
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.values import Json

AT = datetime(2026, 1, 1, tzinfo=UTC)
RESULT = ToolResultEvent(
    step=1, call_id="a", index=0, name="look", output=None, is_error=False, outcome=CallStatus.succeeded
)
EVENTS: list[Event] = [
    StatusEvent(state=ChatState.waiting),
    PartEvent(step=1, attempt=1, index=0, part=PartDelta(type="text", delta="hi")),
    CompactionEvent(phase="started", step=1),
    ErrorEvent(error=ErrorInfo(kind="tool", message="no")),
    RESULT,
    replace(RESULT, output={"found": None}),
    ToolProgressEvent(step=1, call_id="a", progress=None),
    ToolProgressEvent(step=1, call_id="a", progress={"done": None}),
]


def numbered(event: Event, seq: int = 7) -> Event:
    return replace(event, chat_id="c", seq=seq, at=AT)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_event_round_trip(event: Event) -> None:
    """A null of a tool's own included."""
    (row,) = rows_of([numbered(event)])
    assert event_of("c", row.seq, row.kind, row.at, row.body, None, None) == numbered(event)


def message_with(position: int, *parts: Part, role: Role = "tool") -> Message:
    return Message(
        id=f"m{position}", role=role, parts=parts, turn=1, step=1, created_at=AT, position=position, synthetic=True
    )


def result(call_id: str, output: Json) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="look", output=output)


ASKED = message_with(1, TextPart(text="look"), role="user")
ANSWERED = message_with(2, result("b", "seen"))
OTHER = message_with(3, result("a", "nothing"))
SAME = message_with(4, result("a", "seen"))
TOLD = numbered(replace(RESULT, output="seen"))


def kept(*events: Event) -> list[Event]:
    """Return the events as they are read back, each with the message that its row points at."""
    messages = {event.message.position: event.message for event in events if isinstance(event, MessageEvent)}
    read = []
    for row in rows_of(events):
        message = None if row.position is None else messages[row.position]
        stored = (None, None) if message is None else (FORMAT, MESSAGES.dump(message))
        read.append(event_of(row.chat_id, row.seq, row.kind, row.at, row.body, *stored))
    return read


def test_content_is_stored_with_its_message() -> None:
    """A result is that of the message with the same call and output, wherever it stands."""
    events = [*(numbered(MessageEvent(message=message)) for message in (ASKED, ANSWERED, OTHER, SAME)), TOLD]
    rows = rows_of(events)
    assert [row.position for row in rows] == [1, 2, 3, 4, 4]
    assert not any("seen" in row.body or "look" in row.body.replace('"name":"look"', "") for row in rows)
    assert kept(*events) == events


@pytest.mark.parametrize("messages", [(), (ASKED,), (ANSWERED,), (OTHER,), (ASKED, ANSWERED, OTHER)])
def test_result_without_message_is_stored_in_the_event(messages: tuple[Message, ...]) -> None:
    events = [*(numbered(MessageEvent(message=message)) for message in messages), TOLD]
    assert rows_of(events)[-1].position is None
    assert kept(*events) == events


@pytest.mark.parametrize(
    ("at", "body", "form", "column"),
    [
        ("poison", "{}", FORMAT, "events.body"),
        (10**30, "{}", FORMAT, "events.body"),
        (0, "poison", FORMAT, "events.body"),
        (0, "[]", FORMAT, "events.body"),
        (0, "{}", FORMAT, "events.body"),
        (0, "{}", FORMAT + 1, "messages.format"),
    ],
)
def test_invalid_event_row_names_its_column(at: Any, body: str, form: int, column: str) -> None:
    with pytest.raises(ChatUnreadable) as caught:
        event_of("c", 7, "tool_result", at, body, form, MESSAGES.dump(SAME))
    assert (caught.value.chat_id, caught.value.column) == ("c", column)
