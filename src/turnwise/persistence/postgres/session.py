"""A session with one server, perhaps through a pooler such as PgBouncer, and the times that Python cannot hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

import anyio
import asyncpg

_NO_PARTS: Final = (
    "(SELECT chat, seq, kind, 0::bigint AS step, 0::bigint AS attempt, at, body FROM events WHERE false)"
    " AS partial_events"
)


class Server(NamedTuple):
    """A host and its port, or `None` for what asyncpg finds in its environment."""

    host: str | None
    port: int | None

    def __str__(self) -> str:
        return f"{self.host or 'the default server'}{'' if self.port is None else f':{self.port}'}"


class Session(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection that knows its server."""

    __slots__ = ("cluster", "server", "timeline")

    server: Server
    cluster: str | None
    timeline: int | None
    """The server's timeline; `None` of a standby, or if it cannot be read."""

    def readable(self, sql: str) -> str:
        """Return a query that leaves the streamed parts out on a hot standby, which has no unlogged tables."""
        is_standby = getattr(self.get_settings(), "in_hot_standby", "off") == "on"
        return sql.replace("FROM partial_events", f"FROM {_NO_PARTS}") if is_standby else sql


@contextmanager
def in_use(session: Any) -> Iterator[None]:
    """Use a session that another task may end: between two steps asyncpg then misses its protocol.

    Raises:
        asyncpg.InterfaceError: the session was ended.
    """
    try:
        yield
    except AttributeError as error:
        if session.is_closed():
            raise asyncpg.InterfaceError("the connection was ended during the call") from error
        raise


_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
BEFORE_ALL: Final = str(-(2**63))
"""PostgreSQL's `-infinity`."""


async def use_own_times(connection: Any) -> None:
    """Let a connection read and write times as this module does."""
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", encoder=_encode_time, decoder=_decode_time, format="tuple"
    )


def _encode_time(time: datetime | str) -> tuple[int]:
    return (int(time) if isinstance(time, str) else (time - _EPOCH) // _MICROSECOND,)


def _decode_time(stored: tuple[int]) -> datetime | str:
    """Return the time; what no `datetime` can hold, as the microseconds since 2000 in digits."""
    try:
        return _EPOCH + timedelta(0, 0, stored[0])
    except OverflowError:
        return str(stored[0])


_PID: Final = "SELECT pg_backend_pid()"
_ROUNDS: Final = 3
"""How often to look: other clients of the pooler may use the process that we had."""
_FREE_WITHIN_S: Final = 1.0
"""Seconds in which a pooler by transaction lends the process again that it has just got back."""


class Pooling(Enum):
    """How connections lead to the server."""

    NONE = "none"
    SESSION = "session"
    TRANSACTION = "transaction"


async def pooling_of(connect: Callable[[], Awaitable[asyncpg.Connection]]) -> Pooling:
    """Return how connections lead to the server. No setting is made: they may be shared with other programs.

    A pooler invents the process number that it reports to its clients. One that pools by transaction gives the process
    of an idle client to another client.
    """
    first = await connect()
    try:
        if await first.fetchval(_PID) == first.get_server_pid():
            return Pooling.NONE
        for _ in range(_ROUNDS):
            if await _is_shared(first, connect):
                return Pooling.TRANSACTION
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        return Pooling.TRANSACTION  # a statement was prepared by one process, and executed by another
    finally:
        first.terminate()
    return Pooling.SESSION


async def _is_shared(first: asyncpg.Connection, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> bool:
    process = await first.fetchval(_PID)
    with anyio.move_on_after(_FREE_WITHIN_S):  # one that pools by session may have none left for the second
        second = await connect()
        try:
            async with second.transaction():
                if await second.fetchval(_PID) == process or await first.fetchval(_PID) != process:
                    return True
        finally:
            second.terminate()
    return False


def session_class(settings: str) -> type[Session]:
    """Return sessions that begin every transaction with these settings, and do nothing outside of one."""

    class PooledSession(Session):
        """A session of which nothing lasts longer than a transaction."""

        __slots__ = ()

        async def execute(self, query: str, *args: Any, **options: Any) -> str:
            if not self.is_in_transaction() and query.startswith("BEGIN"):
                begin = query.replace("BEGIN;", "BEGIN ISOLATION LEVEL READ COMMITTED;")
                return str(await super().execute(f"{begin} {settings}", **options))
            return str(await self._within(super().execute, query, *args, **options))

        async def executemany(self, command: str, args: Any, **options: Any) -> Any:
            return await self._within(super().executemany, command, args, **options)

        async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
            return await self._within(super().fetch, query, *args, **options)

        async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
            return await self._within(super().fetchrow, query, *args, **options)

        async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
            return await self._within(super().fetchval, query, *args, **options)

        async def _within(self, call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
            if self.is_in_transaction():
                return await call(*args, **options)
            async with self.transaction():
                return await call(*args, **options)

    return PooledSession
