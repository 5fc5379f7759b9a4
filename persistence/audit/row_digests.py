"""Bonds: what a record says of rows that no single write stands for, the chat's own row and the events.

A bond is a write like any other: a kind, an id and a salted digest. The last record of a commit holds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from turnwise.persistence.audit.record import WriteRecord
from turnwise.persistence.rows import FactsRow
from turnwise.states.decide import Decision
from turnwise.states.digests import canonical, derived, salted

FLEETING: Final = frozenset({"part", "tool_progress"})
"""The kinds of events that show work under way. They may be pruned, and a finished message says what they said."""

EVENT_COLUMNS: Final = ("seq", "kind", "step", "attempt", "position", "body")
"""Of the row of an event, all that a record binds, in this order; not every store has each of them."""

EventFields = Sequence[Any]
"""Of the row of an event: its number, kind, and everything else in it but its time."""


def fields_bound(row: Mapping[str, Any]) -> list[Any]:
    """Return what a record binds of the row of an event, in the order in which it is bound."""
    return [row[name] for name in EVENT_COLUMNS if name in row]


def salt_of_facts(decision: Decision) -> str:
    """Return the salt of the digest of the chat's row, as a decision leaves it."""
    return derived(decision.salt, decision.facts.version, "facts")


def bond_of_facts(row: FactsRow, *, since: int, salt: str) -> WriteRecord:
    """Return what binds the chat's own row, known by the number of its last event: `since` is in microseconds."""
    columns = [row.id, row.state, bool(row.settled), bool(row.archived), row.version, _digest_of(row.calls)]
    return WriteRecord("facts", str(row.last_seq), salted(salt, canonical([*columns, row.facts, since])))


def _digest_of(call_ids: str) -> str:
    """Return what stands for the ids of the calls: of the same length however many they are."""
    return hashlib.sha256(call_ids.encode()).hexdigest()


def bond_of_events(first: int, last: int, events: Iterable[EventFields], *, salt: str) -> list[WriteRecord]:
    """Return what binds the events numbered `first` to `last`, apart from the fleeting ones; nothing if all are."""
    lasting = [list(event) for event in events if event[1] not in FLEETING]
    if not lasting:
        return []
    return [WriteRecord("events", f"{first}-{last}", salted(salt, canonical(lasting)))]
