"""Keeps blobs in PostgreSQL, a piece of them in each row. Every transaction may be tried again."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable
from datetime import datetime
from typing import Final

import anyio
import asyncpg

from turnwise.persistence.files.pieces import in_pieces
from turnwise.persistence.files.protocol import Blob, BlobGone, FileStore, IsLoose, Note
from turnwise.persistence.postgres.pool import Pool
from turnwise.states.errors import StoreError

_AT_ONCE: Final = 16
"""Pieces that are deleted in one transaction."""
_ADD: Final = """
WITH goes_on AS (
    INSERT INTO blob_remains (place, at) VALUES ($1, coalesce($4, clock_timestamp()))
    ON CONFLICT (place) DO UPDATE SET at = excluded.at
)
INSERT INTO blob_pieces (place, number, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
"""
_LOCK: Final = "SELECT place FROM blob_remains WHERE place = $1 FOR UPDATE"
_NAME: Final = "INSERT INTO blobs (digest, place, size) VALUES ($1, $2, $3) ON CONFLICT (digest) DO NOTHING"
_NAMED: Final = "SELECT place FROM blobs WHERE digest = $1"
_READ: Final = "SELECT data FROM blobs JOIN blob_pieces USING (place) WHERE digest = $1 AND number = $2"
_UNNAME: Final = """
WITH gone AS (
    DELETE FROM blobs WHERE digest = $1 AND NOT EXISTS (SELECT FROM chat_files WHERE digest = $1) RETURNING place
)
INSERT INTO blob_remains (place, at) SELECT place, 'epoch' FROM gone RETURNING place
"""
_LEFT: Final = "SELECT place FROM blob_remains WHERE at <= coalesce($1, clock_timestamp()) - make_interval(secs => $2)"
_CLEAR: Final = """
DELETE FROM blob_pieces WHERE place = $1 AND number IN (
    SELECT number FROM blob_pieces WHERE place = $1 ORDER BY number LIMIT $2)
"""
_CLEARED: Final = f"DELETE {_AT_ONCE}"


class PostgresFiles(FileStore):
    """Keeps blobs in the schema of a PostgreSQL store, which opens and closes the connections."""

    def __init__(self, pool: Pool, now: Callable[[], datetime] | None) -> None:
        self._pool = pool
        self._handed_in = now

    name = "database"

    async def open(self) -> None:
        """Do nothing: the chat store opens the connections."""

    async def close(self) -> None:
        """Do nothing: the chat store closes the connections."""

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
            named = await self._pool.run(lambda on: self._name(on, place, blob))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clear(place)
            raise
        if not named:
            await self._clear(place)
        return blob

    async def _add(self, place: str, number: int, piece: bytes) -> None:
        await self._pool.run(lambda on: on.execute(_ADD, place, number, piece, self._now))

    @staticmethod
    async def _name(connection: asyncpg.Connection, place: str, blob: Blob) -> bool:
        """Give the pieces their name; return whether no others have it.

        The insertion waits for whoever is taking the name away from others.
        """
        async with connection.transaction():
            if await connection.fetchval(_LOCK, place) is None:
                if await connection.fetchval(_NAMED, blob.digest) == place:
                    return True  # by the call before, whose answer was lost
                raise StoreError(
                    "the pieces of a file were swept while it was put: it went on too slowly; put it again"
                )
            if await connection.execute(_NAME, blob.digest, place, blob.size) != "INSERT 0 1":
                return False
            await connection.execute("DELETE FROM blob_remains WHERE place = $1", place)
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
        found: bytes | None = await self._pool.run(lambda on: on.fetchval(_READ, digest, number))
        return found

    async def size(self, digest: str) -> int | None:
        """Return the size that was noted with the name."""
        found: int | None = await self._pool.run(
            lambda on: on.fetchval("SELECT size FROM blobs WHERE digest = $1", digest)
        )
        return found

    async def remove(self, digest: str, is_loose: IsLoose) -> None:  # noqa: ARG002 - the statement looks for itself
        """Take the name away unless a chat holds the blob, in one statement, then delete the pieces."""
        place = await self._pool.run(lambda on: on.fetchval(_UNNAME, digest))
        if place is not None:
            await self._clear(place)

    async def tidy(self, seconds: float) -> None:
        """Delete the pieces of places without a name that got their last piece that long ago."""
        for row in await self._pool.run(lambda on: on.fetch(_LEFT, self._now, seconds)):
            await self._clear(row["place"])

    @property
    def _now(self) -> datetime | None:
        """The time of the test's clock; `None` for the database's."""
        return None if self._handed_in is None else self._handed_in()

    async def _clear(self, place: str) -> None:
        """Delete the pieces of a place that has no name."""
        while await self._pool.run(lambda on: self._clear_some(on, place)):
            pass

    @staticmethod
    async def _clear_some(connection: asyncpg.Connection, place: str) -> bool:
        """Delete some pieces; return whether there may be more."""
        async with connection.transaction():
            if await connection.fetchval(_LOCK, place) is None:
                return False  # it has got its name meanwhile, or somebody else has deleted all of it
            if await connection.execute(_CLEAR, place, _AT_ONCE) == _CLEARED:
                return True
            await connection.execute("DELETE FROM blob_remains WHERE place = $1", place)
            return False
