"""Connections to PostgreSQL: a bounded pool that waits for a server that is away, and explains its errors."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

import anyio
import asyncpg

from turnwise.persistence.postgres.times import use_own_times
from turnwise.persistence.store_url import without_password
from turnwise.states.errors import StoreError

_T = TypeVar("_T")

PATIENCE: Final = 10.0
"""Seconds to go on trying while the server cannot be reached."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_OLDEST_SERVER: Final = 15
_WITH_TRANSACTION_TIMEOUT: Final = 17
"""The first server that can end a transaction for the time that it has taken in all."""

_BY_INDEX: Final = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off"
) | {"max_parallel_workers_per_gather": "0"}
"""Every query finds a few rows by an index, before a parallel process would have started.

Plans are kept, so one made for an empty table must not stay a scan.
"""

_KEPT_ALIVE: Final = {"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3"}

_GONE: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what asyncpg says of a connection that ends while a statement is being sent
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
)
BROKEN: Final = (*_GONE, asyncpg.PostgresError, ValueError)
"""All that asyncpg raises when a server cannot be reached or refuses."""
_OF_THE_ADDRESS: Final = (socket.gaierror, PermissionError)
"""What connecting raises if the address is wrong: a name that nobody knows, a socket of others."""
_PASSING: Final = (
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,
)
_MEANING: Final[dict[type[Exception], str]] = {
    asyncpg.QueryCanceledError: "a statement took longer than `statement_timeout` allows",
    asyncpg.InvalidAuthorizationSpecificationError: "the server refuses this user or password",
    asyncpg.InvalidCatalogNameError: "the server has no such database; create it first",
    asyncpg.InsufficientPrivilegeError: "this user may not do that; grant it the schema",
    asyncpg.ReadOnlySQLTransactionError: "this server is read-only; name the primary",
    asyncpg.DiskFullError: "the server's disk is full; make room and try again",
    asyncpg.TooManyConnectionsError: "the server accepts no more connections; lower `pool_size` or use fewer workers",
}
_OF_THE_SERVER: Final = (
    *_GONE,
    *_PASSING,
    *_MEANING,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
)
"""What lies with the server, its machine or its administrator, and not with what it was given."""

_MALFORMED: Final = "its URL has an option, a host or a port that cannot be"


class Refused(StoreError):
    """The server refused, or the pool is closed. `problem` says only that.

    `lost` says whether a call before this one ended with its connection: what it wrote may have been committed.
    """

    def __init__(self, problem: str, *, lost: bool = False, passing: bool = False) -> None:
        super().__init__(f"{problem}; nothing was written", passing=passing)
        self.problem = problem
        self.lost = lost

    def doubted(self) -> StoreError:
        """Return the error for who cannot say whether something was written."""
        problem = f"{self.problem}; it is not known whether anything was written"
        return StoreError(problem, written="unknown", passing=self.passing)


class Unreachable(Refused):
    """The server could not be reached, or went away again and again."""


