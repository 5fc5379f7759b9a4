"""Reads the rows of SQLite as they are stored, to inspect, export or repair a chat."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from turnwise.persistence.commit import Tables
from turnwise.persistence.integrity.examine import blamed
from turnwise.persistence.integrity.raw_chat import KEYS, Rows
from turnwise.persistence.integrity.repair import Repair
from turnwise.persistence.rows import GARBLED, PROFILES
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.sqlite.connection import REFUSED
from turnwise.persistence.sqlite.tombstones import missing
from turnwise.persistence.sqlite.write_rows import insert_messages
from turnwise.persistence.stored_chat import IntegrityIssue
from turnwise.states.values.digests import canonical_row
from turnwise.states.writes import InsertMessage

_SQL: Final = statements_of(__name__)


def tables_of(connection: sqlite3.Connection) -> list[str]:
    """Return the tables whose rows belong to chats, apart from `chats` itself."""
    return [name for (name,) in connection.execute(_SQL["tables_of_chats"])]


def rows_of(connection: sqlite3.Connection, chat_id: str) -> Rows:
    """Return all rows that belong to a chat.

    Raises:
        ChatNotFound: there is no such chat.
    """
    rows = {"chats": fetched(connection, "SELECT * FROM chats WHERE id = ?", chat_id)}
    if not rows["chats"]:
        raise missing(connection, chat_id)
    for table in tables_of(connection):
        rows[table] = fetched(connection, f"SELECT * FROM {table} WHERE chat_id = ?", chat_id)  # noqa: S608 - a name
    return rows


@contextmanager
def blaming(connection: sqlite3.Connection, chat_id: str) -> Iterator[None]:
    """Name the value that is wrong if reading a chat fails inside.

    Raises:
        ChatUnreadable: a stored value of the chat cannot be read.
    """
    try:
        yield
    except REFUSED:
        raise
    except GARBLED as error:
        raise blamed(chat_id, rows_of(connection, chat_id), error) from error


def chat_ids(connection: sqlite3.Connection, *, after: int, limit: int) -> list[tuple[int, str]]:
    """Return chats in the order of their creation, each with its number."""
    sql = "SELECT number, id FROM chats WHERE number > ? ORDER BY number LIMIT ?"
    return [(number, str(id_)) for number, id_ in connection.execute(sql, (after, limit))]


def orphans(connection: sqlite3.Connection) -> list[IntegrityIssue]:
    """Return an issue for each table and id whose rows belong to no chat."""
    issues: list[IntegrityIssue] = []
    for table in tables_of(connection):
        if table == "chat_files":
            continue  # a chat holds files before it is imported
        sql = f"SELECT chat_id, count(*) FROM {table} WHERE chat_id NOT IN (SELECT id FROM chats) GROUP BY 1"  # noqa: S608
        issues += [
            IntegrityIssue(f"{table}.chat_id", f"{n} row(s) of {id_!a:.60}, which is no chat")
            for id_, n in connection.execute(sql)
        ]
    return issues


def store_repair(connection: sqlite3.Connection, repair: Repair, at: Any) -> None:
    """Move unreadable rows to `quarantine` and insert their replacements."""
    chat_id, version = repair.facts.chat_id, repair.facts.version + 1
    for put in repair.aside:
        connection.execute(
            "INSERT INTO quarantine (chat_id, version, origin, problem, row) VALUES (?, ?, ?, ?, ?)",
            (chat_id, version, put.table, put.problem, put.body),
        )
        if put.deleted:
            keys = KEYS[put.table]
            where = "".join(f" AND {key} IS ?" for key in keys)
            sql = f"DELETE FROM {put.table} WHERE chat_id = ?{where}"  # noqa: S608 - names
            connection.execute(sql, (chat_id, *(put.row[key] for key in keys)))
    tables = Tables(chat_id, at)
    for number, mark in enumerate(repair.marks):
        tables.add(InsertMessage(mark), version, number)
    insert_messages(connection, tables)
    if any(issue.column.startswith("profiles.") for issue in repair.issues):
        connection.execute(
            "INSERT OR REPLACE INTO profiles (chat_id, body) VALUES (?, ?)",
            (chat_id, PROFILES.dump(repair.facts.profile)),
        )
    facts = repair.facts
    connection.execute(
        "UPDATE chats SET owner = ?, agent = ?, needs = ?, awaits = ? WHERE id = ?",
        (facts.profile.owner, facts.agent_needed, canonical_row(facts.calls.needs).decode(), facts.awaits, chat_id),
    )


def fetched(connection: sqlite3.Connection, sql: str, *values: str) -> list[dict[str, Any]]:
    """Return the rows that a statement selects, each as its columns by name."""
    cursor = connection.execute(sql, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
