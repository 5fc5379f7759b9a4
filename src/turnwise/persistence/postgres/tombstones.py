"""Tombstones in PostgreSQL: stores and reads what is left of deleted chats, and refuses those who ask for one."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

import asyncpg

from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.tombstone import Tombstone, not_found, tombstone_in
from turnwise.states.errors import ChatDeleted, ChatNotFound

_SQL: Final = statements_of(__name__)
_TOMBSTONE: Final = "SELECT created, deleted, actor, records, head FROM tombstones WHERE id = $1"


async def stored_tombstone(connection: asyncpg.Connection, chat_id: str) -> Tombstone | None:
    """Return what is left of a deleted chat; `None` if no chat of that id was deleted."""
    row = await connection.fetchrow(_TOMBSTONE, chat_id)
    if row is None:
        return None
    created, deleted, *rest = row
    times = (time if isinstance(time, datetime) else None for time in (created, deleted))
    return tombstone_in(chat_id, *times, *rest)


async def deleted_among(connection: asyncpg.Connection, chat_ids: Collection[str]) -> frozenset[str]:
    """Return those of the chats that were deleted."""
    rows = await connection.fetch("SELECT id FROM tombstones WHERE id = ANY ($1)", [*chat_ids])
    return frozenset(row["id"] for row in rows)


async def insert_tombstone(connection: asyncpg.Connection, tombstone: Tombstone) -> None:
    """Store what is to be left of a chat that is still there."""
    values = (
        tombstone.chat_id,
        tombstone.created_at,
        tombstone.deleted_at,
        tombstone.actor,
        tombstone.records,
        tombstone.head,
    )
    await connection.execute(_SQL["bury"], *values)


async def missing(connection: asyncpg.Connection, chat_id: str) -> ChatNotFound:
    """Return the error for a chat that is not there: `ChatDeleted` if it was."""
    return not_found(chat_id, await stored_tombstone(connection, chat_id))


async def check_not_deleted(connection: asyncpg.Connection, chat_id: str) -> None:
    """Check that no chat of that id was deleted.

    Raises:
        ChatDeleted: there was one.
    """
    error = await missing(connection, chat_id)
    if isinstance(error, ChatDeleted):
        raise error
