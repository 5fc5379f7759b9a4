"""The pool: retries, cancelled callers, and the servers that it accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import asyncpg
import pytest

from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.refusals import Refused, Unreachable
from turnwise.states.errors import StoreError

MakePool = Callable[..., Pool]


@pytest.fixture
async def make_pool(postgres_server: str) -> AsyncIterator[MakePool]:
    """Make pools of one connection, and close them in the end."""
    async with AsyncExitStack() as stack:

        def pool(*, size: int = 1, schema: str = "public") -> Pool:
            new = Pool(postgres_server, size=size, schema=schema, statement_timeout=30)
            stack.push_async_callback(new.close)
            return new

        yield pool


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pool's waits instead of waiting."""
    seconds: list[float] = []

    async def wait(pause: float) -> None:
        seconds.append(pause)

    monkeypatch.setattr(pool.anyio, "sleep", wait)
    return seconds


def failing(*errors: Exception) -> tuple[Callable[[Any], Awaitable[str]], list[asyncpg.Connection]]:
    """Return work that fails in these ways before it succeeds, and the connections that it gets."""
    left, connections = list(errors), list[asyncpg.Connection]()

    async def work(connection: asyncpg.Connection) -> str:
        connections.append(connection._con)
        if left:
            raise left.pop(0)
        return str(await connection.fetchval("SELECT 'done'"))

    return work, connections


LOST = asyncpg.ConnectionDoesNotExistError("gone")


PASSING = [
    LOST,
    OSError("gone"),
    asyncpg.InterfaceError("closed"),
    asyncpg.InternalClientError("got result for unknown protocol state"),
    asyncpg.AdminShutdownError("the server stops"),
    asyncpg.TooManyConnectionsError("full"),
    asyncpg.IdleInTransactionSessionTimeoutError("idle"),
    asyncpg.SerializationError("rolled back"),
    asyncpg.DeadlockDetectedError("dead"),
    asyncpg.InvalidCachedStatementError("a column was added"),
]


@pytest.mark.parametrize("error", PASSING)
async def test_opening_retries_as_any_call_does(
    make_pool: MakePool, waited: list[float], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    connect, left = Pool._connect, [error, error]

    async def connect_later(self: Pool) -> int:
        if left:
            raise left.pop()
        return await connect(self)

    monkeypatch.setattr(Pool, "_connect", connect_later)
    await make_pool().open()
    assert waited == [0.02, 0.04]


@pytest.mark.parametrize("error", PASSING)
async def test_passing_error_is_retried_with_backoff(
    make_pool: MakePool, waited: list[float], error: Exception
) -> None:
    opened = make_pool()
    await opened.open()
    work, connections = failing(error, error, error)
    assert await opened.run(work) == "done"
    assert waited == [0.02, 0.04, 0.08]
    assert len(set(map(id, connections))) == 4
    assert [connection.is_closed() for connection in connections] == [True, True, True, False]


async def test_call_on_an_ended_connection_is_retried(make_pool: MakePool, waited: list[float]) -> None:
    """The driver raises a bare `AttributeError` if another task ends the connection between two of its steps."""
    opened = make_pool()
    await opened.open()
    connections: list[asyncpg.Connection] = []

    async def work(connection: asyncpg.Connection) -> str:
        connections.append(connection._con)
        if len(connections) == 1:
            connections[0].terminate()
            connections[0]._protocol.bind_execute()
        return str(await connection.fetchval("SELECT 'done'"))

    async def fail(_: asyncpg.Connection) -> None:
        raise AttributeError("a bug")

    assert await opened.run(work) == "done"
    assert (waited, connections[0] is connections[1]) == ([0.02], False)
    with pytest.raises(AttributeError, match="a bug"):
        await opened.run(fail)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.QueryCanceledError("too long"),
        asyncpg.UndefinedTableError("no table"),
        asyncpg.DataError("no such value"),
        asyncpg.ClientConfigurationError("no such option"),
    ],
)
async def test_refusal_is_not_retried(make_pool: MakePool, waited: list[float], error: Exception) -> None:
    opened = make_pool()
    await opened.open()
    work, connections = failing(error)
    with pytest.raises(StoreError, match="nothing was written") as refused:
        await opened.run(work)
    assert not isinstance(refused.value, Unreachable)
    assert refused.value.__cause__ is error
    assert await opened.run(work) == "done"
    assert waited == []
    assert connections[0] is connections[1]


async def test_read_only_connection_renews_the_pool(make_pool: MakePool, waited: list[float]) -> None:
    """After a failover connections may lead to the former primary for as long as they are in use."""
    opened = make_pool(size=2)
    await opened.open()

    async def demote(connection: asyncpg.Connection) -> None:
        await connection.execute("SET default_transaction_read_only = on")

    async def demote_both(connection: asyncpg.Connection) -> None:
        await demote(connection)
        await opened.run(demote)

    async def write(connection: asyncpg.Connection) -> None:
        await connection.execute("CREATE SCHEMA IF NOT EXISTS public")

    async def write_by_both(connection: asyncpg.Connection) -> None:
        await write(connection)
        await opened.run(write)

    await opened.run(demote_both)
    await opened.run(write_by_both)
    assert waited == [pool._FIRST_PAUSE]


