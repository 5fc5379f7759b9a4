"""The digests that a record holds, and its aside: what is stored beside it and not in it, because it can be erased.

Row digests cover the chat's own row and the events, which no single write covers. Each is recorded like a write: a
kind, an id and a salted digest. The last record of a commit holds them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from turnwise.persistence.rows import FactsRow
from turnwise.states.decide import Decision
from turnwise.states.events import FLEETING
from turnwise.states.values.digests import canonical_row, derived, salted
from turnwise.states.writes import NoteReason


class WriteRecord(NamedTuple):
    """One write as the log keeps it: its kind, id and digest."""

    kind: str
    id: str
    digest: str


class Aside(NamedTuple):
    """What is stored beside a record: the salts of its digests, and the reason, which can be erased."""

    events: str = ""
    """The salt of the digest of the commit's events."""
    reason: str | None = None
    """The client's reason for an interrupt."""
    salt: str = ""
    """The salt of the reason's digest."""

    def dump(self) -> str | None:
        fields = {name: value for name, value in zip(self._fields, self, strict=True) if value}
        return msgspec.json.encode(fields).decode() if fields else None

    @classmethod
    def load(cls, text: str | None) -> Aside:
        """Return the aside that JSON holds; an empty one for `None`.

        Raises:
            ValueError: the JSON is not an aside.
        """
        if text is None:
            return cls()
        if not isinstance(text, str):
            raise ValueError("a text belongs here")  # noqa: TRY004 - what is stored is wrong
        fields = json.loads(text)
        if not isinstance(fields, dict) or not fields.keys() <= set(cls._fields):
            raise ValueError(f"an object with fields of {', '.join(cls._fields)} belongs here")
        aside = cls(**fields)
        if not isinstance(aside.events, str) or not isinstance(aside.reason, str | None) or type(aside.salt) is not str:
            raise ValueError(f"texts belong into the fields {', '.join(cls._fields)}")
        return aside


def aside_of(decision: Decision, *, covers_events: bool) -> Aside:
    """Return the aside of a decision's record, which may cover the events of its commit."""
    events = salt_of_events(decision) if covers_events else ""
    for write in decision.writes:
        if type(write) is NoteReason:
            return Aside(events, write.reason, write.salt)
    return Aside(events)


def salt_of_events(decision: Decision) -> str:
    return derived(decision.salt, decision.facts.version, "events")


EVENT_COLUMNS: Final = ("seq", "kind", "step", "attempt", "position", "body")
"""The columns of an event's row that a record covers, in this order; not every store has all of them."""

EventFields = Sequence[Any]
"""An event's row: its number, its kind, and everything else but its time."""


def digested_fields(row: Mapping[str, Any]) -> list[Any]:
    """Return the fields of an event's row that a record covers, in the order of the digest."""
    return [row[name] for name in EVENT_COLUMNS if name in row]


def salt_of_facts(decision: Decision) -> str:
    return derived(decision.salt, decision.facts.version, "facts")


def digest_of_chat_row(row: FactsRow, *, since: int, salt: str) -> WriteRecord:
    """Return that of the chat's own row; its id is the number of the last event. `since` is in microseconds."""
    ids = hashlib.sha256(row.calls.encode()).hexdigest()  # its length does not grow with the number of calls
    columns = [row.id, row.state, bool(row.settled), bool(row.archived), row.version, ids]
    return WriteRecord("facts", str(row.last_seq), salted(salt, canonical_row([*columns, row.facts, since])))


def digest_of_events(first: int, last: int, events: Iterable[EventFields], *, salt: str) -> list[WriteRecord]:
    """Return that of the events numbered `first` to `last` without the fleeting ones; nothing if all are."""
    lasting = [event for event in events if event[1] not in FLEETING]
    if not lasting:
        return []
    return [WriteRecord("events", f"{first}-{last}", salted(salt, canonical_row(lasting)))]
