"""SQLite as a database of `sql/`: nothing that is asked here ever waits, so that coroutines end in one step."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar

from turnwise.persistence.rows import PARSE_ERRORS, micros_of, time_of
from turnwise.persistence.sql.database import Row, SQLDatabase
from turnwise.persistence.sql.statements import Statement, statements_in, translated
from turnwise.persistence.sqlite.connection import REFUSED, first_rows
from turnwise.persistence.stored_chat import Stored, ids_of

_T = TypeVar("_T")

SQL: Final = {name: statement.sql for name, statement in statements_in("sqlite").items()}


def run_sync(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine over a `SQLiteDatabase`: it never waits, and ends in its first step."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    work.close()
    raise RuntimeError("it waits for something: only what a database of SQLite answers may be awaited here")


def in_one_snapshot(connection: sqlite3.Connection, question: Callable[[sqlite3.Connection], _T]) -> _T:
    """Return the answer to a question whose statements all see the same moment of the database."""
    if connection.in_transaction:  # a ROLLBACK failed
        connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    try:
        return question(connection)
    finally:
        connection.execute("ROLLBACK")


class SQLiteDatabase(SQLDatabase):
    """A connection within a transaction, on its own thread. Times are microseconds since 1970, lists are JSON."""

    dialect = "sqlite"
    parts = "events"
    remote = False
    refusals = REFUSED
    names: ClassVar[Mapping[str, str]] = {
        "leases": "chats",
        "leases.worker": "chats.worker",
        "leases.token": "chats.token",
    }
    chat_row = "SELECT * FROM chats WHERE id = :chat_id"
    event_rows = "SELECT * FROM events WHERE chat = {chat} ORDER BY seq"

    def __init__(self, connection: sqlite3.Connection, now: Callable[[], datetime]) -> None:
        self.connection = connection
        self._now = now

    async def fetch_page(self, name: str, /, *, size: float | None, **values: Any) -> tuple[Sequence[Row], bool]:
        return first_rows(self.connection, SQL[name], _bound(values), size=math.inf if size is None else size)

    async def fetch_dicts(self, sql: str, /, **values: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(translated(sql, "sqlite").sql, _bound(values))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    async def stored(self, rest: str, /, **values: Any) -> list[Stored]:
        rows = await self.fetch_sql(f"{SQL['facts']} {rest}", **values)
        return [self._stored(row) for row in rows]

    def _stored(self, row: Row) -> Stored:
        call_ids, number = row[5], row[11]
        calls: list[Any] = []
        if call_ids != "[]":
            with contextlib.suppress(*PARSE_ERRORS):  # building the facts raises it again
                calls = self._bodies("calls_of", number, json.dumps(ids_of(call_ids)))
        profile, worker, token, last_seq = row[7:11]
        queue = self._bodies("queue_of", number)
        return Stored._make((*row[:7], profile, calls, queue, worker, token, last_seq, "chats.facts", "chats"))

    def _bodies(self, name: str, *values: Any) -> list[Any]:
        return [body for (body,) in self.connection.execute(SQL[name], values)]

    async def now(self) -> datetime:
        return self._now()

    def time_in(self, value: Any) -> datetime:
        return time_of(value)

    def within(self, filters: Sequence[str], before: str) -> str:
        columns = {"state": "state || ''"}
        equal = "".join(f"{columns.get(name, name)} = :{name} AND " for name in filters)
        return f"{equal}number < {before} ORDER BY number DESC"

    def one_moment(self) -> AbstractAsyncContextManager[Any]:
        return contextlib.nullcontext()

    async def compute(self, function: Callable[..., _T], *values: Any) -> _T:
        return function(*values)

    async def _fetch(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        return self.connection.execute(statement.sql, _bound(values)).fetchall()

    async def _execute(self, statement: Statement, values: Mapping[str, Any]) -> int:
        return self.connection.execute(statement.sql, _bound(values)).rowcount

    async def _execute_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        self.connection.executemany(statement.sql, map(_bound, rows))


def _bound(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if type(value) in _PLAIN else _stored_value(value) for name, value in values.items()}


_PLAIN: Final = frozenset({str, int, type(None), bytes})


def _stored_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return micros_of(value)
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list | tuple) else value
