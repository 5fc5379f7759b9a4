"""Tombstones in SQLite: stores and reads what is left of deleted chats, and refuses those who ask for one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from turnwise.persistence.rows import GARBLED, micros_of, time_of
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.tombstone import Tombstone, not_found, tombstone_in
from turnwise.states.errors import ChatDeleted, ChatNotFound

_SQL: Final = statements_of(__name__)
_TOMBSTONE: Final = "SELECT created, deleted, actor, records, head FROM tombstones WHERE id = ?"


def stored_tombstone(connection: sqlite3.Connection, chat_id: str) -> Tombstone | None:
    """Return what is left of a deleted chat; `None` if no chat of that id was deleted."""
    row = connection.execute(_TOMBSTONE, (chat_id,)).fetchone()
    if row is None:
        return None
    created, deleted, *rest = row
    return tombstone_in(chat_id, _time_in(created), _time_in(deleted), *rest)


def _time_in(stored: Any) -> datetime | None:
    try:
        return time_of(stored)
    except GARBLED:
        return None


def deleted_among(connection: sqlite3.Connection, chat_ids: Collection[str]) -> frozenset[str]:
    """Return those of the chats that were deleted."""
    sql = "SELECT id FROM tombstones WHERE id IN (SELECT value FROM json_each(?))"
    return frozenset(chat_id for (chat_id,) in connection.execute(sql, (json.dumps([*chat_ids]),)))


def insert_tombstone(connection: sqlite3.Connection, tombstone: Tombstone) -> None:
    """Store what is to be left of a chat that is still there."""
    created = None if tombstone.created_at is None else micros_of(tombstone.created_at)
    values = (
        created,
        micros_of(tombstone.deleted_at),
        tombstone.actor,
        tombstone.records,
        tombstone.head,
        tombstone.chat_id,
    )
    connection.execute(_SQL["bury"], values)


def missing(connection: sqlite3.Connection, chat_id: str) -> ChatNotFound:
    """Return the error for a chat that is not there: `ChatDeleted` if it was."""
    return not_found(chat_id, stored_tombstone(connection, chat_id))


def check_not_deleted(connection: sqlite3.Connection, chat_id: str) -> None:
    """Check that no chat of that id was deleted.

    Raises:
        ChatDeleted: there was one.
    """
    error = missing(connection, chat_id)
    if isinstance(error, ChatDeleted):
        raise error
