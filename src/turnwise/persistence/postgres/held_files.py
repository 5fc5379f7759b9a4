"""What PostgreSQL keeps about the blobs that chats hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

import asyncpg

from turnwise.persistence.blobs.protocol import Blob, FilesElsewhere
from turnwise.persistence.postgres.tombstones import check_not_deleted
from turnwise.persistence.sql.statements import statements_of
from turnwise.states.errors import ChatNotFound

KEPT_IN: Final = "SELECT name FROM file_store"
_SQL: Final = statements_of(__name__)
_LOCK: Final = "SELECT id FROM chats WHERE id = $1 FOR SHARE"


async def note(
    connection: asyncpg.Connection, chat_id: str, blob: Blob, *, kept_in: str, now: datetime | None, arriving: bool
) -> None:
    """Let a chat hold a blob, as `HeldFiles.note_file` promises.

    The chat is locked meanwhile: a deletion comes before, and is found, or after, and takes this along. It is locked
    first: the row that names the file store is one for all, and nobody else must wait until this chat is free.
    """
    async with connection.transaction():
        is_there = await connection.fetchval(_LOCK, chat_id) is not None
        await connection.execute(_SQL["keep_in"], kept_in)
        # Other statements: they see what those keep for whom that one has waited.
        name = await connection.fetchval(KEPT_IN)
        if name != kept_in and await connection.fetchval(_SQL["move_to"], kept_in) is None:
            raise FilesElsewhere(name, kept_in)
        if not is_there:
            await check_not_deleted(connection, chat_id)
            if not arriving:
                raise ChatNotFound(chat_id)
        await connection.execute(_SQL["note"], chat_id, blob.digest, blob.size, now)


async def take_over(connection: asyncpg.Connection, chat_id: str, blobs: Mapping[str, int], *, at: datetime) -> None:
    """Let a chat that has arrived hold what its rows refer to."""
    await connection.executemany(_SQL["take_over"], [(chat_id, digest, size, at) for digest, size in blobs.items()])


async def held(connection: asyncpg.Connection, chat_id: str, digests: Collection[str] | None) -> dict[str, int]:
    """Return the blobs that a chat holds."""
    rows = await connection.fetch(_SQL["held"], chat_id, None if digests is None else [*digests])
    return {row["digest"]: row["size"] for row in rows}


async def let_others_go(connection: asyncpg.Connection, chat_id: str, stay: Collection[str]) -> None:
    """Let a chat hold no longer what was sent, but for these blobs."""
    await connection.execute(_SQL["let_go"], chat_id, [*stay])


async def let_all_go(connection: asyncpg.Connection, chat_id: str) -> None:
    """Let a chat hold nothing."""
    await connection.execute(_SQL["let_go"], chat_id, None)


async def let_unsent_go(
    connection: asyncpg.Connection, *, now: datetime | None, seconds: float, limit: int, chat_id: str | None
) -> int:
    """Let go of what was put that long ago and was never sent."""
    done = await connection.execute(_SQL["let_unsent_go"], now, seconds, chat_id, limit)
    return int(done.rpartition(" ")[2])
