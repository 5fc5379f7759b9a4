"""What PostgreSQL keeps about the blobs that chats hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

import asyncpg

from turnwise.persistence.files.protocol import Blob, FilesElsewhere
from turnwise.persistence.postgres.tombstones import check_not_deleted
from turnwise.states.errors import ChatNotFound

KEPT_IN: Final = "SELECT name FROM file_store"
_KEEP_IN: Final = """
INSERT INTO file_store (one, name) VALUES (1, $1)
ON CONFLICT (one) DO UPDATE SET name = excluded.name
WHERE file_store.name <> excluded.name
  AND NOT EXISTS (SELECT FROM chat_files) AND NOT EXISTS (SELECT FROM loose_files)
"""
_LOCK: Final = "SELECT id FROM chats WHERE id = $1 FOR SHARE"
_NOTE: Final = """
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES ($1, $2, $3, false, coalesce($4, clock_timestamp()))
ON CONFLICT (chat_id, digest) DO UPDATE SET at = excluded.at
"""
_TAKE_OVER: Final = """
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES ($1, $2, $3, true, $4)
ON CONFLICT (chat_id, digest) DO UPDATE SET sent = true
"""
_HELD: Final = """
SELECT digest, size FROM chat_files WHERE chat_id = $1 AND ($2::text[] IS NULL OR digest = ANY ($2))
"""
_LET_GO: Final = """
WITH gone AS (
    DELETE FROM chat_files WHERE chat_id = $1 AND ($2::text[] IS NULL OR (sent AND digest <> ALL ($2))) RETURNING digest
)
INSERT INTO loose_files (digest) SELECT digest FROM gone
"""
_LET_UNSENT_GO: Final = """
WITH due AS (
    SELECT chat_id, digest FROM chat_files
    WHERE NOT sent AND at <= coalesce($1, clock_timestamp()) - make_interval(secs => $2)
      AND ($3::text IS NULL OR chat_id = $3)
    ORDER BY at LIMIT $4 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM chat_files USING due
    WHERE chat_files.chat_id = due.chat_id AND chat_files.digest = due.digest RETURNING due.digest
)
INSERT INTO loose_files (digest) SELECT digest FROM gone
"""


async def note(
    connection: asyncpg.Connection, chat_id: str, blob: Blob, *, kept_in: str, now: datetime | None, arriving: bool
) -> None:
    """Let a chat hold a blob, as `HeldFiles.note_file` promises.

    The chat is locked meanwhile: a deletion comes before, and is found, or after, and takes this along.
    """
    async with connection.transaction():
        await connection.execute(_KEEP_IN, kept_in)
        known = await connection.fetchval(KEPT_IN)
        if known != kept_in:
            raise FilesElsewhere(known, kept_in)
        if await connection.fetchval(_LOCK, chat_id) is None:
            await check_not_deleted(connection, chat_id)
            if not arriving:
                raise ChatNotFound(chat_id)
        await connection.execute(_NOTE, chat_id, blob.digest, blob.size, now)


async def take_over(connection: asyncpg.Connection, chat_id: str, blobs: Mapping[str, int], *, at: datetime) -> None:
    """Let a chat that has arrived hold what its rows refer to."""
    await connection.executemany(_TAKE_OVER, [(chat_id, digest, size, at) for digest, size in blobs.items()])


async def held(connection: asyncpg.Connection, chat_id: str, digests: Collection[str] | None) -> dict[str, int]:
    """Return the blobs that a chat holds."""
    rows = await connection.fetch(_HELD, chat_id, None if digests is None else [*digests])
    return {row["digest"]: row["size"] for row in rows}


async def let_others_go(connection: asyncpg.Connection, chat_id: str, stay: Collection[str]) -> None:
    """Let a chat hold no longer what was sent, but for these blobs."""
    await connection.execute(_LET_GO, chat_id, [*stay])


async def let_all_go(connection: asyncpg.Connection, chat_id: str) -> None:
    """Let a chat hold nothing."""
    await connection.execute(_LET_GO, chat_id, None)


async def let_unsent_go(
    connection: asyncpg.Connection, *, now: datetime | None, seconds: float, limit: int, chat_id: str | None
) -> int:
    """Let go of what was put that long ago and was never sent."""
    done = await connection.execute(_LET_UNSENT_GO, now, seconds, chat_id, limit)
    return int(done.rpartition(" ")[2])
