"""Connections to PostgreSQL: a bounded pool that waits for a server that is away, and explains its errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import anyio
import asyncpg

from turnwise.persistence.postgres.refusals import (
    BROKEN,
    GONE,
    OF_THE_ADDRESS,
    PASSING,
    Refused,
    Unreachable,
    may_pass,
    problem_of,
    refusal,
)
from turnwise.persistence.postgres.servers import Known, Servers, Watch
from turnwise.persistence.postgres.session import Pooling, Session, in_use, pooling_of, session_class, use_own_times
from turnwise.persistence.postgres.timeouts import CLOSE_S, GONE_AFTER_S, IDLE_IN_TRANSACTION_S, LOCK_S, RETRY_S
from turnwise.persistence.store_url import without_password
from turnwise.sockets import keepalive
from turnwise.states.errors import SettingsError, StoreError

_T = TypeVar("_T")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_OLDEST_SERVER: Final = 15
_WITH_TRANSACTION_TIMEOUT: Final = 17
"""The first server that can end a transaction for the time that it has taken in all."""

_BY_INDEX: Final = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off"
) | {"max_parallel_workers_per_gather": "0"}
"""Every query finds a few rows by an index, before a parallel process would have started.

Plans are cached: one made for an empty table must not stay a scan.
"""
_PROBES: Final = keepalive(GONE_AFTER_S)
_KEPT_ALIVE: Final = {
    "tcp_keepalives_idle": f"{_PROBES.idle}",
    "tcp_keepalives_interval": f"{_PROBES.interval}",
    "tcp_keepalives_count": f"{_PROBES.probes}",
    "tcp_user_timeout": f"{GONE_AFTER_S * 1000}",
}
"""The server ends a session whose packets vanish, too: also while it waits for an acknowledgement."""

_MALFORMED: Final = "its URL has an option, a host or a port that cannot be"
_NEEDS_DIRECT_URL: Final = (
    "is needed: the store {store} is behind a pooler that pools by transaction. Name an address that leads to the"
    " server itself, by PostgresStore(url, direct_url=...) or ?direct_url=... in the URL; or let the pooler pool by"
    " session (PgBouncer: pool_mode = session); or turn notices off with ?listen=false"
)


class Pool:
    """Up to `size` connections; a caller who needs one more waits. With `direct_url` one beside them leads there."""

    def __init__(
        self,
        url: str,
        *,
        size: int,
        schema: str,
        statement_timeout: float,
        direct_url: str | None = None,
        listens: bool = True,
    ) -> None:
        self.name = repr(without_password(url))
        self._url = url
        self._direct_url = direct_url
        self._listens = listens
        self._size = size
        self._options: dict[str, Any] = {
            "command_timeout": statement_timeout + RETRY_S,
            "max_cached_statement_lifetime": 0,
            "server_settings": {"application_name": "turnwise"},
        }
        self._settings = {
            "search_path": '"' + schema.replace('"', '""') + '"',
            "default_transaction_isolation": "'read committed'",
            "plan_cache_mode": "force_generic_plan",
            **_BY_INDEX,
            "statement_timeout": f"{statement_timeout * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{min(IDLE_IN_TRANSACTION_S, statement_timeout) * 1000:.0f}",
            "lock_timeout": f"{LOCK_S * 1000:.0f}",
        }
        """What every session is set to, as SQL: a pooler such as PgBouncer refuses most of it in the first message."""
        self._pool: asyncpg.Pool | None = None
        self._known = Known()
        self._servers = self._direct_servers = self._new_servers(url)
        self._ending = False

    async def open(self) -> None:
        """Connect once, as a test; try again as `run` does, for up to `RETRY_S` seconds: the server may be starting.

        Raises:
            SettingsError: a pooler is in the way.
            StoreError: no connection could be made, or the server is too old.
        """
        pauses = pauses_of(RETRY_S)
        self._ending = False
        while True:
            try:
                major = await self._connect()
                break
            except ValueError:  # its text and its cause may hold a part of the password
                raise StoreError(f"the store {self.name}: {_MALFORMED}; nothing was written") from None
            except BROKEN as error:
                await self.close()
                is_gone = isinstance(error, (*GONE, *PASSING)) and may_pass(error)
                pause = next(pauses, 0.0) if is_gone and not isinstance(error, OF_THE_ADDRESS) else 0.0
                if not pause:
                    raise self.meaning_of(error) from error
            await anyio.sleep(pause)
        if major < _OLDEST_SERVER:
            await self.close()
            raise StoreError(f"the store {self.name}: PostgreSQL {_OLDEST_SERVER} is needed, this server is {major}")

    async def _connect(self) -> int:
        self._servers = await self._servers_of_the_pool()
        self._direct_servers = self._servers if self._direct_url is None else self._new_servers(self._direct_url)
        self._pool = await asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=self._size,
            connect=self._servers.connect,
            connection_class=Session,
            reset=_leave_as_it_is,
        )
        connection = await self._pool.acquire()
        try:
            return int(connection.get_server_version().major)
        finally:
            await _give_back(self._pool, connection)

    async def _servers_of_the_pool(self) -> Servers:
        """Return how the pool connects, which depends on whether a pooler is in between.

        Raises:
            SettingsError: a pooler pools by transaction, and there is no direct way to listen.
        """
        uncached = self._options | {"statement_cache_size": 0}
        plain = Servers(self._url, _leave_as_it_is, self._known, **uncached)
        pooling = await pooling_of(plain.connect)
        if pooling is Pooling.TRANSACTION and self._listens and self._direct_url is None:
            raise SettingsError("direct_url", _NEEDS_DIRECT_URL.format(store=self.name))
        if pooling is Pooling.NONE or (self._listens and self._direct_url is None):
            return self._new_servers(self._url)
        settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in self._settings.items())
        return Servers(self._url, use_own_times, self._known, session_class=session_class(settings), **uncached)

    def _new_servers(self, url: str) -> Servers:
        return Servers(url, self._set_up, self._known, **self._options)

    async def close(self) -> None:
        """Wait for the connections in use, for a while, and close. Closing twice is harmless."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await pool.close()
        for servers in {self._servers, self._direct_servers}:
            servers.give_up()
            await servers.close()

    def end_calls_within(self, seconds: float) -> None:
        """Let every call end within so many seconds, even if it cannot be known whether it was done."""
        if self._pool is not None:
            asyncio.get_running_loop().call_later(seconds, self._give_up, self._pool)

    def _give_up(self, pool: asyncpg.Pool) -> None:
        if pool is self._pool:  # and not closed, and perhaps opened again since
            self._ending = True
            self._servers.give_up()
            self._direct_servers.give_up()

    async def connect(self) -> Session:
        """Return a connection outside the pool. It leads to the server itself, if there is a `direct_url`."""
        self._opened()
        return await self._direct_servers.connect()

    def answer_of(self, session: Session, *, within_s: float) -> AbstractContextManager[None]:
        """Give the server of a session so many seconds to answer; if it is silent, end all connections to it."""
        return self._direct_servers.answer_of(session.server, within_s)

    async def _set_up(self, connection: asyncpg.Connection) -> None:
        """Set a new session up, in one round trip, and let it use times as turnwise does."""
        settings = self._settings | _KEPT_ALIVE
        if connection.get_server_version().major >= _WITH_TRANSACTION_TIMEOUT:
            settings["transaction_timeout"] = "0"
        await connection.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()))
        await use_own_times(connection)

    async def run(self, work: Callable[[Any], Awaitable[_T]]) -> _T:
        """Call `work` with a connection, in a scope that cannot be cancelled, and return its result.

        `work` is called again, on another connection, if its connection was lost, if the server rolled it back in
        favour of another transaction, or if the server may only be read: it recovers perhaps, or is becoming the
        primary. It must then find out for itself whether its last call was committed.

        Raises:
            Unreachable: the server could not be reached for `RETRY_S` seconds.
            Refused: the server refused, or the pool is closed, perhaps since the last try.
        """
        pauses: Iterator[float] | None = None
        lost = False
        while True:
            pool = self._opened(lost=lost)
            connection = None
            try:
                connection = await pool.acquire()
                with anyio.CancelScope(shield=True), Watch(self._servers, connection.server), in_use(connection):
                    return await work(connection)
            except (*GONE, *PASSING, asyncpg.ReadOnlySQLTransactionError) as error:
                if not may_pass(error):
                    raise self.meaning_of(error, lost=lost) from error
                pauses = pauses or pauses_of(RETRY_S)  # from the first failure on
                pause = 0.0 if self._ending else next(pauses, 0.0)
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    # All lead to what was the primary; new ones may reach what is.
                    self._servers.end_sessions()
                    if not pause:
                        raise self.meaning_of(error, lost=lost) from error
                else:
                    lost = lost or (connection is not None and not isinstance(error, PASSING))
                    _drop(connection)
                    if not pause:
                        raise Unreachable(problem_of(self.name, error), lost=lost, passing=True) from error
            except asyncpg.PostgresError as error:
                raise self.meaning_of(error, lost=lost) from error
            finally:
                if connection is not None:
                    await _give_back(pool, connection)
            await anyio.sleep(pause)

    async def write(self, work: Callable[[Any], Awaitable[_T]], *, lost: bool = False) -> _T:
        """Do as `run` does with work that changes something. `lost` says that an answer to it was lost before.

        Raises:
            StoreError: the server refused or could not be reached. Its text says whether something may be written.
        """
        try:
            return await self.run(work)
        except Refused as error:
            if lost or error.lost:
                raise error.with_unknown_outcome() from error
            raise

    def meaning_of(self, error: Exception, *, lost: bool = False) -> Refused:
        return refusal(self.name, error, lost=lost)

    def _opened(self, *, lost: bool = False) -> asyncpg.Pool:
        if self._pool is None:
            raise Refused(f"the store {self.name} is not open; open it, or enter the engine, first", lost=lost)
        return self._pool


async def _give_back(pool: asyncpg.Pool, connection: Any) -> None:
    """Return a connection to its pool, even in a cancelled scope."""
    try:
        with anyio.CancelScope(shield=True):
            await pool.release(connection)
    except asyncio.CancelledError:
        _drop(connection)  # the event loop ends, and the task that should return it may never have started
        raise


def _drop(connection: asyncpg.Connection | None) -> None:
    """Close a connection that may be broken, so that the pool does not use it again."""
    if connection is not None:
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.terminate()


def pauses_of(seconds: float) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, growing, until so many seconds have passed."""
    give_up, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while time.monotonic() < give_up:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE)


async def _leave_as_it_is(connection: object) -> None:
    """Neither set up nor reset a session: a probe needs no setup, and a reset would cost a round trip."""
