"""Reads the rows of a chat from SQLite as they are stored, for a check."""

from __future__ import annotations

import sqlite3

from turnwise.persistence.audit.record import Entry
from turnwise.persistence.chat_rows import ORDER, ChatRows
from turnwise.persistence.sqlite.raw_rows import fetched
from turnwise.persistence.sqlite.tombstones import missing


def rows_of_chat(connection: sqlite3.Connection, chat_id: str) -> ChatRows:
    """Return the rows of a chat."""
    chats = fetched(connection, "SELECT * FROM chats WHERE id = ?", chat_id)
    if not chats:
        raise missing(connection, chat_id)
    tables = {
        table: fetched(connection, f"SELECT * FROM {table} WHERE chat_id = ? ORDER BY {order}", chat_id)  # noqa: S608 - ours
        for table, order in ORDER.items()
    }
    for message in tables["messages"]:
        message["erased"] = bool(message["erased"])
    leases = fetched(connection, "SELECT * FROM leases WHERE chat_id = ?", chat_id)
    sql = "SELECT version, lower(hex(hash)), body, aside FROM audit WHERE chat_id = ? ORDER BY version"
    entries = [Entry._make(row) for row in connection.execute(sql, (chat_id,)).fetchall()]
    (aside,) = connection.execute("SELECT count(*) FROM quarantine WHERE chat_id = ?", (chat_id,)).fetchone()
    return ChatRows(chats[0], leases[0] if leases else None, tables, entries, quarantined=aside)
