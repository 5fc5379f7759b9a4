"""Bringing a SQLite database to the schema of this version, and refusing every database that is not turnwise's."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from typing import Final, NamedTuple

from turnwise.states.errors import StoreError

APPLICATION_ID: Final = 0x7475726E
"""What the header of a turnwise database says: `turn` in ASCII."""

_MIGRATIONS_TABLE: Final = """
CREATE TABLE IF NOT EXISTS turnwise_migrations (
    name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at TEXT NOT NULL
) WITHOUT ROWID
"""


class Migration(NamedTuple):
    """One step of the schema: a file of SQL that never changes once released."""

    name: str
    script: str

    @property
    def checksum(self) -> str:
        """The SHA-256, hex, of the script."""
        return hashlib.sha256(self.script.encode()).hexdigest()


def migrations() -> tuple[Migration, ...]:
    """Return every migration that this version knows, in order."""
    folder = resources.files("turnwise.persistence") / "sql" / "sqlite"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8")) for file in files)


def migrate(connection: sqlite3.Connection, path: str, known: tuple[Migration, ...]) -> None:
    """Apply the migrations that are missing, all in one transaction.

    Raises:
        StoreError: the database is another program's, of a newer version, or its schema's history differs.
            Nothing was written.
    """
    if not _missing(connection, path, known):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for migration in _missing(connection, path, known):
            _apply(connection, migration)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _missing(connection: sqlite3.Connection, path: str, known: tuple[Migration, ...]) -> tuple[Migration, ...]:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if application_id == 0 and not tables:
        return known
    if application_id != APPLICATION_ID or "turnwise_migrations" not in tables:
        found = ", ".join(sorted(tables)[:5]) or "none"
        raise StoreError(
            f"{path!r} is the database of another program (application id {application_id:#x}, tables: {found}); "
            "name a path that does not exist yet, or a turnwise database; nothing was written"
        )
    applied = dict(connection.execute("SELECT name, checksum FROM turnwise_migrations"))
    unknown = sorted(applied.keys() - {migration.name for migration in known})
    if unknown:
        raise StoreError(
            f"{path!r} was written by a newer version of turnwise (migrations not known here: {', '.join(unknown)}); "
            "install that version; nothing was written"
        )
    for migration in known:
        if applied.get(migration.name, migration.checksum) != migration.checksum:
            raise StoreError(
                f"{path!r}: migration {migration.name} was applied in another form than this version's; "
                "install the version that applied it; nothing was written"
            )
    return tuple(migration for migration in known if migration.name not in applied)


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(_MIGRATIONS_TABLE)
    for statement in _statements(migration.script):
        connection.execute(statement)
    sql = "INSERT INTO turnwise_migrations (name, checksum, applied_at) VALUES (?, ?, ?)"
    connection.execute(sql, (migration.name, migration.checksum, datetime.now(UTC).isoformat()))


def _statements(script: str) -> Iterator[str]:
    """Yield the statements one by one: `executescript` would commit first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
