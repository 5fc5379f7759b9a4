"""What SQLite keeps about the blobs that chats hold. Each function belongs into a transaction, or a snapshot."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from typing import Final

from turnwise.persistence.files.protocol import Blob, FilesElsewhere
from turnwise.persistence.sqlite.tombstones import check_not_deleted
from turnwise.states.errors import ChatNotFound

KEPT_IN: Final = "SELECT name FROM file_store"
_KEEP_IN: Final = """
INSERT INTO file_store (one, name) VALUES (1, ?)
ON CONFLICT (one) DO UPDATE SET name = excluded.name
WHERE NOT EXISTS (SELECT 1 FROM chat_files) AND NOT EXISTS (SELECT 1 FROM loose_files)
"""
_NOTE: Final = """
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (?, ?, ?, 0, ?)
ON CONFLICT (chat_id, digest) DO UPDATE SET at = excluded.at
"""
_TAKE_OVER: Final = """
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (?, ?, ?, 1, ?)
ON CONFLICT (chat_id, digest) DO UPDATE SET sent = 1
"""
_IS_DIGEST: Final = "typeof(digest) = 'text' AND length(digest) = 64"
"""What is true unless somebody garbled the row, which then is of no use to anybody."""
_LOOSEN: Final = f"INSERT INTO loose_files (digest) SELECT digest FROM chat_files WHERE {_IS_DIGEST}"  # noqa: S608 - ours
_LOOSE: Final = f"SELECT chat_id, digest FROM chat_files WHERE sent = 0 AND at <= ? AND {_IS_DIGEST}"  # noqa: S608 - ours
_UNSENT: Final = f"{_LOOSE} ORDER BY at LIMIT ?"
_UNSENT_OF_CHAT: Final = f"{_LOOSE} AND chat_id = ?"


def note(connection: sqlite3.Connection, chat_id: str, blob: Blob, *, kept_in: str, at: int, arriving: bool) -> None:
    """Let a chat hold a blob, as `HeldFiles.note_file` promises."""
    connection.execute(_KEEP_IN, (kept_in,))
    (known,) = connection.execute(KEPT_IN).fetchone()
    if known != kept_in:
        raise FilesElsewhere(known, kept_in)
    if not connection.execute("SELECT 1 FROM chats WHERE id = ?", (chat_id,)).fetchone():
        check_not_deleted(connection, chat_id)
        if not arriving:
            raise ChatNotFound(chat_id)
    connection.execute(_NOTE, (chat_id, blob.digest, blob.size, at))


def take_over(connection: sqlite3.Connection, chat_id: str, blobs: Mapping[str, int], *, at: int) -> None:
    """Let a chat that has arrived hold what its rows refer to."""
    rows = [(chat_id, digest, size, at) for digest, size in blobs.items()]
    connection.executemany(_TAKE_OVER, rows)


def held(connection: sqlite3.Connection, chat_id: str, digests: Collection[str] | None) -> dict[str, int]:
    """Return the blobs that a chat holds."""
    sql, values = "SELECT digest, size FROM chat_files WHERE chat_id = ?", [chat_id]
    if digests is not None:
        sql += " AND digest IN (SELECT value FROM json_each(?))"
        values.append(json.dumps([*digests]))
    return dict(connection.execute(sql, values).fetchall())


def let_go(connection: sqlite3.Connection, chat_id: str, digests: Collection[str]) -> None:
    """Let a chat hold these blobs no longer."""
    which = "chat_id = ? AND digest IN (SELECT value FROM json_each(?))"
    values = (chat_id, json.dumps([*digests]))
    connection.execute(f"{_LOOSEN} AND {which}", values)
    connection.execute(f"DELETE FROM chat_files WHERE {which}", values)  # noqa: S608 - ours


def let_others_go(connection: sqlite3.Connection, chat_id: str, stay: Collection[str]) -> None:
    """Let a chat hold no longer what was sent, but for these blobs."""
    sql = f"SELECT digest FROM chat_files WHERE chat_id = ? AND sent = 1 AND {_IS_DIGEST}"  # noqa: S608 - ours
    let_go(connection, chat_id, {digest for (digest,) in connection.execute(sql, (chat_id,))} - {*stay})


def let_all_go(connection: sqlite3.Connection, chat_id: str) -> None:
    """Let a chat hold nothing."""
    connection.execute(f"{_LOOSEN} AND chat_id = ?", (chat_id,))
    connection.execute("DELETE FROM chat_files WHERE chat_id = ?", (chat_id,))


def let_unsent_go(connection: sqlite3.Connection, *, until: int, limit: int, chat_id: str | None) -> int:
    """Let go of what was put until then and was never sent."""
    if chat_id is None:
        found = connection.execute(_UNSENT, (until, limit)).fetchall()
    else:
        found = connection.execute(_UNSENT_OF_CHAT, (until, chat_id)).fetchall()
    for holder, digest in found:
        let_go(connection, holder, [digest])
    return len(found)
