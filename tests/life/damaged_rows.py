"""Damage: one value of one row of one chat, changed by SQL behind the backs of all who have the file open."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

UNTOLD: Final = {("leases", "worker", "poison")}
"""What no one can tell from what turnwise writes: any word may be a worker's name."""
_IDENTITY: Final = {("chats", "id"), ("chats", "number")}
_COLUMNS: Final = """
SELECT tables.name, columns.name, columns.pk > 0 FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite%' AND tables.name NOT LIKE 'turnwise%'
AND tables.name NOT IN ('quarantine', 'tombstones') ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Place:
    """A value in a file."""

    table: str
    column: str
    key: Mapping[str, Any]
    """Names the row."""

    def read(self, file: Path) -> Any:
        """Return what stands there."""
        sql = f"SELECT {self.column} FROM {self.table} WHERE {self._where}"  # noqa: S608
        with closing(sqlite3.connect(file)) as on:
            return on.execute(sql, (*self.key.values(),)).fetchone()[0]

    def write(self, file: Path, value: Any) -> Place:
        """Let something else stand there, and return where that is now."""
        sql = f"UPDATE {self.table} SET {self.column} = ? WHERE {self._where}"  # noqa: S608
        with closing(sqlite3.connect(file)) as on, on:
            assert on.execute(sql, (value, *self.key.values())).rowcount == 1
        return replace(self, key={**self.key, self.column: value}) if self.column in self.key else self

    @property
    def _where(self) -> str:
        return " AND ".join(f"{name} IS ?" for name in self.key)


def columns_of(file: Path, chat_id: str) -> dict[tuple[str, str], list[Place]]:
    """Return every value of a chat's rows by table and column, but for what says whose they are."""
    found: dict[tuple[str, str], list[Place]] = {}
    with closing(sqlite3.connect(file)) as on:
        columns = on.execute(_COLUMNS).fetchall()
        of_chats = {"chats", *(table for table, column, _ in columns if column == "chat_id")}
        for table, column, _ in columns:
            if table not in of_chats:
                continue
            key = [name for other, name, in_key in columns if other == table and in_key]
            named = "id" if table == "chats" else "chat_id"
            sql = f"SELECT {', '.join(key)} FROM {table} WHERE {named} = ? ORDER BY {', '.join(key)}"  # noqa: S608
            rows = on.execute(sql, (chat_id,)).fetchall()
            if rows and column != "chat_id" and (table, column) not in _IDENTITY:
                found[table, column] = [Place(table, column, dict(zip(key, row, strict=True))) for row in rows]
    return found


def copied(file: Path, to: Path) -> Path:
    """Copy a file as it stands, its write-ahead log included."""
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)
    return to
