"""Files in the database of a chat store: which chat holds which blob, and the blobs themselves, a piece in a row."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

import anyio

from turnwise.persistence.blobs.protocol import (
    SWEPT,
    Blob,
    BlobGone,
    FilesElsewhere,
    FileStore,
    IsUnreferenced,
    Note,
    closing,
    in_pieces,
)
from turnwise.persistence.rows import EPOCH
from turnwise.persistence.sql.database import Row, SQLDatabase
from turnwise.persistence.sql.tombstones import check_not_deleted
from turnwise.persistence.stored_chat import is_hash
from turnwise.states.errors import ChatNotFound, StoreError

Ask = Callable[[Callable[[SQLDatabase], Coroutine[Any, Any, Any]]], Awaitable[Any]]
"""Does a piece of work on a database: inside a transaction, which may be tried again, or in one snapshot."""
AT_ONCE: Final = 16
"""Pieces that are deleted in one transaction, so that other work never waits for it for long."""


class DatabaseFiles(FileStore):
    """Keeps blobs in the database of a chat store, which opens and closes it."""

    name = "database"

    def __init__(self, write: Ask, read: Ask) -> None:
        self._write = write
        self._read = read

    async def open(self) -> None:
        """Do nothing: the chat store opens the database."""

    async def close(self) -> None:
        """Do nothing: the chat store closes the database."""

    async def put(self, content: AsyncIterable[bytes], note: Note) -> Blob:
        """Write the pieces under a place of their own, then give that its name."""
        place, digest, size = secrets.token_hex(16), hashlib.sha256(), 0
        try:
            number = 0
            async with closing(in_pieces(content)) as pieces:
                async for piece in pieces:
                    digest.update(piece)
                    size += len(piece)
                    await self._write(partial(_add, place=place, number=number, piece=piece))
                    number += 1
            blob = Blob(digest.hexdigest(), size)
            await note(blob)
            is_named = await self._write(lambda db: _name(db, place, blob))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clear(place)
            raise
        if not is_named:
            await self._clear(place)
        return blob

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the pieces, each read when it is asked for."""
        size, number = await self.size(digest), 0
        if size is None:
            raise BlobGone(digest)
        while size > 0:
            piece = await self._read(partial(_piece, digest=digest, number=number))
            if piece is None:
                raise BlobGone(digest, "was removed while it was read")
            yield piece
            size -= len(piece)
            number += 1

    async def remove(self, digest: str, is_unreferenced: IsUnreferenced) -> None:  # noqa: ARG002 - the transaction looks for itself
        """Take the name away unless a chat holds the blob, in one transaction, then delete the pieces."""
        place = await self._write(lambda db: _unname(db, digest))
        if place is not None:
            await self._clear(place)

    async def tidy(self, seconds: float) -> None:
        """Delete the pieces of places without a name that got their last piece that long ago."""
        for place in await self._read(lambda db: _unnamed(db, seconds)):
            await self._clear(place)

    async def _clear(self, place: str) -> None:
        while await self._write(lambda db: _clear_some(db, place)):
            pass

    async def size(self, digest: str) -> int | None:
        row = await self._read(lambda db: db.fetch_one("size", digest=digest))
        return None if row is None else int(row[0])


async def _add(db: SQLDatabase, place: str, number: int, piece: bytes) -> None:
    await db.execute("goes_on", place=place, at=await db.now())
    await db.execute("add_piece", place=place, number=number, piece=piece)


async def _name(db: SQLDatabase, place: str, blob: Blob) -> bool:
    """Give the pieces their name, unless others keep it once nothing is taking it away from them any more.

    Raises:
        StoreError: the place was swept.
    """
    if await db.fetch_one("lock_place", place=place) is None:
        row = await db.fetch_one("name_of_blob", digest=blob.digest)
        if row is not None and row[0] == place:
            return True  # by the call before, whose answer was lost
        raise StoreError(SWEPT)
    if not await db.execute("name_blob", digest=blob.digest, place=place, size=blob.size):
        return False
    await db.execute("clear_place", place=place)
    return True


