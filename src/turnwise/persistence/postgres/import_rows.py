"""Stores the rows of a chat of another store in PostgreSQL, inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import asyncpg

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.audit.record import WriteRecord
from turnwise.persistence.audit.row_digests import digested_fields
from turnwise.persistence.imported_rows import events_in, restated
from turnwise.persistence.postgres.tombstones import check_not_deleted
from turnwise.persistence.postgres.write_rows import event_rows
from turnwise.persistence.rows import time_of

_TIMES: Final = ("since", "deadline", "at")
_CHAT: Final = ("id", "state", "settled", "archived", "version", "event_seq", "head", "since", "owner", "calls")


async def insert_imported(connection: asyncpg.Connection, chat: WholeChat) -> list[WriteRecord]:
    """Insert all rows of a chat; return the digests of events to state anew. Its lease has run out at once.

    Raises:
        UniqueViolationError: the id is taken.
        ChatDeleted: it was taken, by a chat that was deleted.
    """
    chat_row, lease, chat_id = chat.rows.chat, chat.rows.lease, chat.chat_id
    row = {name: chat_row[name] for name in _CHAT}
    if lease is not None:
        row |= {"worker": lease["worker"], "token": lease["token"], "expires": time_of(chat_row["since"])}
    await _insert(connection, "chats", [row])
    await check_not_deleted(connection, chat_id)
    durable, partial = _events(chat)
    tables: dict[str, Iterable[Mapping[str, Any]]] = {
        **chat.rows.tables,
        "facts": [{"body": chat_row["facts"], "salt": chat_row["salt"]}],
        "events": durable,
        "partial_events": partial,
        "audit": ({"version": one.version, "body": one.body, "aside": one.aside} for one in chat.rows.audit),
        "quarantine": chat.quarantine,
    }
    for table, rows in tables.items():
        await _insert(connection, table, [{**row, "chat_id": chat_id} for row in rows])
    return restated(chat, {row["seq"]: digested_fields(row) for row in durable})


def _events(chat: WholeChat) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the rows of `events` and of `partial_events` as this store spells them."""
    rows = chat.rows.tables["events"]
    native = [row for row in rows if "position" not in row and row["kind"] != "part"]
    foreign = events_in(chat, [row for row in rows if "position" in row or row["kind"] == "part"])
    durable, partial = event_rows(foreign)
    times = {event.seq: event.at for event in foreign}
    return [*native, *_timed(durable, times)], [*_timed(partial, times)]


def _timed(rows: Iterable[Mapping[str, Any]], times: Mapping[int, Any]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        yield {**row, "at": times[row["seq"]]}


async def _insert(connection: asyncpg.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    columns = [*rows[0]]
    places = ", ".join(f"${place}" for place, _ in enumerate(columns, start=1))
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 - names that `chat_file` knows
    await connection.executemany(sql, [[_value(column, row[column]) for column in columns] for row in rows])


def _value(column: str, value: Any) -> Any:
    return time_of(value) if column in _TIMES and isinstance(value, int) else value
