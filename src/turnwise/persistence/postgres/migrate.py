"""Migrates a schema of a PostgreSQL database to this version, while workers run, some of them older."""

from __future__ import annotations

from typing import Final

import asyncpg

from turnwise.persistence.postgres.database import SQL
from turnwise.persistence.sql.migrations import Migration, check_up_to_date, unapplied
from turnwise.states.errors import StoreError

_LOCK: Final = 0x7475726E77697365
"""`turnwise` in ASCII: the advisory lock that a migrating process holds."""
_LOCK_TIMEOUT: Final = "1s"
_AS_LONG_AS_IT_TAKES: Final = 86_400.0
"""Seconds that the client waits for a migration: an index of a large table takes its time."""
_TABLES: Final = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace(quote_ident($1))"


async def migrate(connection: asyncpg.Connection, schema: str, migrations: tuple[Migration, ...]) -> bool:
    """Apply the missing migrations in one transaction.

    Return `False`, with nothing written, if that must wait: for another process that is still doing it, or for one that
    uses a table, as `pg_dump` does for as long as it runs.

    A migration only adds, and never removes or renames, so that workers of the version before can run on. It waits for
    a table's lock no longer than `lock_timeout`, so that other statements never queue behind it for long.

    Raises:
        StoreError: the schema is another program's, of a newer version, or its history differs. Nothing was written.
    """
    if not await _missing(connection, schema, migrations):
        return True
    try:
        async with connection.transaction():
            await _apply_missing(connection, schema, migrations)
    except asyncpg.LockNotAvailableError:
        return False
    return True


async def _apply_missing(connection: asyncpg.Connection, schema: str, migrations: tuple[Migration, ...]) -> None:
    await connection.execute("SET LOCAL statement_timeout = 0")
    await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    missing = await _missing(connection, schema, migrations)
    if missing == migrations:
        if await connection.fetchval("SELECT to_regnamespace(quote_ident($1)) IS NULL", schema):
            await connection.execute(f"CREATE SCHEMA {_quote(schema)}")
        await connection.execute(SQL["create_migrations"].format(schema=_quote(schema)))
    for migration in missing:
        await connection.execute(migration.sql, timeout=_AS_LONG_AS_IT_TAKES)
        sql = "INSERT INTO turnwise_migrations (name, checksum, applied_at) VALUES ($1, $2, now())"
        await connection.execute(sql, migration.name, migration.checksum)


async def check_migrated(connection: asyncpg.Connection, schema: str, migrations: tuple[Migration, ...]) -> None:
    """Check, without writing, that no migration is missing.

    Raises:
        StoreError: one is, or `migrate` would refuse the schema.
    """
    check_up_to_date(await _missing(connection, schema, migrations), migrations, f"schema {schema!r}")


async def _missing(
    connection: asyncpg.Connection, schema: str, migrations: tuple[Migration, ...]
) -> tuple[Migration, ...]:
    where = f"schema {schema!r}"
    tables = [row["relname"] for row in await connection.fetch(_TABLES, schema)]
    if not tables:
        return migrations
    if "turnwise_migrations" not in tables:
        raise StoreError(
            f"{where} belongs to another program (tables: {', '.join(sorted(tables)[:5])}); "
            "name a schema of its own for turnwise with ?schema=; nothing was written"
        )
    # By its full name: in a schema that the user may not use, the server says else that there is no such table.
    sql = f"SELECT name, checksum FROM {_quote(schema)}.turnwise_migrations"  # noqa: S608 - quoted
    rows = await connection.fetch(sql)
    return unapplied({row["name"]: row["checksum"] for row in rows}, migrations, where)


def _quote(schema: str) -> str:
    return '"' + schema.replace('"', '""') + '"'
