"""Direct access to a store: SQL, and the bytes of its files."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg


async def by_hand(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Execute one statement in the database of a store's URL; return its rows."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as on, on:
            return on.execute(sql).fetchall()
    server, _, schema = url.rpartition("schema=")
    connection = await asyncpg.connect(server.rstrip("?&"), server_settings={"search_path": schema})
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


def poison_facts(path: Path, chat_id: str) -> None:
    """Make a chat of a SQLite file unreadable."""
    with closing(sqlite3.connect(path)) as on, on:
        on.execute("UPDATE chats SET facts = 'poison' WHERE id = ?", (chat_id,))


async def stored_text(url: str) -> str:
    """Return all content of a database: every byte of SQLite's files, every row of PostgreSQL's tables."""
    if url.startswith("sqlite:///"):
        return raw(Path(url.removeprefix("sqlite:///"))).decode("latin-1")
    of_the_schema = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
    names = [name for (name,) in await by_hand(url, of_the_schema)]
    return "".join([str(await by_hand(url, f'SELECT "{name}"::text FROM "{name}"')) for name in names])  # noqa: S608


def raw(path: Path) -> bytes:
    """Return every byte of the database's files."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()) if file.name.startswith(path.name))
