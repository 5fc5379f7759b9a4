"""Row digests: by them a record covers the chat's own row and the events, which no single write covers.

A row digest is recorded like a write: a kind, an id and a salted digest. The last record of a commit holds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from turnwise.persistence.audit.record import WriteRecord
from turnwise.persistence.rows import FactsRow
from turnwise.states.decide import Decision
from turnwise.states.events import FLEETING
from turnwise.states.values.digests import canonical_row, derived, salted

EVENT_COLUMNS: Final = ("seq", "kind", "step", "attempt", "position", "body")
"""The columns of an event's row that a record covers, in this order; not every store has all of them."""

EventFields = Sequence[Any]
"""An event's row: its number, its kind, and everything else but its time."""


def digested_fields(row: Mapping[str, Any]) -> list[Any]:
    """Return the fields of an event's row that a record covers, in the order of the digest."""
    return [row[name] for name in EVENT_COLUMNS if name in row]


def salt_of_facts(decision: Decision) -> str:
    """Return the salt for the digest of the chat's row after a decision."""
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
