"""Stores commits in SQLite, inside a transaction that the group commit begins and commits."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final

from turnwise.persistence.audit.record import Entry
from turnwise.persistence.commit import Commit, RequiredLease, Row, Tables
from turnwise.persistence.event_rows import EventRow
from turnwise.persistence.protocol import DuplicateReceipt
from turnwise.persistence.rows import micros_in, micros_of
from turnwise.persistence.shares import COUNTED
from turnwise.persistence.sql.budgets import funds_of, store_funds
from turnwise.persistence.sql.tombstones import check_not_deleted, check_parent
from turnwise.persistence.sqlite.database import SQL, SQLiteDatabase, run_sync
from turnwise.states.errors import ChatExists, ChatUnreadable, StoreError
from turnwise.states.facts import QUERIED, Facts
from turnwise.states.values.digests import canonical_row

_LEASE: Final = ", worker = ?, token = ?, expires = ?, lasts = ?"
_PUT_COUNTED: Final = "".join(f", {name} = ?" for name in COUNTED)
_WAKE_AT: Final = ", wake_at = ?"
_PUT_QUERIED: Final = "".join(f", {name} = ?" for name in QUERIED)
_PUT_PROFILE: Final = "INSERT OR REPLACE INTO profiles (chat, body, salt) VALUES (?, ?, ?)"


def insert(commit: Commit, parent: tuple[str, int] | None, db: SQLiteDatabase, *, unchanged: bool) -> None:
    """Insert a chat with its first commit. For a fork, `parent` is (chat id, version).

    Raises:
        TurnwiseError: as `ChatStore.create` says.
        BudgetFound: its owner has a budget, and the commit was made without.
    """
    if parent is not None:
        run_sync(check_parent(db, *parent, unchanged=unchanged))
    run_sync(check_not_deleted(db, commit.chat_id))
    facts, knows_budgets = commit.after.facts, commit.funds is not None
    profile = facts.profile
    values = (*_chat_row(commit), *_share(facts), *profile.queried.values(), *_lease(commit), commit.chat_id)
    row = db.connection.execute(SQL["insert_chat"], (*values, knows_budgets, profile.owner)).fetchone()
    if row is None:
        if not knows_budgets and run_sync(funds_of(db, commit.after.facts, commit.before.at)) is not None:
            raise BudgetFound
        raise ChatExists(commit.chat_id)
    _fill(db.connection, commit, *row)
    run_sync(store_funds(db, commit.funds))


class BudgetFound(Exception):
    """The commit has to be made anew, on the budgets that the chat spends; nothing was written."""


def update(commit: Commit, connection: sqlite3.Connection, *, if_unchanged: bool = False) -> bool:
    """Store a commit. With `if_unchanged`, only if the chat row still matches `commit.before` (optimistic concurrency).

    Return whether it was stored.

    Raises:
        DuplicateReceipt: a receipt's `client_id` has one already.
        StoreError: the step has a compaction already.
        ChatUnreadable: the next row exists already.
    """
    current = commit.before
    expected = (current.facts.last_seq, current.head, *current.mark) if if_unchanged else ()
    more, values = "", _chat_row(commit)
    if commit.tables.profile is not None:
        more, values = _PUT_QUERIED, (*values, *commit.after.facts.profile.queried.values())
    if commit.tables.lease is not None or (commit.after.facts.lease is None and current.facts.lease is not None):
        more, values = more + _LEASE, (*values, *_lease(commit))
    if (share := _share(commit.after.facts)) != _share(current.facts):
        more, values = more + _PUT_COUNTED, (*values, *share)
    wake_at = commit.after.facts.wake_at
    if wake_at != current.facts.wake_at:
        more, values = more + _WAKE_AT, (*values, None if wake_at is None else micros_of(wake_at))
    row = connection.execute(
        _update_sql(more, if_unchanged=if_unchanged), (*values, commit.chat_id, *expected)
    ).fetchone()
    if row is None:
        return False
    _fill(connection, commit, *row)
    return True


@cache
def _update_sql(more: str, *, if_unchanged: bool) -> str:
    expected = SQL["if_unchanged"] if if_unchanged else ""
    return f"{SQL['update_chat'].replace('{more}', more)}\n{expected} RETURNING number, changed"


def insert_events_if_unchanged(
    chat_id: str, rows: Sequence[EventRow], before: int, lease: RequiredLease, connection: sqlite3.Connection
) -> bool:
    """Append events if the lease is still held and the last event number is `before` (compare-and-set).

    Return whether they were stored.

    Raises:
        ChatUnreadable: one of the numbers is taken.
    """
    values = (rows[-1].seq, chat_id, before, lease.state.value, *lease[:2])
    row = connection.execute(SQL["advance_event_seq"], values).fetchone()
    if row is None:
        return False
    _insert(connection, chat_id, "events", [(row[0], None, *columns) for columns in rows])
    return True


def _chat_row(commit: Commit) -> tuple[Any, ...]:
    _, *columns = commit.row
    facts = commit.after.facts
    rested = None if commit.rested is None else micros_of(commit.rested)
    found_by = (rested, canonical_row(facts.calls.needs).decode(), facts.awaits, facts.action_of)
    return (*columns, commit.after.head, micros_of(commit.since), commit.salt, *found_by)


def _share(facts: Facts) -> tuple[str, str, str]:
    return (facts.agent_needed, facts.fair_key, facts.capped_model)


def _lease(commit: Commit) -> tuple[Any, ...]:
    """Return worker and token of a lease that is granted, when it runs out, and for how long it is granted."""
    lease, granted = commit.after.facts.lease, commit.tables.lease
    if lease is None or granted is None:
        return (None, None, None, None)
    lasts = timedelta(seconds=granted.seconds)
    return (lease.worker, lease.token, micros_of(commit.before.at + lasts), micros_in(lasts))


def _fill(connection: sqlite3.Connection, commit: Commit, number: int, changed: int) -> None:
    """Store what a commit puts into the other tables, where the chat has a number, and so has the commit."""
    chat_id, tables = commit.chat_id, commit.tables
    rows = tables.rows
    for stored in (*rows.values(), tables.calls.values()):
        for row in stored:
            row["chat"] = number
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
    _fill_queue(connection, tables, number)
    if tables.profile is not None:
        connection.execute(_PUT_PROFILE, (number, tables.profile.body, tables.profile.salt))
    _insert(connection, chat_id, "audit", [_audit_row(number, entry) for entry in tables.entries])
    if commit.event_rows:
        _insert(connection, chat_id, "events", [(number, changed, *row) for row in commit.event_rows])


def _fill_queue(connection: sqlite3.Connection, tables: Tables, number: int) -> None:
    if tables.queue or tables.ranked:
        changes = {"insert_queue": tables.queued, "rank_queued": tables.ranked, "drop_queued": tables.dropped}
        for name, changed in changes.items():
            connection.executemany(SQL[name], [row | {"chat": number} for row in changed])


def _audit_row(number: int, entry: Entry) -> tuple[Any, ...]:
    return (number, entry.version, bytearray.fromhex(entry.hash), entry.body, entry.aside, bytearray(entry.digests))


@cache
def _insertion(table: str, columns: tuple[str, ...]) -> str:
    """Return the statement that inserts rows of these columns: they name their chat by its number."""
    own = [name for name in columns if name != "chat_id"]
    return f"INSERT INTO {table} ({', '.join(own)}) VALUES ({', '.join(f':{name}' for name in own)})"  # noqa: S608 - names of our own


def _insert(
    connection: sqlite3.Connection,
    chat_id: str,
    table: str,
    rows: Sequence[Row] | Sequence[Sequence[Any]],
) -> None:
    try:
        connection.executemany(SQL.get(f"insert_{table}") or _insertion(table, tuple(rows[0])), rows)
    except sqlite3.IntegrityError as error:
        raise _refusal(chat_id, table, rows[0], error) from error


def _refusal(chat_id: str, table: str, row: Row | Sequence[Any], error: sqlite3.IntegrityError) -> StoreError:
    """Return the error that names the key that was taken already."""
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
