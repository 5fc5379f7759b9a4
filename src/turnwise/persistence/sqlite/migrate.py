"""Migrates a SQLite database to the schema of this version; refuses a database that is not turnwise's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from turnwise.logger import logger
from turnwise.persistence.sql.migrations import Migration, check_up_to_date, unapplied
from turnwise.persistence.sqlite.connection import BUSY_TIMEOUT_S, is_contention, retry_while_busy
from turnwise.persistence.sqlite.database import SQL
from turnwise.states.errors import StoreError

APPLICATION_ID: Final = 0x7475726E
"""What the header of a turnwise database says: `turn` in ASCII."""

_BEGIN: Final = "BEGIN IMMEDIATE"


def migrate(connection: sqlite3.Connection, path: str, migrations: tuple[Migration, ...]) -> None:
    """Apply the missing migrations in one transaction.

    Raises:
        StoreError: the database is another program's, of a newer version, or its schema's history differs; or another
            process, which is upgrading it most likely, has held it for too long. Nothing was written.
    """
    if not _missing(connection, path, migrations):
        return
    _begin(connection, path)
    try:
        for migration in _missing(connection, path, migrations):
            _apply(connection, migration)
        retry_while_busy(lambda: connection.execute("COMMIT"))
    except BaseException:
        if connection.in_transaction:  # where the disk is full, SQLite has rolled back by itself
            connection.execute("ROLLBACK")
        raise


def _begin(connection: sqlite3.Connection, path: str) -> None:
    """Begin to write; if another process does, say so, and wait for it.

    Raises:
        StoreError: it goes on for too long.
    """
    try:
        connection.execute(_BEGIN)
    except sqlite3.OperationalError as error:
        if not is_contention(error):
            raise
    else:
        return
    logger.info("migration_awaited", path=path)
    try:
        retry_while_busy(lambda: connection.execute(_BEGIN))
    except sqlite3.OperationalError as error:
        if not is_contention(error):
            raise
        raise StoreError(
            f"the store {path!r} does not have the schema of this version yet, and another process has held it for"
            f" longer than {BUSY_TIMEOUT_S:g} s, most likely to upgrade it: try again when that is done; nothing was"
            " written",
            passing=True,
        ) from error


def check_migrated(connection: sqlite3.Connection, path: str, migrations: tuple[Migration, ...]) -> None:
    """Check, without writing, that no migration is missing.

    Raises:
        StoreError: one is, or `migrate` would refuse the database.
    """
    check_up_to_date(_missing(connection, path, migrations), migrations, repr(path))


def _missing(connection: sqlite3.Connection, path: str, migrations: tuple[Migration, ...]) -> tuple[Migration, ...]:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if application_id == 0 and not tables:
        return migrations
    if application_id != APPLICATION_ID or "turnwise_migrations" not in tables:
        first = ", ".join(sorted(tables)[:5]) or "none"
        raise StoreError(
            f"{path!r} is the database of another program (application id {application_id:#x}, tables: {first}); "
            "name a path that does not exist yet, or a turnwise database; nothing was written"
        )
    applied = dict(connection.execute("SELECT name, checksum FROM turnwise_migrations"))
    return unapplied(applied, migrations, repr(path))


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(SQL["create_migrations"])
    for statement in _statements(migration.sql):
        connection.execute(statement)
    sql = "INSERT INTO turnwise_migrations (name, checksum, applied_at) VALUES (?, ?, ?)"
    connection.execute(sql, (migration.name, migration.checksum, datetime.now(UTC).isoformat()))


def _statements(sql: str) -> Iterator[str]:
    """Yield the statements one by one: `executescript` would commit first."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
