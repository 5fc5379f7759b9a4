"""Frees a database's files of the bytes of what was deleted."""

from __future__ import annotations

import sqlite3
from typing import Final

import anyio

from turnwise.persistence.sqlite.connection import Connection

VACUUMED: Final = 32 * 1024 * 1024
"""Up to how many bytes a database is written anew. It takes a fifth of a second, and others wait."""
_ATTEMPTS: Final = 500
"""How often it is tried to empty the write-ahead log while others read."""
_PAUSE: Final = 0.02
"""Seconds between two attempts."""


async def scrub(writer: Connection) -> bool:
    """Write a database that is not large anew, then empty the write-ahead log; return whether both were done.

    SQLite overwrites deleted rows with zeros, but no copies of them that it left where it moved rows between pages.
    """
    rewritten = await writer.run(_rewrite)
    for _ in range(_ATTEMPTS):
        busy, _, _ = await writer.run(lambda on: on.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
        if not busy:
            return rewritten
        await anyio.sleep(_PAUSE)
    return False


def _rewrite(on: sqlite3.Connection) -> bool:
    """Write a database anew, unless it is large; return whether nothing is left in it but its rows.

    It may number rows anew in tables that have no number of their own: nothing uses those beyond its transaction.
    """
    size = on.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0]
    if size > VACUUMED:
        return False
    on.execute("PRAGMA temp_store = MEMORY")  # or the copy that VACUUM makes would be in a file elsewhere
    try:
        on.execute("VACUUM")
    finally:
        on.execute("PRAGMA temp_store = DEFAULT")
    return True
