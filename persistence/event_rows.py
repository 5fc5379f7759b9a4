"""Converts events to rows of SQLite and back.

A body holds what the columns do not. Content is stored once, with its message: the event of a message or of a tool
result holds only the message's position.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from turnwise.persistence.audit.row_digests import EventFields
from turnwise.persistence.rows import EVENTS, GARBLED, message_of, micros_of, time_of, unnumbered, unreadable
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import Event, MessageEvent, PartEvent, ToolResultEvent
from turnwise.states.messages import Message, without_metadata


class EventRow(NamedTuple):
    """The columns of `events`."""

    chat_id: str
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
    return [_row_of(event, at, messages) for event in events]


def body_of(event: Event, *, without: str = "") -> str:
    """Return the body of an event's row: without the field `without`, and without what its columns say."""
    bare: Any = unnumbered(event)
    if without:
        bare = msgspec.to_builtins(bare)
        del bare[without]
    spelled = msgspec.json.encode(bare).decode()
    return "{" + spelled.removeprefix(f'{{"kind":"{event.kind}"').removeprefix(",")


def event_of(  # noqa: PLR0913, PLR0917 - the columns of a row
    chat_id: str, seq: int, kind: str, at: int | None, body: str, form: int | None, message: str | None
) -> Event:
    """Return the event that a row and the message it points at hold.

    Raises:
        ChatUnreadable: they do not hold a valid event.
    """
    try:
        if at is not None:
            columns = json.dumps({"kind": kind, "chat_id": chat_id, "seq": seq, "at": time_of(at).isoformat()})
            body = columns if body == "{}" else f"{columns[:-1]},{body[1:]}"
        if message is None:
            return EVENTS.load(body, chat_id)
        stored = message_of(form, message, chat_id)
        if kind == "message":
            content = {"message": msgspec.to_builtins(without_metadata(stored))}
        else:
            content = {"output": None if stored.result is None else stored.result.output}
        return cast("Event", msgspec.convert({**msgspec.json.decode(body), **content}, Event))
    except ChatUnreadable:
        raise
    except GARBLED as error:
        raise unreadable(chat_id, "events.body", error) from None


def _row_of(event: Event, at: int, messages: Iterable[Message]) -> EventRow:
    step, attempt, position, elsewhere = None, None, None, ""
    match event:
        case PartEvent():
            step, attempt = event.step, event.attempt
        case MessageEvent():
            position, elsewhere = event.message.position, "message"
        case ToolResultEvent():
            position = _position_of(event, messages)
            elsewhere = "" if position is None else "output"
    body = body_of(event, without=elsewhere)
    return EventRow(event.chat_id, event.seq, event.kind, at, step, attempt, position, body)


def _position_of(event: ToolResultEvent, messages: Iterable[Message]) -> int | None:
    """Return the position of the message that holds the event's result."""
    for message in messages:
        result = message.result
        if result is not None and result.call_id == event.call_id and result.output == event.output:
            return message.position
    return None
