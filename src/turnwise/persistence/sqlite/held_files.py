"""What SQLite keeps about the blobs that chats hold. Each function belongs into a transaction, or a snapshot."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from typing import Final

from turnwise.persistence.blobs.protocol import Blob, FilesElsewhere
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.sqlite.tombstones import check_not_deleted
from turnwise.states.errors import ChatNotFound

KEPT_IN: Final = "SELECT name FROM file_store"
_SQL: Final = statements_of(__name__)
_NO_LIMIT: Final = -1


def note(connection: sqlite3.Connection, chat_id: str, blob: Blob, *, kept_in: str, at: int, arriving: bool) -> None:
    """Let a chat hold a blob, as `HeldFiles.note_file` promises."""
    connection.execute(_SQL["keep_in"], (kept_in,))
    (name,) = connection.execute(KEPT_IN).fetchone()
    if name != kept_in:
        raise FilesElsewhere(name, kept_in)
    if not connection.execute("SELECT 1 FROM chats WHERE id = ?", (chat_id,)).fetchone():
        check_not_deleted(connection, chat_id)
        if not arriving:
            raise ChatNotFound(chat_id)
    connection.execute(_SQL["note"], (chat_id, blob.digest, blob.size, at))


def take_over(connection: sqlite3.Connection, chat_id: str, blobs: Mapping[str, int], *, at: int) -> None:
    """Let a chat that has arrived hold what its rows refer to."""
    rows = [(chat_id, digest, size, at) for digest, size in blobs.items()]
    connection.executemany(_SQL["take_over"], rows)


def held(connection: sqlite3.Connection, chat_id: str, digests: Collection[str] | None) -> dict[str, int]:
    """Return the blobs that a chat holds."""
    sql, values = "SELECT digest, size FROM chat_files WHERE chat_id = ?", [chat_id]
    if digests is not None:
        sql += " AND digest IN (SELECT value FROM json_each(?))"
        values.append(json.dumps([*digests]))
    return dict(connection.execute(sql, values).fetchall())


def let_go(connection: sqlite3.Connection, chat_id: str, digests: Collection[str]) -> None:
    """Let a chat hold these blobs no longer."""
    values = (chat_id, json.dumps([*digests]))
    connection.execute(_SQL["loosen"], values)
    sql = "DELETE FROM chat_files WHERE chat_id = ? AND digest IN (SELECT value FROM json_each(?))"
    connection.execute(sql, values)


def let_others_go(connection: sqlite3.Connection, chat_id: str, stay: Collection[str]) -> None:
    """Let a chat hold no longer what was sent, but for these blobs."""
    let_go(connection, chat_id, {digest for (digest,) in connection.execute(_SQL["sent"], (chat_id,))} - {*stay})


def let_all_go(connection: sqlite3.Connection, chat_id: str) -> None:
    """Let a chat hold nothing."""
    connection.execute(_SQL["loosen_all"], (chat_id,))
    connection.execute("DELETE FROM chat_files WHERE chat_id = ?", (chat_id,))


def let_unsent_go(connection: sqlite3.Connection, *, until: int | None, limit: int, chat_id: str | None) -> int:
    """Let go of what was put until then, or at any time, and was never sent."""
    values = {"until": until, "chat_id": chat_id, "limit": limit if chat_id is None else _NO_LIMIT}
    unsent = connection.execute(_SQL["unsent"], values).fetchall()
    for holder, digest in unsent:
        let_go(connection, holder, [digest])
    return len(unsent)
