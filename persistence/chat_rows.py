"""What is stored of a chat, row by row and as it is: the material of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnwise.persistence.audit.record import Entry

Row = Mapping[str, Any]
"""The columns of a row by name: times in microseconds, arrays as lists or as their JSON."""


@dataclass(frozen=True, slots=True)
class ChatRows:
    """The rows of one chat, all seen at one moment. Their columns are called as SQLite's are."""

    chat: Row
    lease: Row | None
    tables: Mapping[str, Sequence[Row]]
    """The rows of profiles, messages, boundaries, calls, queue, receipts, usage and events, in order of their keys."""
    audit: Sequence[Entry]
    """By version."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What this store calls a column: `table.column` by SQLite's `table.column`."""
    parts: str = "events"
    """The table in which this store keeps the parts of replies under way."""
    quarantined: int = 0
    """How many rows repairs have put aside."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stored is not what the audit log says."""

    table: str
    row: str = ""
    """What identifies the row in the chat: an id, a version, a number; empty where there is one only."""
    columns: tuple[str, ...] = ()
    """The columns of which one is wrong; empty where a row is missing, or one too many."""

    def renamed(self, names: Mapping[str, str]) -> Place:
        """Return the place in the words of a store that calls some columns otherwise."""
        columns = tuple(names.get(f"{self.table}.{column}", column) for column in self.columns)
        return replace(self, columns=columns)

    def __str__(self) -> str:
        """Return the place in words."""
        where = f"{self.table}[{self.row}]" if self.row else self.table
        return f"{where}.{'|'.join(self.columns)}" if self.columns else where
