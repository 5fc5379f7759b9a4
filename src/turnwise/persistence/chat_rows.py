"""The stored rows of a chat, as they are, for a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from turnwise.persistence.audit.record import Entry

ORDER: Final = {
    "profiles": "chat",
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


class ChatRows(msgspec.Struct, frozen=True):
    """The rows of one chat, all of one moment. The columns have the names that SQLite's store gives them."""

    chat: Row
    lease: Row | None
    tables: Mapping[str, Sequence[Row]]
    """The rows of the tables in `ORDER`."""
    audit: Sequence[Entry]
    """By version."""
    names: Mapping[str, str] = {}
    """This store's own names of tables and columns: `table`, or `table.column`, by SQLite's."""
    parts: str = "events"
    """The table in which this store keeps the parts of replies under way."""
    quarantined: int = 0
    """How many rows repairs have put aside."""


class Place(NamedTuple):
    """The place of a stored value that is not what the audit log says."""

    table: str
    row: str = ""
    """Identifies the row in the chat: an id, a version or a number; empty where there is only one row."""
    columns: tuple[str, ...] = ()
    """Columns of which at least one is wrong; empty for a row that is missing or too many."""

    def renamed(self, names: Mapping[str, str]) -> Place:
        """Return the place by a store's own names of tables and columns."""
        own = [names.get(f"{self.table}.{column}", f"{self.table}.{column}") for column in self.columns]
        tables = {name.partition(".")[0] for name in own} or {names.get(self.table, self.table)}
        table = tables.pop() if len(tables) == 1 else self.table
        return Place(table, self.row, tuple(name.removeprefix(f"{table}.") for name in own))

    def __str__(self) -> str:
        """Return the place as `table[row].column`."""
        where = f"{self.table}[{self.row}]" if self.row else self.table
        return f"{where}.{'|'.join(self.columns)}" if self.columns else where
