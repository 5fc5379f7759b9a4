"""Reads the rows of PostgreSQL as they are stored, to inspect, export or repair a chat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import asyncpg

from turnwise.persistence.integrity.examine import blamed
from turnwise.persistence.integrity.raw_chat import KEYS, Rows
from turnwise.persistence.integrity.repair import Repair
from turnwise.persistence.postgres.queries import one_moment
from turnwise.persistence.postgres.tombstones import missing
from turnwise.persistence.rows import GARBLED, MESSAGES, PROFILES, columns_of_message
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.stored_chat import IntegrityIssue
from turnwise.states.messages import FORMAT
from turnwise.states.writes import InsertMessage

_T = TypeVar("_T")

_SQL: Final = statements_of(__name__)


async def rows_of(connection: asyncpg.Connection, chat_id: str) -> Rows:
    """Return all rows that belong to a chat, from one snapshot.

    Raises:
        ChatNotFound: there is no such chat.
    """
    async with one_moment(connection):
        return await rows_within(connection, chat_id)


async def rows_within(connection: asyncpg.Connection, chat_id: str) -> Rows:
    """Return all rows that belong to a chat, inside a transaction.

    Raises:
        ChatNotFound: there is no such chat.
    """
    rows = {"chats": [dict(row) for row in await connection.fetch("SELECT * FROM chats WHERE id = $1", chat_id)]}
    if not rows["chats"]:
        raise await missing(connection, chat_id)
    for table in await tables_of(connection):
        sql = connection.readable(f"SELECT * FROM {table} WHERE chat_id = $1")  # noqa: S608 - a name
        records = await connection.fetch(sql, chat_id)
        rows[table] = [dict(row) for row in records]
    return rows


async def read_or_blamed(
    connection: asyncpg.Connection, chat_id: str, question: Callable[[asyncpg.Connection], Awaitable[_T]]
) -> _T:
    """Return the answer to a question about a chat.

    Raises:
        ChatUnreadable: a stored value of the chat cannot be read.
    """
    try:
        return await question(connection)
    except (asyncpg.InterfaceError, OSError):
        raise
    except GARBLED as error:
        raise blamed(chat_id, await rows_of(connection, chat_id), error) from error


async def tables_of(connection: asyncpg.Connection) -> list[str]:
    """Return the tables whose rows belong to chats, apart from `chats` itself."""
    return [row["table_name"] for row in await connection.fetch(_SQL["tables_of_chats"])]


async def chat_ids(connection: asyncpg.Connection, *, after: int, limit: int) -> list[tuple[int, str]]:
    """Return chats in the order of their creation, each with its number."""
    sql = "SELECT number, id FROM chats WHERE number > $1 ORDER BY number LIMIT $2"
    return [(row["number"], row["id"]) for row in await connection.fetch(sql, after, limit)]


async def orphans(connection: asyncpg.Connection) -> list[IntegrityIssue]:
    """Return an issue for each table and id whose rows belong to no chat."""
    issues: list[IntegrityIssue] = []
    for table in await tables_of(connection):
        if table == "chat_files":
            continue  # a chat holds files before it is imported
        for row in await connection.fetch(connection.readable(_SQL["orphans"].format(table=table))):
            problem = f"{row['rows']} row(s) of {row['chat_id']!a:.60}, which is no chat"
            issues.append(IntegrityIssue(f"{table}.chat_id", problem))
    return issues


async def store_repair(connection: asyncpg.Connection, repair: Repair) -> None:
    """Move unreadable rows to `quarantine`, insert their replacements, and update the chat's own row."""
    facts, chat_id, version = repair.facts, repair.facts.chat_id, repair.facts.version + 1
    for put in repair.aside:
        sql = "INSERT INTO quarantine (chat_id, version, origin, problem, row) VALUES ($1, $2, $3, $4, $5)"
        await connection.execute(sql, chat_id, version, put.table, put.problem, put.body)
        if put.deleted:
            keys = KEYS[put.table]
            where = "".join(f" AND {key} = ${place}" for place, key in enumerate(keys, start=2))
            sql = f"DELETE FROM {put.table} WHERE chat_id = $1{where}"  # noqa: S608 - names
            await connection.execute(sql, chat_id, *(put.row[key] for key in keys))
    for mark in repair.marks:
        columns, digest = columns_of_message(mark).values(), InsertMessage(mark).digest
        await connection.execute(_SQL["insert_mark"], chat_id, *columns, version, digest, FORMAT, MESSAGES.dump(mark))
    if any(issue.column.startswith("profiles.") for issue in repair.issues):
        await connection.execute(
            "INSERT INTO profiles (chat_id, body) VALUES ($1, $2) ON CONFLICT (chat_id) DO UPDATE SET body = $2",
            chat_id,
            PROFILES.dump(facts.profile),
        )
    worker, token = (facts.lease.worker, facts.lease.token) if facts.lease else (None, None)
    standing = (facts.version, facts.last_seq, repair.head, facts.state_as_stored, worker, token)
    hints = (facts.profile.owner, facts.agent_needed, [*facts.calls.needs], facts.awaits)
    await connection.execute(_SQL["stand_as_repaired"], chat_id, *standing, *hints)
