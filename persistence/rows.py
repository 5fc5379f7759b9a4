"""How chats are spelled in rows: facts, messages, calls and events as columns and JSON, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json

from turnwise.states.calls import ToolCall
from turnwise.states.effects import RecordReceipt, RecordUsage
from turnwise.states.errors import StoreError
from turnwise.states.events import Event, event_adapter
from turnwise.states.facts import Facts, Lease, Profile
from turnwise.states.messages import FORMAT, Message, QueuedMessage
from turnwise.states.names import ChatState

_T = TypeVar("_T")


class Body(Generic[_T]):
    """One kind of value as the JSON of a `body` column."""

    def __init__(self, what: str, adapter: TypeAdapter[_T], *, nulls: bool = True) -> None:
        self._what = what
        self._adapter = adapter
        self._nulls = nulls

    def dump(self, value: _T) -> str:
        """Return the value as JSON: without the fields that are `None`, if this kind spells out no `nulls`."""
        return self._adapter.serializer.to_json(value, exclude_none=not self._nulls).decode()

    def load(self, body: str) -> _T:
        """Return the value that a body holds.

        Raises:
            StoreError: it holds something else.
        """
        try:
            return self._adapter.validate_json(body)
        except ValueError as error:
            raise unreadable(self._what, str(error)) from error


PROFILES: Final = Body("profile", TypeAdapter(Profile))
MESSAGES: Final = Body("message", TypeAdapter(Message))
CALLS: Final = Body("call", TypeAdapter(ToolCall))
QUEUE: Final = Body("queued message", TypeAdapter(QueuedMessage))
RECEIPTS: Final = Body("receipt", TypeAdapter(RecordReceipt))
USAGE: Final = Body("usage", TypeAdapter(RecordUsage), nulls=False)
EVENTS: Final = Body("event", event_adapter)


class FactsRow(NamedTuple):
    """The columns of `chats` that hold facts."""

    id: str
    state: str
    settled: bool
    archived: bool
    version: int
    calls: str
    """The ids of the calls that the facts remember, as a JSON array: not every call of the step is one of them."""
    facts: str


_facts: Final = TypeAdapter(Facts)
_IN_COLUMNS: Final = {"chat_id", "state", "stored_state", "settled", "archived", "version"}
_IN_TABLES: Final = {"profile", "calls", "queue", "lease"}
_ELSEWHERE: Final = _IN_COLUMNS | _IN_TABLES
_STATES: Final = frozenset(ChatState)


def row_of(facts: Facts) -> FactsRow:
    """Return the columns that hold the facts; profile, calls, queue and lease have tables of their own."""
    return FactsRow(
        facts.chat_id,
        facts.stored_state or facts.state.value,
        facts.settled,
        facts.archived,
        facts.version,
        json.dumps([call.call_id for call in facts.calls]) if facts.calls else "[]",
        _facts.dump_json(facts, exclude=_ELSEWHERE, exclude_defaults=True).decode(),
    )


def facts_of(
    row: FactsRow, profile: str, calls: Iterable[ToolCall], queue: Iterable[QueuedMessage], lease: Lease | None
) -> Facts:
    """Return the facts that a row of `chats` and what belongs to it hold.

    Raises:
        StoreError: they hold something else.
    """
    known = row.state in _STATES
    columns = {
        "chat_id": row.id,
        "state": row.state if known else ChatState.error,
        "stored_state": None if known else row.state,
        "settled": bool(row.settled),
        "archived": bool(row.archived),
        "version": row.version,
    }
    try:
        facts = _facts.validate_python({**from_json(row.facts), **columns, "profile": from_json(profile)})
    except ValueError as error:
        raise unreadable(f"facts of chat {row.id!r}", str(error)) from error
    return dataclasses.replace(facts, calls=tuple(calls), queue=tuple(queue), lease=lease)


def blank_facts(chat_id: str, at: datetime) -> Facts:
    """Return the facts of a chat that does not exist yet."""
    return Facts(chat_id=chat_id, profile=Profile(created_at=at))


def message_of(form: int, body: str) -> Message:
    """Return the message that a body of the format `form` holds.

    Raises:
        StoreError: it is of a format that this version does not know.
    """
    if form != FORMAT:
        raise unreadable("message", f"it has format {form}, this version of turnwise reads format {FORMAT}")
    return MESSAGES.load(body)


def numbered(events: Sequence[Event], *, chat_id: str, after: int, at: datetime) -> tuple[Event, ...]:
    """Return the events as they are stored: with chat, time, and numbers from `after` + 1 on."""
    return tuple(
        type(event)(**{**event.__dict__, "seq": seq, "chat_id": chat_id, "at": at})
        for seq, event in enumerate(events, start=after + 1)
    )


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def micros_of(time: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def time_of(micros: int) -> datetime:
    """Return the time that is `micros` microseconds after 1970, in UTC."""
    return _EPOCH + micros * _MICROSECOND


def unreadable(what: str, why: Any) -> StoreError:
    """Return the error that says that something stored is not what turnwise stored."""
    return StoreError(f"the stored {what} cannot be read: {why}")