class Pool:
    """Up to `size` connections; a caller who needs one more waits."""

    def __init__(self, url: str, *, size: int, schema: str, statement_timeout: float) -> None:
        self.name = repr(without_password(url))
        self._url = url
        self._size = size
        self._options: dict[str, Any] = {
            "timeout": PATIENCE,
            "command_timeout": statement_timeout + PATIENCE,
            "max_cached_statement_lifetime": 0,
            "server_settings": {"application_name": "turnwise"},
        }
        self._settings = {
            "search_path": '"' + schema.replace('"', '""') + '"',
            "default_transaction_isolation": "'read committed'",
            "plan_cache_mode": "force_generic_plan",
            **_BY_INDEX,
            "statement_timeout": f"{statement_timeout * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{statement_timeout * 1000:.0f}",
            "lock_timeout": "0",
        }
        """What every session is set to, as SQL: a pooler such as PgBouncer refuses most of it in the first message."""
        self._pool: asyncpg.Pool | None = None

    async def open(self) -> None:
        """Connect once, as a test; try again as `run` does, for up to `PATIENCE` seconds: the server may be starting.

        Raises:
            StoreError: no connection could be made, or the server is too old.
        """
        pauses = pauses_of(PATIENCE)
        while True:
            try:
                major = await self._connect()
                break
            except ValueError:  # its text and its cause may hold a part of the password
                raise StoreError(f"the store {self.name}: {_MALFORMED}; nothing was written") from None
            except BROKEN as error:
                await self.close()
                is_gone = isinstance(error, (*_GONE, *_PASSING)) and _may_pass(error)
                pause = next(pauses, 0.0) if is_gone and not isinstance(error, _OF_THE_ADDRESS) else 0.0
                if not pause:
                    raise self.meaning_of(error) from error
            await anyio.sleep(pause)
        if major < _OLDEST_SERVER:
            await self.close()
            raise StoreError(f"the store {self.name}: PostgreSQL {_OLDEST_SERVER} is needed, this server is {major}")

    async def _connect(self) -> int:
        """Make the pool, and return the server's version."""
        self._pool = await asyncpg.create_pool(
            self._url, min_size=1, max_size=self._size, init=self._set_up, reset=_keep_session, **self._options
        )
        connection = await self._pool.acquire()
        try:
            return int(connection.get_server_version().major)
        finally:
            await _give_back(self._pool, connection)

    async def close(self) -> None:
        """Wait for the connections in use, and close. Closing twice is harmless."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with anyio.CancelScope(shield=True):
                await pool.close()

    async def connect(self) -> asyncpg.Connection:
        """Return a connection outside the pool. The server notices soon if this machine is gone."""
        self._opened()
        connection = await asyncpg.connect(self._url, **self._options)
        try:
            await self._set_up(connection, **_KEPT_ALIVE)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _set_up(self, connection: asyncpg.Connection, **more: str) -> None:
        """Set a new session up, in one round trip, and let it use times as turnwise does."""
        settings = self._settings | more
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
            Unreachable: the server could not be reached within `PATIENCE` seconds.
            Refused: the server refused, or the pool is closed, perhaps since the last try.
        """
        pauses, lost = pauses_of(PATIENCE), False
        while True:
            pool = self._opened(lost=lost)
            connection = None
            try:
                connection = await pool.acquire()
                with anyio.CancelScope(shield=True):
                    return await work(connection)
            except (*_GONE, *_PASSING) as error:
                if not _may_pass(error):
                    raise self._refusal(error, lost=lost) from error
                lost = lost or (connection is not None and not isinstance(error, _PASSING))
                _drop(connection)
                pause = next(pauses, 0.0)
                if not pause:
                    raise Unreachable(self._problem_of(error), lost=lost, passing=True) from error
            except asyncpg.ReadOnlySQLTransactionError as error:
                await pool.expire_connections()  # they lead to what was the primary; new ones may reach what is
                pause = next(pauses, 0.0)
                if not pause:
                    raise self._refusal(error, lost=lost) from error
            except asyncpg.PostgresError as error:
                raise self._refusal(error, lost=lost) from error
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
                raise error.doubted() from error
            raise

    def meaning_of(self, error: Exception) -> StoreError:
        """Return a database error in words for the people who run turnwise."""
        return self._refusal(error)

    def _refusal(self, error: Exception, *, lost: bool = False) -> Refused:
        passing = isinstance(error, _OF_THE_SERVER) and not isinstance(error, ValueError)
        return Refused(self._problem_of(error), lost=lost, passing=passing)

    def _problem_of(self, error: Exception) -> str:
        meanings = (meaning for kind, meaning in _MEANING.items() if isinstance(error, kind))
        gone = isinstance(error, _GONE) and _may_pass(error)
        fallback = "the server cannot be reached" if gone else "the database refused"
        words = "no answer in time" if isinstance(error, TimeoutError) else error
        return f"the store {self.name}: {next(meanings, fallback)} (PostgreSQL: {words})"

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
        _drop(connection)  # the event loop ends, and the task that should return it may never have begun
        raise


def _drop(connection: asyncpg.Connection | None) -> None:
    """Close a connection that may be broken, so that the pool does not use it again."""
    if connection is not None:
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.terminate()


def pauses_of(patience: float) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, growing, until `patience` seconds have passed."""
    give_up, pause = time.monotonic() + patience, _FIRST_PAUSE
    while time.monotonic() < give_up:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE)


def _may_pass(error: Exception) -> bool:
    """Return whether to try again: not after a server's timeout, nor after a value that no column can hold."""
    return not isinstance(error, asyncpg.QueryCanceledError | ValueError)


async def _keep_session(connection: object) -> None:
    """Leave a returned connection as it is: nothing here changes its session, and a reset is a round trip."""
