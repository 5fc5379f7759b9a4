"""What a chat store keeps about the blobs that chats hold. Each write belongs into a transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from turnwise.persistence.blobs.protocol import Blob, FilesElsewhere
from turnwise.persistence.sql.database import Row, SQLDatabase
from turnwise.persistence.sql.tombstones import check_not_deleted
from turnwise.persistence.stored_chat import is_hash
from turnwise.states.errors import ChatNotFound


async def kept_in(on: SQLDatabase) -> str | None:
    """Return the name of the file store that keeps the blobs; `None` before the first."""
    row = await on.fetch_one("kept_in")
    return None if row is None else str(row[0])


async def note_file(on: SQLDatabase, chat_id: str, blob: Blob, *, store: str, arriving: bool) -> None:
    """Let a chat hold a blob, as `HeldFiles.note_file` promises.

    The chat is locked meanwhile: a deletion comes before, and is found, or after, and takes this along. It is locked
    first: the row that names the file store is one for all, and no other chat must wait until this one is free.
    """
    is_there = await on.fetch_one("chat_for_file", chat_id=chat_id) is not None
    await on.execute("keep_in", name=store)
    # Other statements: they see what those keep for whom that one has waited.
    name = await kept_in(on)
    if name != store and await on.fetch_one("move_to", name=store) is None:
        raise FilesElsewhere(str(name), store)
    if not is_there:
        await check_not_deleted(on, chat_id)
        if not arriving:
            raise ChatNotFound(chat_id)
    await on.execute("note_file", chat_id=chat_id, digest=blob.digest, size=blob.size, at=await on.now())


async def take_over(on: SQLDatabase, chat_id: str, blobs: Mapping[str, int]) -> None:
    """Let a chat that has arrived hold what its rows refer to."""
    at = await on.now()
    for digest, size in blobs.items():
        await on.execute("take_over", chat_id=chat_id, digest=digest, size=size, at=at)


async def held_files(on: SQLDatabase, chat_id: str, digests: Collection[str] | None) -> dict[str, int]:
    """Return the sizes of the blobs that a chat holds."""
    rows = await on.fetch("held_files", chat_id=chat_id, every=digests is None, digests=[*(digests or ())])
    return {digest: size for digest, size in rows}  # noqa: C416 - mypy knows no pairs here


async def release_others(on: SQLDatabase, chat_id: str, stay: Collection[str]) -> None:
    """Let a chat hold no longer what was sent, but for these blobs."""
    await _note_released(on, await on.fetch("release", chat_id=chat_id, every=False, stay=[*stay]))


async def release_all(on: SQLDatabase, chat_id: str) -> None:
    """Let a chat hold nothing."""
    await _note_released(on, await on.fetch("release", chat_id=chat_id, every=True, stay=[]))


async def release_unsent(on: SQLDatabase, *, seconds: float, limit: int, chat_id: str | None) -> int:
    """Release what was put that long ago, or at any time, and was never sent; return of how many blobs."""
    until = await on.now() - timedelta(seconds=seconds) if seconds else None
    rows = await on.fetch("release_unsent", until=until, limit=limit, chat_id=chat_id)
    await _note_released(on, rows)
    return len(rows)


async def _note_released(on: SQLDatabase, rows: Iterable[Row]) -> None:
    for (digest,) in rows:
        if is_hash(digest):  # what else stands there was garbled, and names no blob
            await on.execute("released", digest=digest)


async def unreferenced_files(on: SQLDatabase, *, limit: int) -> list[tuple[int, str]]:
    """Return the notes of blobs that a chat has released, in order."""
    return [(number, digest) for number, digest in await on.fetch("unreferenced_files", limit=limit)]


async def is_unreferenced(on: SQLDatabase, digest: str) -> bool:
    """Return whether no chat holds a blob."""
    return await on.fetch_one("holder", digest=digest) is None
