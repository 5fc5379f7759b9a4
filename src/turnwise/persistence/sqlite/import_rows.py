"""Stores the rows of a chat of another store in SQLite, inside a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.audit.record import WriteRecord, object_of
from turnwise.persistence.audit.row_digests import digested_fields
from turnwise.persistence.imported_rows import events_in, restated
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.sqlite.event_rows import EventRow, rows_of
from turnwise.persistence.sqlite.tombstones import check_not_deleted
from turnwise.persistence.sqlite.write_rows import contradiction
from turnwise.states.errors import ChatExists
from turnwise.states.values.digests import canonical

_SQL: Final = statements_of(__name__)
_ELSEWHERE: Final = {"chat_id", "version", "prev", "hash"}
"""The fields of a record that its row says, or the row before it."""


def insert_imported(connection: sqlite3.Connection, chat: WholeChat) -> list[WriteRecord]:
    """Insert all rows of a chat but its lease; return the digests of events to state anew.

    Raises:
        ChatExists: the id is taken.
        ChatDeleted: it was taken, by a chat that was deleted.
    """
    check_not_deleted(connection, chat.chat_id)
    row = chat.rows.chat
    if not connection.execute(_SQL["insert_chat"], {**row, "calls": json.dumps(row["calls"])}).rowcount:
        raise ChatExists(chat.chat_id)
    events = list(_events(chat))
    try:
        for table, rows in chat.rows.tables.items():
            _insert(connection, chat.chat_id, table, map(_plain, rows) if table != "events" else events)
        _insert(connection, chat.chat_id, "audit", _records(chat))
        _insert(connection, chat.chat_id, "quarantine", chat.quarantine)
    except sqlite3.IntegrityError as error:
        raise contradiction(chat.chat_id, error) from error
    return restated(chat, {event["seq"]: digested_fields(event) for event in events})


def _events(chat: WholeChat) -> Iterator[Mapping[str, Any]]:
    """Yield the events as this store spells them."""
    native = [row for row in chat.rows.tables["events"] if "position" in row]
    yield from native
    foreign = events_in(chat, [row for row in chat.rows.tables["events"] if "position" not in row])
    for _, events in groupby(foreign, lambda event: event.at):
        for row in rows_of([*events]):
            yield dict(zip(EventRow._fields, row, strict=True))


def _records(chat: WholeChat) -> Iterator[Mapping[str, Any]]:
    for entry in chat.rows.audit:
        record = object_of(entry.body)
        body = canonical({name: value for name, value in record.items() if name not in _ELSEWHERE}).decode()
        yield {"version": entry.version, "hash": bytes.fromhex(record["hash"]), "body": body, "aside": entry.aside}


def _plain(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, "carried": json.dumps(row["carried"])} if "carried" in row else row


def _insert(connection: sqlite3.Connection, chat_id: str, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    whole: Sequence[Mapping[str, Any]] = [{**row, "chat_id": chat_id} for row in rows]
    if not whole:
        return
    columns = [*whole[0]]
    places = ", ".join(f":{column}" for column in columns)
    connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", whole)  # noqa: S608 - names that `chat_file` knows
