"""Takes in the chats of another store: where they stand, and their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from turnwise.persistence.archive.format import COLUMNS, WholeChat
from turnwise.persistence.audit.record import Entry, object_of, split
from turnwise.persistence.commit import CachedChat
from turnwise.persistence.integrity.raw_chat import stored_in
from turnwise.persistence.rows import time_of
from turnwise.persistence.sql.database import SQLDatabase
from turnwise.persistence.sql.held_files import take_over
from turnwise.persistence.sql.tombstones import check_not_deleted
from turnwise.persistence.stored_chat import facts_of
from turnwise.states.facts import QUERIED, Facts

_ELSEWHERE: Final = {"chat_id", "version", "prev", "hash"}
"""The fields of a record that its row says, or the row before it."""
_TIMES: Final = ("since", "deadline", "at", "expires")


def cached_chat_of(chat: WholeChat, at: datetime) -> CachedChat:
    """Return where an exported chat stands, with the lease that it was exported with."""
    return CachedChat(facts_in(chat), chat.rows.chat["head"], at, chat.rows.chat["facts"])


def facts_in(chat: WholeChat) -> Facts:
    """Return the facts of an exported chat."""
    stored = chat.rows
    rows = {"chats": [stored.chat], **stored.tables, "leases": [] if stored.lease is None else [stored.lease]}
    return facts_of(stored_in(chat.chat_id, rows))


def tables_in(chat: WholeChat) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a chat, but for its lease, by table."""
    tables = {**chat.rows.tables, "chats": [chat.rows.chat], "quarantine": chat.quarantine}
    rows = {table: [{name: row[name] for name in COLUMNS[table]} for row in stored] for table, stored in tables.items()}
    rows["chats"][0] |= {name: chat.rows.chat[name] for name in QUERIED}
    return rows | {"audit": [_record(entry) for entry in chat.rows.audit]}


def _record(entry: Entry) -> dict[str, Any]:
    record = object_of(entry.body)
    body, digests = split({name: value for name, value in record.items() if name not in _ELSEWHERE})
    own = {"version": entry.version, "hash": bytes.fromhex(record["hash"]), "aside": entry.aside}
    return {**own, "body": body, "digests": digests}


async def insert_imported(on: SQLDatabase, chat: WholeChat, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """Insert the rows of a chat, as this store spells them by table, and let the chat hold its blobs.

    Raises:
        ChatDeleted: the id was taken, by a chat that was deleted.
    """
    await on.insert("chats", [_timed(row) for row in tables["chats"]])
    # Not before: a deletion under way holds the id up until it has committed.
    await check_not_deleted(on, chat.chat_id)
    for table, rows in tables.items():
        if table != "chats":
            await on.insert(table, [{**_timed(row), "chat_id": chat.chat_id} for row in rows])
    await take_over(on, chat.chat_id, chat.blobs)


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: time_of(value) if name in _TIMES and type(value) is int else value for name, value in row.items()}
