"""Keeps blobs in the database of a chat store, a piece of them in each row. Every transaction may be tried again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from turnwise.persistence.blobs.protocol import SWEPT, Blob, BlobGone
from turnwise.persistence.blobs.row_files import AT_ONCE, RowFiles
from turnwise.persistence.sql.database import SQLDatabase
from turnwise.states.errors import StoreError

Ask = Callable[[Callable[[SQLDatabase], Awaitable[Any]]], Awaitable[Any]]
"""Does a piece of work on a database: inside a transaction, or in one snapshot."""
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DatabaseFiles(RowFiles):
    """Keeps blobs in the database of a chat store."""

    def __init__(self, write: Ask, read: Ask) -> None:
        self._write = write
        self._read = read

    async def _add(self, place: str, number: int, piece: bytes) -> None:
        async def add(on: SQLDatabase) -> None:
            await on.execute("goes_on", place=place, at=await on.now())
            await on.execute("add_piece", place=place, number=number, piece=piece)

        await self._write(add)

    async def _name(self, place: str, blob: Blob) -> bool:
        async def name(on: SQLDatabase) -> bool:
            """Give the pieces their name, unless others keep it once nothing is taking it away from them any more."""
            if await on.fetch_one("lock_place", place=place) is None:
                row = await on.fetch_one("name_of_blob", digest=blob.digest)
                if row is not None and row[0] == place:
                    return True  # by the call before, whose answer was lost
                raise StoreError(SWEPT)
            if not await on.execute("name_blob", digest=blob.digest, place=place, size=blob.size):
                return False
            await on.execute("clear_place", place=place)
            return True

        is_named: bool = await self._write(name)
        return is_named

    async def _piece(self, digest: str, number: int) -> bytes | None:
        row = await self._read(lambda on: on.fetch_one("piece", digest=digest, number=number))
        if row is None:
            return None
        if not isinstance(row[0], bytes):
            raise BlobGone(digest, "is damaged: there is something else than bytes")
        return row[0]

    async def size(self, digest: str) -> int | None:
        """Return the size of all pieces that are there; none of them is read."""
        row = await self._read(lambda on: on.fetch_one("size", digest=digest))
        return None if row is None else int(row[0])

    async def _unname(self, digest: str) -> str | None:
        async def unname(on: SQLDatabase) -> str | None:
            await on.fetch("lock_name", digest=digest)
            # Another statement: it sees every chat that holds the blob. One that comes later waits for the name.
            row = await on.fetch_one("unname", digest=digest)
            if row is None:
                return None
            await on.execute("goes_on", place=row[0], at=_LONG_AGO)
            return str(row[0])

        place: str | None = await self._write(unname)
        return place

    async def _left(self, seconds: float) -> list[str]:
        async def left(on: SQLDatabase) -> list[str]:
            before = await on.now() - timedelta(seconds=seconds)
            return [place for (place,) in await on.fetch("old_places", before=before)]

        places: list[str] = await self._read(left)
        return places

    async def _clear_some(self, place: str) -> bool:
        async def clear(on: SQLDatabase) -> bool:
            if await on.fetch_one("lock_place", place=place) is None:
                return False  # it has got its name meanwhile, or another process has deleted all of it
            if await on.execute("clear_some", place=place, limit=AT_ONCE) == AT_ONCE:
                return True
            await on.execute("clear_place", place=place)
            return False

        may_be_more: bool = await self._write(clear)
        return may_be_more
