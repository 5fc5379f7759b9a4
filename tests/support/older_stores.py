"""Stores as older versions left them: the dumps that `persistence/upgrades/make_dumps.py` made, loaded again."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import asyncpg

from support.sql_by_hand import by_hand

DUMPS: Final = Path(__file__).parents[1] / "persistence" / "upgrades" / "dumps"
NAMES: Final = sorted(file.name.removesuffix(".sql.gz") for file in DUMPS.glob("*.sql.gz"))
OLDEST: Final = ("sqlite-0001_chats", "postgres-0001_chats")
KEY: Final = b"the key of these lives"
"""What the exports of the dumps are signed with."""

_COLUMNS: Final = """
SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default, is_identity
FROM information_schema.columns WHERE table_schema = current_schema() ORDER BY 1, 3
"""
_INDEXES: Final = """
SELECT replace(indexdef, current_schema() || '.', '') FROM pg_indexes WHERE schemaname = current_schema() ORDER BY 1
"""
_CONSTRAINTS: Final = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = current_schema()::regnamespace ORDER BY 1, 2
"""
_TABLES: Final = """
SELECT relname, relpersistence::text, reloptions::text FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' ORDER BY 1
"""


def dump(name: str) -> str:
    """Return the SQL of a store."""
    return gzip.decompress((DUMPS / f"{name}.sql.gz").read_bytes()).decode()


def seen(name: str) -> dict[str, dict[str, Any]]:
    """Return what the version that left a store saw of each of its chats, by their ids."""
    known: dict[str, dict[str, Any]] = json.loads(gzip.decompress((DUMPS / f"{name}.json.gz").read_bytes()))
    return known


async def load(name: str, url: str) -> None:
    """Make the database that a URL names what an older version left."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("PRAGMA journal_mode = wal")
            connection.executescript(dump(name))
        return
    server, _, schema = url.rpartition("schema=")
    connection = await asyncpg.connect(server.rstrip("?&"))
    try:
        await connection.execute(dump(name).replace("lived_before", schema))
    finally:
        await connection.close()


async def schema_of(url: str) -> list[list[tuple[Any, ...]]]:
    """Return everything that a database declares, so that two may be compared."""
    if url.startswith("sqlite:///"):
        rows = await by_hand(url, "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
        return [[(*names, " ".join((sql or "").split())) for *names, sql in rows]]
    return [await by_hand(url, sql) for sql in (_COLUMNS, _INDEXES, _CONSTRAINTS, _TABLES)]


async def migrations_of(url: str) -> list[str]:
    """Return the names of the migrations that a database has had."""
    return [name for (name,) in await by_hand(url, "SELECT name FROM turnwise_migrations ORDER BY name")]
