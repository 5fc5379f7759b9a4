"""Converts events to rows; `event_of` converts them back.

A body holds what the columns do not. Content is stored once, with its message: the event of a message or of a tool
result holds only the message's position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from turnwise.persistence.audit.digests import EventFields
from turnwise.persistence.rows import micros_of, unnumbered
from turnwise.states.events import Event, MessageEvent, PartEvent, ToolResultEvent
from turnwise.states.messages import Message


class EventRow(NamedTuple):
    """The columns of `events`, but for the chat."""

    seq: int
    kind: str
    at: int
    step: int | None
    attempt: int | None
    position: int | None
    body: str

    @property
    def digested_fields(self) -> EventFields:
        """The fields that an audit record covers, in the order of the digest."""
        return (self.seq, self.kind, self.step, self.attempt, self.position, self.body)


def rows_of(events: Sequence[Event]) -> list[EventRow]:
    """Return the rows of the numbered events that one transaction stores, all of one time."""
    if not events:
        return []
    messages = [event.message for event in events if isinstance(event, MessageEvent)]
    assert events[0].at is not None  # noqa: S101 - numbering gives the time
    at = micros_of(events[0].at)
    return [_to_row(event, at, messages) for event in events]


def body_of(event: Event, *, without: str = "") -> str:
    """Return the body of an event's row: without the field `without`, and without what its columns say."""
    bare: Any = unnumbered(event)
    if without:
        bare = msgspec.to_builtins(bare)
        del bare[without]
    spelled = msgspec.json.encode(bare).decode()
    return "{" + spelled.removeprefix(f'{{"kind":"{event.kind}"').removeprefix(",")


def _to_row(event: Event, at: int, messages: Iterable[Message]) -> EventRow:
    step, attempt, position, elsewhere = None, None, None, ""
    match event:
        case PartEvent():
            step, attempt = event.step, event.attempt
        case MessageEvent():
            position, elsewhere = event.message.position, "message"
        case ToolResultEvent():
            position = _find_position(event, messages)
            elsewhere = "" if position is None else "output"
    body = body_of(event, without=elsewhere)
    return EventRow(event.seq, event.kind, at, step, attempt, position, body)


def _find_position(event: ToolResultEvent, messages: Iterable[Message]) -> int | None:
    for message in messages:
        result = message.result
        if result is not None and result.call_id == event.call_id and result.output == event.output:
            return message.position
    return None
