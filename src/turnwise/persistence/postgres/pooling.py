"""Poolers such as PgBouncer: how they pool, and sessions that need nothing beyond the end of a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final

import anyio
import asyncpg

from turnwise.persistence.postgres.session import Session

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

    A pooler invents the process number that it tells its clients. One that pools by transaction lends the process of an
    idle client to another client.
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