async def _piece(db: SQLDatabase, digest: str, number: int) -> bytes | None:
    row = await db.fetch_one("piece", digest=digest, number=number)
    if row is None:
        return None
    if not isinstance(row[0], bytes):
        raise BlobGone(digest, "is damaged: there is something else than bytes")
    return row[0]


async def _unname(db: SQLDatabase, digest: str) -> str | None:
    """Take the name away unless a chat holds the blob; return the place that has lost it."""
    await db.fetch("lock_name", digest=digest)
    # Another statement: it sees every chat that holds the blob. One that comes later waits for the name.
    row = await db.fetch_one("unname", digest=digest)
    if row is None:
        return None
    await db.execute("goes_on", place=row[0], at=EPOCH)
    return str(row[0])


async def _unnamed(db: SQLDatabase, seconds: float) -> list[str]:
    return await db.fetch_column("old_places", before=await db.now() - timedelta(seconds=seconds))


async def _clear_some(db: SQLDatabase, place: str) -> bool:
    """Delete some pieces of a place that has no name; return whether there may be more."""
    if await db.fetch_one("lock_place", place=place) is None:
        return False  # it has got its name meanwhile, or another process has deleted all of it
    if await db.execute("clear_some", place=place, limit=AT_ONCE) == AT_ONCE:
        return True
    await db.execute("clear_place", place=place)
    return False


async def files_kept_in(db: SQLDatabase) -> str | None:
    """Return the name of the file store that keeps the blobs; `None` before the first."""
    row = await db.fetch_one("kept_in")
    return None if row is None else str(row[0])


async def note_file(db: SQLDatabase, chat_id: str, blob: Blob, *, kept_in: str, arriving: bool = False) -> None:
    """Let a chat hold a blob, as `HeldFiles.note_file` promises.

    The chat is locked meanwhile: a deletion comes before, and is found, or after, and takes this along. It is locked
    first: the row that names the file store is one for all, and no other chat must wait until this one is free.
    """
    is_there = await db.fetch_one("chat_for_file", chat_id=chat_id) is not None
    await db.execute("keep_in", name=kept_in)
    # Other statements: they see what those keep for whom that one has waited.
    name = await files_kept_in(db)
    if name != kept_in and await db.fetch_one("move_to", name=kept_in) is None:
        raise FilesElsewhere(str(name), kept_in)
    if not is_there:
        await check_not_deleted(db, chat_id)
        if not arriving:
            raise ChatNotFound(chat_id)
    await db.execute("note_file", chat_id=chat_id, digest=blob.digest, size=blob.size, at=await db.now())


async def take_over(db: SQLDatabase, chat_id: str, blobs: Mapping[str, int]) -> None:
    """Let a chat that has arrived hold what its rows refer to."""
    at = await db.now()
    for digest, size in blobs.items():
        await db.execute("take_over", chat_id=chat_id, digest=digest, size=size, at=at)


async def held_files(db: SQLDatabase, chat_id: str, digests: Collection[str] | None = None) -> dict[str, int]:
    rows = await db.fetch("held_files", chat_id=chat_id, every=digests is None, digests=[*(digests or ())])
    return {digest: size for digest, size in rows}  # noqa: C416 - mypy knows no pairs here


async def release_others(db: SQLDatabase, chat_id: str, stay: Collection[str]) -> None:
    """Let a chat hold no longer what was sent, but for these blobs."""
    await _note_released(db, await db.fetch("release", chat_id=chat_id, every=False, stay=[*stay]))


async def release_all(db: SQLDatabase, chat_id: str) -> None:
    await _note_released(db, await db.fetch("release", chat_id=chat_id, every=True, stay=[]))


async def release_unsent(db: SQLDatabase, *, seconds: float, limit: int, chat_id: str | None = None) -> int:
    """Release what was put that long ago, or at any time, and was never sent; return of how many blobs."""
    until = await db.now() - timedelta(seconds=seconds) if seconds else None
    rows = await db.fetch("release_unsent", until=until, limit=limit, chat_id=chat_id)
    await _note_released(db, rows)
    return len(rows)


async def _note_released(db: SQLDatabase, rows: Iterable[Row]) -> None:
    for (digest,) in rows:
        if is_hash(digest):  # what else stands there was garbled, and names no blob
            await db.execute("released", digest=digest)
