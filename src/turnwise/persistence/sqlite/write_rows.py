"""Stores commits in SQLite, inside a transaction that the group commit begins and commits."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from turnwise.persistence.audit.record import Entry
from turnwise.persistence.commit import Commit, Held, Row
from turnwise.persistence.event_rows import EventRow
from turnwise.persistence.protocol import DuplicateReceipt
from turnwise.persistence.rows import micros_in, micros_of
from turnwise.persistence.sql.tombstones import check_not_deleted, check_parent
from turnwise.persistence.sqlite.database import SQL, SQLiteDatabase, completed
from turnwise.states.errors import ChatExists, ChatUnreadable, StoreError
from turnwise.states.values.digests import canonical_row

_UPDATE_AS_FOUND: Final = f"{SQL['update_chat']}\n{SQL['as_found']}"
_PUT_LEASE: Final = "INSERT OR REPLACE INTO leases (chat_id, worker, token, expires, lasts) VALUES (?, ?, ?, ?, ?)"
_PUT_PROFILE: Final = "INSERT OR REPLACE INTO profiles (chat_id, body, salt) VALUES (?, ?, ?)"


def insert(commit: Commit, parent: tuple[str, int] | None, on: SQLiteDatabase, *, unchanged: bool) -> None:
    """Store the first commit of a chat, whose words are those that its parent, if it has one, had at a version.

    Raises:
        TurnwiseError: as `ChatStore.create` says.
    """
    if parent is not None:
        completed(check_parent(on, *parent, unchanged=unchanged))
    completed(check_not_deleted(on, commit.chat_id))
    if not on.connection.execute(SQL["insert_chat"], _chat_row(commit)).rowcount:
        raise ChatExists(commit.chat_id)
    _fill(on.connection, commit)


def update_as_found(commit: Commit, connection: sqlite3.Connection) -> bool:
    """Store a commit if the chat still stands where its decisions found it; return whether it did.

    Raises:
        StoreError: as for `update`.
    """
    standing = commit.before
    proof = (standing.facts.last_seq, standing.head, *standing.mark)
    if not connection.execute(_UPDATE_AS_FOUND, (*_chat_row(commit), *proof)).rowcount:
        return False
    _fill(connection, commit)
    return True


def update(commit: Commit, connection: sqlite3.Connection) -> None:
    """Store a commit on a chat that was read in the same transaction.

    Raises:
        DuplicateReceipt: a receipt's `client_id` has one already.
        StoreError: the step has a compaction already.
        ChatUnreadable: the next row exists already.
    """
    connection.execute(SQL["update_chat"], _chat_row(commit))
    _fill(connection, commit)


def insert_events_as_found(rows: Sequence[EventRow], before: int, held: Held, connection: sqlite3.Connection) -> bool:
    """Insert events of a running job if the chat is held so, and `before` is its last number.

    Return whether it was.

    Raises:
        ChatUnreadable: one of the numbers is taken.
    """
    chat_id = rows[0].chat_id
    if not connection.execute(SQL["move_on"], (rows[-1].seq, chat_id, before, held.state.value, *held[:2])).rowcount:
        return False
    insert_events(rows, connection)
    return True


def insert_events(rows: Sequence[EventRow], connection: sqlite3.Connection) -> None:
    """Insert events of one chat.

    Raises:
        ChatUnreadable: one of the numbers is taken.
    """
    _insert(connection, rows[0].chat_id, "events", rows)


def _chat_row(commit: Commit) -> tuple[Any, ...]:
    id_, *columns = commit.row
    facts = commit.after.facts
    rested = None if commit.rested is None else micros_of(commit.rested)
    hints = (rested, facts.agent_needed, canonical_row(facts.calls.needs).decode(), facts.awaits)
    return (*columns, commit.after.head, micros_of(commit.since), commit.salt, *hints, id_)


def _fill(connection: sqlite3.Connection, commit: Commit) -> None:
    """Store what a commit puts into the other tables."""
    chat_id, tables = commit.chat_id, commit.tables
    rows = tables.rows
    for cut in rows.get("cuts", ()):
        connection.execute(SQL["cut_messages"], cut)
        connection.execute(SQL["cut_boundaries"], cut)
    for table in ("messages", "receipts", "usage", "chat_files"):
        if table in rows:
            _insert(connection, chat_id, table, rows[table])
    if "boundaries" in rows:
        carried = [row | {"carried": json.dumps(row["carried"])} for row in rows["boundaries"]]
        _insert(connection, chat_id, "boundaries", carried)
    if tables.calls:
        connection.executemany(SQL["insert_calls"], tables.calls.values())
    if tables.queue or tables.ranked:
        connection.executemany(SQL["insert_queue"], tables.queued)
        connection.executemany("UPDATE queue SET rank = :rank WHERE chat_id = :chat_id AND id = :id", tables.ranked)
        connection.executemany("DELETE FROM queue WHERE chat_id = :chat_id AND id = :id", tables.dropped)
    _put_lease(connection, commit)
    if tables.profile is not None:
        connection.execute(_PUT_PROFILE, (chat_id, tables.profile.body, tables.profile.salt))
        connection.execute("UPDATE chats SET owner = ? WHERE id = ?", (tables.profile.profile.owner, chat_id))
    _insert(connection, chat_id, "audit", [_audit_row(chat_id, entry) for entry in tables.entries])
    if commit.event_rows:
        _insert(connection, chat_id, "events", commit.event_rows)


def _audit_row(chat_id: str, entry: Entry) -> tuple[Any, ...]:
    return (chat_id, entry.version, bytearray.fromhex(entry.hash), entry.body, entry.aside)


def _put_lease(connection: sqlite3.Connection, commit: Commit) -> None:
    lease, granted = commit.after.facts.lease, commit.tables.lease
    if lease is None:
        if granted is not None or commit.before.facts.lease is not None:
            connection.execute("DELETE FROM leases WHERE chat_id = ?", (commit.chat_id,))
    elif granted is not None:
        lasts = timedelta(seconds=granted.seconds)
        times = (micros_of(commit.before.at + lasts), micros_in(lasts))
        connection.execute(_PUT_LEASE, (commit.chat_id, lease.worker, lease.token, *times))


def _insert(
    connection: sqlite3.Connection,
    chat_id: str,
    table: str,
    rows: Sequence[Row] | Sequence[Sequence[Any]],
) -> None:
    try:
        connection.executemany(SQL[f"insert_{table}"], rows)
    except sqlite3.IntegrityError as error:
        raise _refusal(chat_id, table, rows[0], error) from error


def _refusal(chat_id: str, table: str, row: Row | Sequence[Any], error: sqlite3.IntegrityError) -> StoreError:
    """Return the error that tells the caller which key was taken already."""
    if table == "receipts" and isinstance(row, Mapping):
        return DuplicateReceipt(chat_id, row["client_id"])
    if table == "boundaries" and isinstance(row, Mapping):
        return StoreError(f"chat {chat_id!r} has a compaction for step {row['step']} already; nothing was written")
    return contradiction(chat_id, error)


def contradiction(chat_id: str, error: sqlite3.IntegrityError) -> ChatUnreadable:
    """Return the error for a chat whose next row exists already: the stored rows contradict each other."""
    text = str(error)
    column = text.rpartition(": ")[2].rpartition(", ")[2] if "." in text else "chats"
    return ChatUnreadable(column, f"what is stored contradicts the next row ({text})", chat_id=chat_id)
