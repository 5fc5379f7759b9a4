"""PostgreSQL as a database of `sql/`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, TypeVar

import anyio.to_thread
import asyncpg

from turnwise.persistence.rows import EPOCH, message_of
from turnwise.persistence.sql.database import Row, SQLDatabase
from turnwise.persistence.sql.statements import Statement, statements_in, translated
from turnwise.persistence.stored_chat import Stored
from turnwise.states.message_order import in_call_order
from turnwise.states.messages import Message

_T = TypeVar("_T")

SQL: Final = {name: statement.sql for name, statement in statements_in("postgres").items()}
_RANGED: Final = {"owner": "(owner || '')", "state": "(state || '')"}
"""How the index of owner and state spells its columns."""


class PostgresDatabase(SQLDatabase):
    """A connection, within a transaction or not; `now` is a test's clock, in the place of the database's."""

    dialect = "postgres"
    parts = "partial_events"
    remote = True
    refusals = (asyncpg.InterfaceError, OSError)
    names: ClassVar[Mapping[str, str]] = {
        "chats.facts": "facts.body",
        "chats.salt": "facts.salt",
        "leases": "chats",
        "leases.worker": "chats.worker",
        "leases.token": "chats.token",
    }
    chat_row = (
        "SELECT chats.*, facts.body AS facts, facts.salt AS salt"
        " FROM chats LEFT JOIN facts ON facts.chat = number WHERE id = :chat_id"
    )
    event_rows = (
        "SELECT seq, kind, at, NULL::bigint AS step, NULL::bigint AS attempt, position, body FROM events"
        " WHERE chat = {chat}"
        " UNION ALL SELECT seq, kind, at, step, attempt, NULL, body FROM partial_events WHERE chat = {chat}"
        " ORDER BY seq"
    )

    def __init__(self, connection: asyncpg.Connection, now: Callable[[], datetime] | None) -> None:
        self.connection = connection
        self._now = now

    async def fetch_page(self, name: str, /, *, size: float | None, **values: Any) -> tuple[Sequence[Row], bool]:
        rows = await self.fetch(name, size=size, **values)
        return rows, size is not None and bool(rows) and rows[-1][-1] >= size

    async def fetch_dicts(self, sql: str, /, **values: Any) -> list[dict[str, Any]]:
        return [dict(record) for record in await self._fetch(translated(sql, "postgres"), values)]

    async def stored(self, rest: str, /, **values: Any) -> list[Stored]:
        return [stored_in(record) for record in await self.fetch_sql(f"{_FACTS} {rest}", **values)]

    async def now(self) -> datetime:
        at: datetime = self._now() if self._now else await self.connection.fetchval("SELECT clock_timestamp()")
        return at

    def time_in(self, value: Any) -> datetime:
        if not isinstance(value, datetime):
            raise ValueError("a time belongs here")  # noqa: TRY004 - what is stored is wrong
        return value

    def within(self, filters: Sequence[str], before: str) -> str:
        """Return a range of the one index whose columns owner and state are.

        An equation would leave the planner free to walk down all chats by number, however rare those that are wanted.
        There is no upper bound for a column alone, where the server would begin.
        """
        equal = "".join(f"{name} = :{name} AND " for name in filters if name not in _RANGED)
        filters = [name for name in filters if name in _RANGED]
        keys = ["owner" if filters == ["owner"] else _RANGED[name] for name in filters]
        order = ", ".join(f"{key} DESC" for key in (*keys, "number"))
        if not keys:
            return f"{equal}number < {before} ORDER BY {order}"
        values = [f":{name}" for name in filters]
        ends = f"({', '.join((*keys, 'number'))}) < ({', '.join((*values, before))})"
        begins = f"({', '.join(keys)}) >= ({', '.join(values)})"
        # The last says that an owner is not null.
        return f"{equal}{ends} AND {begins} AND {keys[0]} >= {values[0]} ORDER BY {order}"

    def one_moment(self) -> AbstractAsyncContextManager[Any]:
        if self.connection.is_in_transaction():
            return contextlib.nullcontext()
        transaction: AbstractAsyncContextManager[Any] = self.connection.transaction(isolation="repeatable_read")
        return transaction

    async def compute(self, function: Callable[..., _T], *values: Any) -> _T:
        return await anyio.to_thread.run_sync(function, *values)

    async def _fetch(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        sql = statement.sql
        if "partial_events" in sql:
            sql = self.connection.readable(sql)
        rows: Sequence[Row] = await self.connection.fetch(sql, *[values[name] for name in statement.parameters])
        return rows

    async def _execute(self, statement: Statement, values: Mapping[str, Any]) -> int:
        done = await self.connection.execute(statement.sql, *[values[name] for name in statement.parameters])
        return int(done.rpartition(" ")[2])

    async def _execute_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        parameters = statement.parameters
        await self.connection.executemany(statement.sql, [[row[name] for name in parameters] for row in rows])


_FACTS: Final = statements_in("postgres")["facts"].sql


async def current_rows(connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[asyncpg.Record]:
    """Return the rows that hold where chats stand, in any order."""
    rows: list[asyncpg.Record] = await connection.fetch(f"{_FACTS} WHERE chats.id = ANY ($1)", chat_ids)
    return rows


def stored_in(row: Any) -> Stored:
    """Return the stored values that say where a chat stands, as the row holds them."""
    return Stored._make((*row[:13], "facts.body", "chats"))


async def stored_among(connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[Stored | None]:
    stored = {row["id"]: stored_in(row) for row in await current_rows(connection, chat_ids)}
    return [stored.get(chat_id) for chat_id in chat_ids]


async def prompts(connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[list[Message]]:
    messages: dict[str, list[Message]] = {chat_id: [] for chat_id in chat_ids}
    for row in await connection.fetch(SQL["prompts"], list(messages)):
        messages[row["id"]].append(message_of(row["format"], row["body"], row["id"]))
    return [in_call_order(messages[chat_id]) for chat_id in chat_ids]


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux has a monotonic clock that goes on while the machine sleeps, as the server's does."""


