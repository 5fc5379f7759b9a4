"""Keeps blobs in PostgreSQL, a piece of them in each row. Every transaction may be tried again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import asyncpg

from turnwise.persistence.blobs.protocol import SWEPT, Blob
from turnwise.persistence.blobs.row_files import AT_ONCE, RowFiles
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.sql.statements import statements_of
from turnwise.states.errors import StoreError

_SQL: Final = statements_of(__name__)
_LOCK: Final = "SELECT place FROM blob_remains WHERE place = $1 FOR UPDATE"
_NAMED: Final = "SELECT place FROM blobs WHERE digest = $1"
_READ: Final = "SELECT data FROM blobs JOIN blob_pieces USING (place) WHERE digest = $1 AND number = $2"
_LEFT: Final = "SELECT place FROM blob_remains WHERE at <= coalesce($1, clock_timestamp()) - make_interval(secs => $2)"
_CLEARED: Final = f"DELETE {AT_ONCE}"


class PostgresFiles(RowFiles):
    """Keeps blobs in the schema of a PostgreSQL store."""

    def __init__(self, pool: Pool, now: Callable[[], datetime] | None) -> None:
        self._pool = pool
        self._handed_in = now

    @property
    def _now(self) -> datetime | None:
        """The time of the test's clock; `None` for the database's."""
        return None if self._handed_in is None else self._handed_in()

    async def _add(self, place: str, number: int, piece: bytes) -> None:
        await self._pool.write(lambda on: on.execute(_SQL["add"], place, number, piece, self._now))

    async def _name(self, place: str, blob: Blob) -> bool:
        return await self._pool.write(lambda on: _name(on, place, blob))

    async def _piece(self, digest: str, number: int) -> bytes | None:
        piece: bytes | None = await self._pool.run(lambda on: on.fetchval(_READ, digest, number))
        return piece

    async def size(self, digest: str) -> int | None:
        """Return the size of all pieces that are there; none of them is read."""
        size: int | None = await self._pool.run(lambda on: on.fetchval(_SQL["size"], digest))
        return size

    async def _unname(self, digest: str) -> str | None:
        return await self._pool.write(lambda on: _unname(on, digest))

    async def _left(self, seconds: float) -> list[str]:
        return [row["place"] for row in await self._pool.run(lambda on: on.fetch(_LEFT, self._now, seconds))]

    async def _clear_some(self, place: str) -> bool:
        return await self._pool.write(lambda on: _clear_some(on, place))


async def _name(connection: asyncpg.Connection, place: str, blob: Blob) -> bool:
    """Give the pieces of a place their name, unless others keep it once nobody is taking it away from them any more."""
    async with connection.transaction():
        if await connection.fetchval(_LOCK, place) is None:
            if await connection.fetchval(_NAMED, blob.digest) == place:
                return True  # by the call before, whose answer was lost
            raise StoreError(SWEPT)
        if await connection.execute(_SQL["name"], blob.digest, place, blob.size) != "INSERT 0 1":
            return False
        await connection.execute("DELETE FROM blob_remains WHERE place = $1", place)
        return True


async def _unname(connection: asyncpg.Connection, digest: str) -> str | None:
    async with connection.transaction():
        await connection.execute(f"{_NAMED} FOR UPDATE", digest)
        # Another statement: it sees every chat that holds the blob. One that comes later waits for the name.
        place: str | None = await connection.fetchval(_SQL["unname"], digest)
        return place


async def _clear_some(connection: asyncpg.Connection, place: str) -> bool:
    async with connection.transaction():
        if await connection.fetchval(_LOCK, place) is None:
            return False  # it has got its name meanwhile, or somebody else has deleted all of it
        if await connection.execute(_SQL["clear"], place, AT_ONCE) == _CLEARED:
            return True
        await connection.execute("DELETE FROM blob_remains WHERE place = $1", place)
        return False
