"""Forgeries with write access to the database: a rewritten log with all hashes recomputed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from turnwise.persistence.audit.record import GENESIS, hash_of, record_in
from turnwise.persistence.audit.record import Entry as LogEntry


def rewrite(path: Path, chat_id: str, version: int, *, actor: str) -> None:
    """Forge one transition in a SQLite file, so that the log is valid again."""
    with closing(sqlite3.connect(path)) as database, database:
        prev = GENESIS
        ((chat,),) = database.execute("SELECT number FROM chats WHERE id = ?", (chat_id,))
        rows = database.execute(
            "SELECT version, hash, body, digests FROM audit WHERE chat = ? ORDER BY version", (chat,)
        )
        for number, stored, body, digests in rows.fetchall():
            fields = json.loads(body)
            if number == version:
                assert fields["actor"] != actor
                fields["actor"] = actor
            spelled = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            prev = hash_of(record_in(LogEntry(number, "0" * 64, spelled, digests=digests), chat_id, prev=prev))
            database.execute(
                "UPDATE audit SET body = ?, hash = ? WHERE chat = ? AND version = ?",
                (spelled, bytes.fromhex(prev) if isinstance(stored, bytes) else prev, chat, number),
            )
        head = database.execute("SELECT head FROM chats WHERE id = ?", (chat_id,)).fetchone()[0]
        new = bytes.fromhex(prev) if isinstance(head, bytes) else prev
        database.execute("UPDATE chats SET head = ? WHERE id = ?", (new, chat_id))
