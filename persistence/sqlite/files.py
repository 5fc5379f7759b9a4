"""Keeps blobs in SQLite, a piece of them in each row."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final

import anyio

from turnwise.persistence.files.pieces import in_pieces
from turnwise.persistence.files.protocol import Blob, BlobGone, FileStore, IsLoose, Note
from turnwise.persistence.rows import micros_of
from turnwise.states.errors import StoreError

Ask = Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]
"""Does a piece of work on a connection: inside a transaction, or in one snapshot."""

_AT_ONCE: Final = 16
"""Pieces that are deleted in one transaction, so that other work never waits for it for long."""
_GOES_ON: Final = """
INSERT INTO blob_remains (place, at) VALUES (?, ?) ON CONFLICT (place) DO UPDATE SET at = excluded.at
"""
_PIECE: Final = "INSERT INTO blob_pieces (place, number, data) VALUES (?, ?, ?)"
_NAME: Final = "INSERT INTO blobs (digest, place, size) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING"
_READ: Final = """
SELECT data FROM blobs JOIN blob_pieces USING (place) WHERE digest = ? AND number = ?
"""
_UNNAME: Final = """
DELETE FROM blobs WHERE digest = ?1 AND NOT EXISTS (SELECT 1 FROM chat_files WHERE digest = ?1) RETURNING place
"""
_CLEAR: Final = """
DELETE FROM blob_pieces WHERE rowid IN (SELECT rowid FROM blob_pieces WHERE place = ? LIMIT ?)
"""


class SQLiteFiles(FileStore):
    """Keeps blobs in the database of a SQLite store, which opens and closes it."""

    def __init__(self, write: Ask, read: Ask, now: Callable[[], datetime]) -> None:
        self._write = write
        self._read = read
        self._now = now

    name = "database"

    async def open(self) -> None:
        """Do nothing: the chat store opens the database."""

    async def close(self) -> None:
        """Do nothing: the chat store closes the database."""

    async def put(self, content: AsyncIterable[bytes], note: Note) -> Blob:
        """Write the pieces under a place of their own, then give that its name."""
        place, found, size = secrets.token_hex(16), hashlib.sha256(), 0
        try:
            number = 0
            async for piece in in_pieces(content):
                found.update(piece)
                size += len(piece)
                await self._add(place, number, piece)
                number += 1
            blob = Blob(found.hexdigest(), size)
            await note(blob)
            named = await self._write(lambda on: self._name(on, place, blob))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clear(place)
            raise
        if not named:
            await self._clear(place)
        return blob

    async def _add(self, place: str, number: int, piece: bytes) -> None:
        def add(connection: sqlite3.Connection) -> None:
            connection.execute(_GOES_ON, (place, micros_of(self._now())))
            connection.execute(_PIECE, (place, number, piece))

        await self._write(add)

    @staticmethod
    def _name(connection: sqlite3.Connection, place: str, blob: Blob) -> bool:
        """Give the pieces their name; return whether no others have it."""
        if not connection.execute("SELECT 1 FROM blob_remains WHERE place = ?", (place,)).fetchone():
            raise StoreError("the pieces of a file were swept while it was put: it went on too slowly; put it again")
        if not connection.execute(_NAME, (blob.digest, place, blob.size)).rowcount:
            return False
        connection.execute("DELETE FROM blob_remains WHERE place = ?", (place,))
        return True

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the pieces, each read when it is asked for."""
        size, number = await self.size(digest), 0
        if size is None:
            raise BlobGone(digest)
        while size > 0:
            piece = await self._piece(digest, number)
            if piece is None:
                raise BlobGone(digest, "was removed while it was read")
            yield piece
            size -= len(piece)
            number += 1

    async def _piece(self, digest: str, number: int) -> bytes | None:
        row = await self._read(lambda on: on.execute(_READ, (digest, number)).fetchone())
        return None if row is None else bytes(row[0])

    async def size(self, digest: str) -> int | None:
        """Return the size that was noted with the name."""
        sql = "SELECT size FROM blobs WHERE digest = ?"
        row = await self._read(lambda on: on.execute(sql, (digest,)).fetchone())
        return None if row is None else int(row[0])

    async def remove(self, digest: str, is_loose: IsLoose) -> None:  # noqa: ARG002 - the transaction looks for itself
        """Take the name away unless a chat holds the blob, in one transaction, then delete the pieces."""
        place = await self._write(lambda on: self._unname(on, digest))
        if place is not None:
            await self._clear(place)

    def _unname(self, connection: sqlite3.Connection, digest: str) -> str | None:
        row = connection.execute(_UNNAME, (digest,)).fetchone()
        if row is None:
            return None
        connection.execute(_GOES_ON, (row[0], 0))
        return str(row[0])

    async def tidy(self, seconds: float) -> None:
        """Delete the pieces of places without a name that got their last piece that long ago."""
        before = micros_of(self._now() - timedelta(seconds=seconds))
        sql = "SELECT place FROM blob_remains WHERE at <= ?"
        for (place,) in await self._read(lambda on: on.execute(sql, (before,)).fetchall()):
            await self._clear(place)

    async def _clear(self, place: str) -> None:
        """Delete the pieces of a place that has no name."""
        while await self._write(lambda on: self._clear_some(on, place)):
            pass

    @staticmethod
    def _clear_some(connection: sqlite3.Connection, place: str) -> bool:
        """Delete some pieces; return whether there may be more."""
        if not connection.execute("SELECT 1 FROM blob_remains WHERE place = ?", (place,)).fetchone():
            return False  # it has got its name meanwhile, or somebody else has deleted all of it
        if connection.execute(_CLEAR, (place, _AT_ONCE)).rowcount == _AT_ONCE:
            return True
        connection.execute("DELETE FROM blob_remains WHERE place = ?", (place,))
        return False
