"""Reads the rows of a chat from PostgreSQL as they are stored, for a check."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final

import anyio.to_thread
import asyncpg

from turnwise.persistence.audit.record import Entry, WriteRecord
from turnwise.persistence.chat_rows import ORDER, ChatRows
from turnwise.persistence.erasure import erases, wipe
from turnwise.persistence.integrity.examine import blamed
from turnwise.persistence.postgres.held_files import let_others_go
from turnwise.persistence.postgres.queries import one_moment
from turnwise.persistence.postgres.raw_rows import rows_within
from turnwise.persistence.postgres.tombstones import missing
from turnwise.persistence.rows import GARBLED, micros_of
from turnwise.persistence.sql.statements import statements_of
from turnwise.states.decide import Decision

_SQL: Final = statements_of(__name__)
_TABLES: Final = {
    **{table: f"SELECT * FROM {table} WHERE chat_id = $1 ORDER BY {order}" for table, order in ORDER.items()},  # noqa: S608 - ours
    "events": _SQL["events"],
}
_NAMES: Final = {
    "chats.facts": "facts.body",
    "chats.salt": "facts.salt",
    "leases": "chats",
    "leases.worker": "chats.worker",
    "leases.token": "chats.token",
}


async def rows_of_chat(connection: asyncpg.Connection, chat_id: str) -> ChatRows:
    """Return the rows of a chat."""
    async with one_moment(connection):
        return await _rows_of_chat(connection, chat_id)


async def wipe_all(connection: asyncpg.Connection, chat_id: str, decisions: Sequence[Decision]) -> list[WriteRecord]:
    """Blank the rows that hold what the decisions erase, inside a transaction; return the digests stated anew."""
    restated: list[WriteRecord] = []
    for decision in decisions:
        if not erases(decision.writes):
            continue
        rows = await _rows_of_chat(connection, chat_id)
        try:
            wiped = await anyio.to_thread.run_sync(wipe, rows, decision)  # a long chat must not hold up the others
        except GARBLED as error:
            raise blamed(chat_id, await rows_within(connection, chat_id), error) from error
        for change in wiped.changes:
            places = count(1)
            put = ", ".join(f"{column} = ${next(places)}" for column in change.values)
            where = " AND ".join(f"{column} = ${next(places)}" for column in ("chat_id", *change.key))
            does = f"UPDATE {change.table} SET {put}" if put else f"DELETE FROM {change.table}"  # noqa: S608 - names of our own
            await connection.execute(f"{does} WHERE {where}", *change.values.values(), chat_id, *change.key.values())
        await let_others_go(connection, chat_id, wiped.blobs)
        restated += wiped.row_digests
    return restated


async def _rows_of_chat(connection: asyncpg.Connection, chat_id: str) -> ChatRows:
    chat = await connection.fetchrow(_SQL["chat"], chat_id)
    if chat is None:
        raise await missing(connection, chat_id)
    queries = {table: connection.readable(sql) for table, sql in _TABLES.items()}
    tables = {table: [_plain(row) for row in await connection.fetch(sql, chat_id)] for table, sql in queries.items()}
    sql = "SELECT version, body, aside FROM audit WHERE chat_id = $1 ORDER BY version"
    records = await connection.fetch(sql, chat_id)
    entries = [Entry(row["version"], "", row["body"], row["aside"]) for row in records]
    plain = _plain(chat)
    lease = None if chat["worker"] is None and chat["token"] is None else plain
    aside = await connection.fetchval("SELECT count(*) FROM quarantine WHERE chat_id = $1", chat_id)
    return ChatRows(plain, lease, tables, entries, _NAMES, parts="partial_events", quarantined=aside)


def _plain(row: asyncpg.Record) -> dict[str, Any]:
    return {name: micros_of(value) if isinstance(value, datetime) else value for name, value in row.items()}