def passed() -> float:
    """Return the seconds of this machine's monotonic clock: of the one that counts sleep, where there is such a one."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class DatabaseClock:
    """Estimates the database's time; in a test, returns what `now` returns.

    The server read its clock at some moment between question and answer. That bounds how far its clock is from this
    machine's monotonic one; each answer may narrow or move the bounds.

    Where the machine has no clock that counts its sleep, the first commit after one may have a time of before it.
    """

    def __init__(self, now: Callable[[], datetime] | None) -> None:
        self._now = now
        self._ahead: float | None = None
        """Seconds by which the database's clock is ahead of the monotonic one."""

    def observe(self, at: datetime, *, asked_at: float) -> None:
        """Use an answer: the server's clock showed `at` some time after `asked_at`, in seconds of `passed`."""
        seconds = (at - EPOCH).total_seconds()
        least, most = seconds - passed(), seconds - asked_at
        self._ahead = least if self._ahead is None else min(max(self._ahead, least), most)

    async def timed(self, answer: Awaitable[list[asyncpg.Record]]) -> list[asyncpg.Record]:
        """Return the rows of an answer, and use the time that each has in its column `at`."""
        asked_at = passed()
        rows = await answer
        for row in rows:
            self.observe(row["at"], asked_at=asked_at)
        return rows

    def now(self) -> datetime | None:
        """Return the time; `None` before the first answer."""
        if self._now is not None:
            return self._now()
        return None if self._ahead is None else EPOCH + timedelta(seconds=passed() + self._ahead)

    def database(self, connection: asyncpg.Connection) -> PostgresDatabase:
        return PostgresDatabase(connection, self._now)

    @property
    def override(self) -> datetime | None:
        """The time of the test's clock; `None` without one."""
        return self._now() if self._now is not None else None