ROLLED_BACK = asyncpg.SerializationError("rolled back")
AWAY = ConnectionRefusedError("away")


@pytest.mark.parametrize(
    ("before", "lost"),
    [([], False), ([LOST], True), ([ROLLED_BACK], False), ([LOST, ROLLED_BACK], True), ([AWAY], False)],
    ids=["at once", "cut off", "rolled back", "cut off, and rolled back", "never begun"],
)
async def test_only_a_cut_call_may_have_committed(
    make_pool: MakePool,
    waited: list[float],
    monkeypatch: pytest.MonkeyPatch,
    before: list[Exception],
    lost: bool,
) -> None:
    opened = make_pool()
    await opened.open()
    acquire, away = asyncpg.Pool.acquire, [error for error in before if error is AWAY]

    def greet(self: asyncpg.Pool, **options: Any) -> Any:
        if away:
            raise away.pop()
        return acquire(self, **options)

    monkeypatch.setattr(asyncpg.Pool, "acquire", greet)
    work, _ = failing(*[error for error in before if error is not AWAY], asyncpg.UndefinedTableError("no table"))
    with pytest.raises(StoreError, match="not known" if lost else "nothing was written"):
        await opened.write(work)
    assert len(waited) == len(before)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the executed statements that return no rows."""
    statements, execute = list[str](), asyncpg.Connection.execute

    async def noted(self: asyncpg.Connection, query: str) -> str:
        statements.append(query)
        return await execute(self, query)

    monkeypatch.setattr(asyncpg.Connection, "execute", noted)
    return statements


async def settings_of(connection: asyncpg.Connection) -> dict[str, str]:
    return dict(await connection.fetch("SELECT name, setting FROM pg_settings"))


async def test_session_setup_is_one_statement(make_pool: MakePool, executed: list[str]) -> None:
    """It selects the schema, and bounds each statement and idle transaction."""
    opened = make_pool(schema='the "schema"')
    await opened.open()
    own = await opened.connect()
    assert len(executed) == 2
    for settings in (await opened.run(settings_of), await settings_of(own)):
        assert settings["search_path"] == '"the ""schema"""'
        assert settings["default_transaction_isolation"] == "read committed"
        assert settings["plan_cache_mode"] == "force_generic_plan"
        assert [settings[name] for name in pool._BY_INDEX] == [*pool._BY_INDEX.values()]
        assert settings["statement_timeout"] == "30000"
        assert settings["idle_in_transaction_session_timeout"] == "5000"
        assert settings["lock_timeout"] == "5000"
    own.terminate()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (LOST, True),
        (ConnectionRefusedError("away"), True),
        (asyncpg.QueryCanceledError("too long"), True),
        (asyncpg.DiskFullError("full"), True),
        (asyncpg.OutOfMemoryError("none left"), True),
        (asyncpg.ReadOnlySQLTransactionError("a replica"), True),
        (asyncpg.InvalidPasswordError("another now"), True),
        (asyncpg.PostgresIOError("a bad disk"), True),
        (asyncpg.ClientConfigurationError("no such option"), False),
        (asyncpg.CheckViolationError("no"), False),
        (asyncpg.UndefinedTableError("no table"), False),
        (asyncpg.DataError("no such value"), False),
        (asyncpg.exceptions.DataError("no such value"), False),
    ],
)
async def test_server_errors_are_passing(make_pool: MakePool, error: Exception, *, passes: bool) -> None:
    refused = make_pool().meaning_of(error)
    assert refused.passing is passes
    assert isinstance(refused, Refused)
    assert refused.with_unknown_outcome().passing is passes


async def test_cancelled_caller_waits_for_the_statement(make_pool: MakePool) -> None:
    """It may have been stored, and the caller must learn the outcome."""
    opened = make_pool()
    await opened.open()
    results: list[str] = []
    with anyio.CancelScope() as scope:

        async def work(connection: asyncpg.Connection) -> str:
            scope.cancel()
            return str(await connection.fetchval("SELECT 'done'"))

        results.append(await opened.run(work))
    assert results == ["done"]
    with anyio.CancelScope() as scope:
        scope.cancel()
        inner = opened._opened()
        await opened.close()
    assert inner.is_closing()
    with pytest.raises(StoreError, match="not open"):
        await opened.run(work)


async def test_refusing_server_is_not_waited_for(make_pool: MakePool, waited: list[float]) -> None:
    refused = make_pool()
    refused._url = refused._url.replace("/postgres?", "/nowhere?")
    with pytest.raises(StoreError, match="no such database"):
        await refused.open()
    assert waited == []


async def test_server_below_minimum_version_is_refused(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = make_pool()
    await opened.open()
    major = await opened.run(lambda on: on.fetchval("SELECT current_setting('server_version_num')::int / 10000"))
    monkeypatch.setattr(pool, "_OLDEST_SERVER", major)
    second = make_pool()
    await second.open()
    monkeypatch.setattr(pool, "_OLDEST_SERVER", major + 1)
    third = make_pool()
    with pytest.raises(StoreError, match=f"PostgreSQL {major + 1} is needed, this server is {major}"):
        await third.open()
    with pytest.raises(StoreError, match="not open"):
        third._opened()
