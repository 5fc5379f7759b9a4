"""Keeps blobs in SQLite, a piece of them in each row."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final

from turnwise.persistence.blobs.protocol import SWEPT, Blob, BlobGone
from turnwise.persistence.blobs.row_files import AT_ONCE, RowFiles
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sql.statements import statements_of
from turnwise.states.errors import StoreError

Ask = Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]
"""Does a piece of work on a connection: inside a transaction, or in one snapshot."""

_SQL: Final = statements_of(__name__)
_PIECE: Final = "INSERT INTO blob_pieces (place, number, data) VALUES (?, ?, ?)"
_NAME: Final = "INSERT INTO blobs (digest, place, size) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING"
_READ: Final = "SELECT data FROM blobs JOIN blob_pieces USING (place) WHERE digest = ? AND number = ?"
_CLEAR: Final = "DELETE FROM blob_pieces WHERE rowid IN (SELECT rowid FROM blob_pieces WHERE place = ? LIMIT ?)"


class SQLiteFiles(RowFiles):
    """Keeps blobs in the database of a SQLite store."""

    def __init__(self, write: Ask, read: Ask, now: Callable[[], datetime]) -> None:
        self._write = write
        self._read = read
        self._now = now

    async def _add(self, place: str, number: int, piece: bytes) -> None:
        def add(connection: sqlite3.Connection) -> None:
            connection.execute(_SQL["goes_on"], (place, micros_of(self._now())))
            connection.execute(_PIECE, (place, number, piece))

        await self._write(add)

    async def _name(self, place: str, blob: Blob) -> bool:
        is_named: bool = await self._write(lambda on: _name(on, place, blob))
        return is_named

    async def _piece(self, digest: str, number: int) -> bytes | None:
        row = await self._read(lambda on: on.execute(_READ, (digest, number)).fetchone())
        if row is None:
            return None
        if not isinstance(row[0], bytes):
            raise BlobGone(digest, "is damaged: there is something else than bytes")
        return row[0]

    async def size(self, digest: str) -> int | None:
        """Return the size of all pieces that are there; none of them is read."""
        row = await self._read(lambda on: on.execute(_SQL["size"], (digest,)).fetchone())
        return None if row is None else int(row[0])

    async def _unname(self, digest: str) -> str | None:
        place: str | None = await self._write(lambda on: _unname(on, digest))
        return place

    async def _left(self, seconds: float) -> list[str]:
        before = micros_of(self._now() - timedelta(seconds=seconds))
        sql = "SELECT place FROM blob_remains WHERE at <= ?"
        return [place for (place,) in await self._read(lambda on: on.execute(sql, (before,)).fetchall())]

    async def _clear_some(self, place: str) -> bool:
        may_be_more: bool = await self._write(lambda on: _clear_some(on, place))
        return may_be_more


def _name(connection: sqlite3.Connection, place: str, blob: Blob) -> bool:
    if not connection.execute("SELECT 1 FROM blob_remains WHERE place = ?", (place,)).fetchone():
        raise StoreError(SWEPT)
    if not connection.execute(_NAME, (blob.digest, place, blob.size)).rowcount:
        return False
    connection.execute("DELETE FROM blob_remains WHERE place = ?", (place,))
    return True


def _unname(connection: sqlite3.Connection, digest: str) -> str | None:
    row = connection.execute(_SQL["unname"], {"digest": digest}).fetchone()
    if row is None:
        return None
    connection.execute(_SQL["goes_on"], (row[0], 0))
    return str(row[0])


def _clear_some(connection: sqlite3.Connection, place: str) -> bool:
    if not connection.execute("SELECT 1 FROM blob_remains WHERE place = ?", (place,)).fetchone():
        return False  # it has got its name meanwhile, or somebody else has deleted all of it
    if connection.execute(_CLEAR, (place, AT_ONCE)).rowcount == AT_ONCE:
        return True
    connection.execute("DELETE FROM blob_remains WHERE place = ?", (place,))
    return False
