"""The stored rows of a chat, as they are, for a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from turnwise.persistence.audit.record import Entry

ORDER: Final = {
    "profiles": "chat_id",
    "messages": "position",
    "boundaries": "position",
    "calls": "step, idx",
    "queue": "rank",
    "receipts": "client_id",
    "usage": "version, number",
    "events": "seq",
}
"""By table, the columns by which a check wants the rows ordered."""
Row = Mapping[str, Any]
"""The columns of a row by name: times in microseconds, arrays as lists or as their JSON."""


@dataclass(frozen=True, slots=True)
class ChatRows:
    """The rows of one chat, all of one moment. The columns have the names that SQLite's store gives them."""

    chat: Row
    lease: Row | None
    tables: Mapping[str, Sequence[Row]]
    """The rows of the tables in `ORDER`."""
    audit: Sequence[Entry]
    """By version."""
    names: Mapping[str, str] = field(default_factory=dict)
    """This store's own names of columns: `table.column` by SQLite's `table.column`."""
    parts: str = "events"
    """The table in which this store keeps the parts of replies under way."""
    quarantined: int = 0
    """How many rows repairs have put aside."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a stored value that is not what the audit log says."""

    table: str
    row: str = ""
    """Identifies the row in the chat: an id, a version or a number; empty where there is only one row."""
    columns: tuple[str, ...] = ()
    """Columns of which at least one is wrong; empty for a row that is missing or too many."""

    def renamed(self, names: Mapping[str, str]) -> Place:
        """Return the place with a store's own names of columns."""
        columns = tuple(names.get(f"{self.table}.{column}", column) for column in self.columns)
        return replace(self, columns=columns)

    def __str__(self) -> str:
        """Return the place as `table[row].column`."""
        where = f"{self.table}[{self.row}]" if self.row else self.table
        return f"{where}.{'|'.join(self.columns)}" if self.columns else where
