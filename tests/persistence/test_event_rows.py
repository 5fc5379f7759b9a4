"""Rows of events: small, and read back as they were."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from turnwise.persistence.event_rows import body_of, event_of, rows_of
from turnwise.states.events import (
    CompactionEvent,
    ErrorEvent,
    ErrorInfo,
    Event,
    PartDelta,
    PartEvent,
    StatusEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwise.states.names import CallStatus, ChatState

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


def nulls_in(value: Any) -> bool:
    match value:
        case dict():
            return any(nulls_in(kept) for kept in value.values())
        case list():
            return any(nulls_in(kept) for kept in value)
    return value is None


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_is_read_back_as_it_was_told(event: Event) -> None:
    """A null of a tool's own included."""
    (row,) = rows_of([numbered(event)])
    assert event_of("c", row.seq, row.kind, row.at, row.body, None, None) == numbered(event)


@pytest.mark.parametrize("event", EVENTS[:4], ids=lambda event: event.kind)
def test_a_row_spells_out_nothing_that_was_not_said(event: Event) -> None:
    """There are many rows, and people read them."""
    body = json.loads(body_of(numbered(event)))
    assert not nulls_in(body)
    assert not {"chat_id", "seq", "kind", "at"} & set(body), "columns of their own"
