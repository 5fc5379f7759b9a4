"""The pool: what is tried again and what is not, what a caller who is cancelled leaves behind, and who is let in."""

from __future__ import annotations

import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres.pool import Pool, Refused, Unreachable
from turnwise.states.errors import StoreError

MakePool = Callable[..., Pool]


@pytest.fixture
async def make_pool(postgres_server: str) -> AsyncIterator[MakePool]:
    """Make pools of one connection, and close them in the end."""
    async with AsyncExitStack() as stack:

        def made(*, size: int = 1, schema: str = "public") -> Pool:
            new = Pool(postgres_server, size=size, schema=schema, statement_timeout=30)
            stack.push_async_callback(new.close)
            return new

        yield made


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long the pool has waited; it does not wait."""
    seconds: list[float] = []

    async def wait(pause: float) -> None:
        seconds.append(pause)

    monkeypatch.setattr(pool.anyio, "sleep", wait)
    return seconds


def failing(*errors: Exception) -> tuple[Callable[[Any], Awaitable[str]], list[asyncpg.Connection]]:
    """Return work that fails in these ways before it succeeds, and the connections that it gets."""
    left, given = list(errors), list[asyncpg.Connection]()

    async def work(connection: asyncpg.Connection) -> str:
        given.append(connection._con)
        if left:
            raise left.pop(0)
        return str(await connection.fetchval("SELECT 'done'"))

    return work, given


LOST = asyncpg.ConnectionDoesNotExistError("gone")


@pytest.mark.parametrize(
    "error",
    [
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
    ],
)
async def test_what_may_pass_is_tried_again_on_another_connection_and_ever_more_seldom(
    make_pool: MakePool, waited: list[float], error: Exception
) -> None:
    opened = make_pool()
    await opened.open()
    work, given = failing(error, error, error)
    assert await opened.run(work) == "done"
    assert waited == [0.02, 0.04, 0.08]
    assert len(set(map(id, given))) == 4
    assert [connection.is_closed() for connection in given] == [True, True, True, False]


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.QueryCanceledError("too long"),
        asyncpg.UndefinedTableError("no table"),
        asyncpg.DataError("no such value"),
        asyncpg.ClientConfigurationError("no such option"),
    ],
)
async def test_what_the_server_refuses_is_not_tried_again_and_the_connection_serves_on(
    make_pool: MakePool, waited: list[float], error: Exception
) -> None:
    opened = make_pool()
    await opened.open()
    work, given = failing(error)
    with pytest.raises(StoreError, match="nothing was written") as refused:
        await opened.run(work)
    assert not isinstance(refused.value, Unreachable)
    assert refused.value.__cause__ is error
    assert await opened.run(work) == "done"
    assert waited == []
    assert given[0] is given[1]


async def test_all_connections_are_made_anew_when_one_may_only_read(make_pool: MakePool, waited: list[float]) -> None:
    """After a failover they may lead to the server that was the primary, and would for as long as they are in use."""
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


async def test_a_server_that_stays_read_only_is_refused_when_the_patience_is_over(
    make_pool: MakePool, waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that recovers, or takes over from another, is so for seconds; a replica for ever."""
    opened = make_pool()
    await opened.open()
    error = asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction")
    work, given = failing(error, error, error)
    assert await opened.run(work) == "done"
    assert (len(given), len(waited)) == (4, 3)
    monkeypatch.setattr(pool, "PATIENCE", 0)
    work, given = failing(error, error)
    with pytest.raises(Refused, match=r"read-only; name the primary.*nothing was written") as refused:
        await opened.run(work)
    assert not isinstance(refused.value, Unreachable)
    assert (refused.value.passing, refused.value.lost) == (True, False)
    assert (len(given), len(waited)) == (1, 3)


@pytest.mark.parametrize(
    ("error", "told"),
    [(LOST, "cannot be reached"), (TimeoutError(), r"\(PostgreSQL: no answer in time\)")],
    ids=["lost", "the driver's error has no words"],
)
async def test_without_patience_the_first_failure_is_the_last(
    make_pool: MakePool, waited: list[float], monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    opened = make_pool()
    await opened.open()
    monkeypatch.setattr(pool, "PATIENCE", 0)
    work, given = failing(error, error)
    with pytest.raises(Unreachable, match=told) as unreachable:
        await opened.run(work)
    assert (len(given), waited) == (1, [])
    assert unreachable.value.passing
    monkeypatch.setattr(pool.time, "monotonic", lambda: 100.0)
    assert list(islice(pool.pauses_of(0), 2)) == []


ROLLED_BACK = asyncpg.SerializationError("rolled back")
AWAY = ConnectionRefusedError("away")


@pytest.mark.parametrize(
    ("before", "lost"),
    [([], False), ([LOST], True), ([ROLLED_BACK], False), ([LOST, ROLLED_BACK], True), ([AWAY], False)],
    ids=["at once", "cut off", "rolled back", "cut off, and rolled back", "never begun"],
)
async def test_only_a_call_that_was_cut_off_may_have_been_committed(
    make_pool: MakePool,
    waited: list[float],
    monkeypatch: pytest.MonkeyPatch,
    before: list[Exception],
    lost: bool,  # noqa: FBT001
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


@pytest.mark.parametrize(("error", "written"), [(LOST, "unknown"), (ROLLED_BACK, "no")], ids=["cut off", "rolled back"])
async def test_a_pool_that_is_closed_before_the_next_try_tells_what_became_of_the_last(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, error: Exception, written: str
) -> None:
    opened = make_pool()
    await opened.open()

    async def close(_pause: float) -> None:
        await opened.close()

    monkeypatch.setattr(pool.anyio, "sleep", close)
    work, given = failing(error)
    with pytest.raises(StoreError, match="is not open") as refused:
        await opened.write(work)
    assert (refused.value.written, len(given)) == (written, 1)


@pytest.fixture
async def began_with() -> AsyncIterator[tuple[str, list[set[str]]]]:
    """Return the URL of a server that refuses everyone, and the parameters in the first message of whoever came."""
    began: list[set[str]] = []
    refusal = b"SFATAL\0C08P01\0Munsupported startup parameter\0\0"

    async def refuse(stream: SocketStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            size = int.from_bytes(await reader.receive_exactly(4), "big") - 4
            message = (await reader.receive_exactly(size)).removesuffix(b"\0\0")
            began.append({name.decode() for name in message[4:].split(b"\0")[::2]})
            await stream.send(b"E" + (len(refusal) + 4).to_bytes(4, "big") + refusal)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, refuse)
        port = listener.extra_attributes[SocketAttribute.local_port]()
        yield f"postgresql://someone@127.0.0.1:{port}/chats?sslmode=disable", began
        tasks.cancel_scope.cancel()


async def test_a_connection_begins_with_nothing_that_a_pooler_would_refuse(
    make_pool: MakePool, began_with: tuple[str, list[set[str]]]
) -> None:
    """PgBouncer takes these, and a few more that are not needed; what it is told to ignore would be lost."""
    url, began = began_with
    with pytest.raises(StoreError, match="unsupported startup parameter"):
        await Pool(url, size=1, schema="s", statement_timeout=30).open()
    opened = make_pool()
    await opened.open()
    opened._url = url
    with pytest.raises(asyncpg.PostgresError, match="unsupported startup parameter"):
        await opened.connect()
    assert began == [{"user", "database", "client_encoding", "application_name"}] * 2


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements that connections have executed, as far as they return no rows."""
    statements, execute = list[str](), asyncpg.Connection.execute

    async def noted(self: asyncpg.Connection, query: str) -> str:
        statements.append(query)
        return await execute(self, query)

    monkeypatch.setattr(asyncpg.Connection, "execute", noted)
    return statements


async def settings_of(connection: asyncpg.Connection) -> dict[str, str]:
    return dict(await connection.fetch("SELECT name, setting FROM pg_settings"))


async def test_every_session_is_set_up_in_one_round_trip(make_pool: MakePool, executed: list[str]) -> None:
    """It finds the tables of its schema, and no statement or idle transaction of it goes on for ever."""
    opened = make_pool(schema='the "schema"')
    await opened.open()
    own = await opened.connect()
    assert len(executed) == 2
    for settings in (await opened.run(settings_of), await settings_of(own)):
        assert settings["search_path"] == '"the ""schema"""'
        assert settings["default_transaction_isolation"] == "read committed"
        assert settings["plan_cache_mode"] == "force_generic_plan"
        assert [settings[name] for name in pool._BY_INDEX] == [*pool._BY_INDEX.values()]
        assert settings["statement_timeout"] == settings["idle_in_transaction_session_timeout"] == "30000"
    own.terminate()


@pytest.mark.parametrize("limit", ["lock_timeout", "transaction_timeout"])
async def test_a_limit_that_the_database_gives_its_users_does_not_count(
    make_pool: MakePool, beside: asyncpg.Connection, limit: str
) -> None:
    """A chat would end in an error where it can wait: `statement_timeout` says for how long."""
    if not await beside.fetchval("SELECT count(*) FROM pg_settings WHERE name = $1", limit):
        pytest.skip(f"this server has no {limit}")
    opened = make_pool()
    opened._url += f"{'&' if '?' in opened._url else '?'}{limit}=1000"  # it begins as by ALTER ROLE ... SET
    await opened.open()
    assert (await opened.run(settings_of))[limit] == "0"


async def test_a_connection_of_its_own_is_kept_alive(make_pool: MakePool, executed: list[str]) -> None:
    """It holds the locks by which others see that this process lives: its server must notice soon that it does not."""
    opened = make_pool()
    await opened.open()
    (await opened.connect()).terminate()
    of_the_pool, own = (dict(re.findall(r"SET tcp_keepalives_(\w+) = (\d+)", statement)) for statement in executed)
    assert of_the_pool == {}
    assert int(own["idle"]) + int(own["interval"]) * int(own["count"]) <= 15, "postgresql.md says so"


@pytest.mark.parametrize("way", ["create_pool", "connect"])
async def test_a_server_that_says_nothing_at_all_is_waited_for_no_longer_than_others(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    limits, real = [], getattr(asyncpg, way)

    async def noted(*given: Any, timeout: float, **options: Any) -> Any:  # noqa: ASYNC109 - it is asyncpg's
        limits.append(timeout)
        return await real(*given, timeout=timeout, **options)

    monkeypatch.setattr(pool.asyncpg, way, noted)
    opened = make_pool()
    await opened.open()
    (await opened.connect()).terminate()
    assert limits == [pool.PATIENCE]


async def test_a_connection_of_its_own_that_cannot_be_used_is_closed(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, begun = make_pool(), list[asyncpg.Connection]()
    await opened.open()

    async def fail(connection: asyncpg.Connection) -> None:
        begun.append(connection)
        raise LOST

    monkeypatch.setattr(pool, "use_own_times", fail)
    with pytest.raises(asyncpg.ConnectionDoesNotExistError):
        await opened.connect()
    assert [connection.is_closed() for connection in begun] == [True]


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
async def test_what_lies_with_the_server_passes(make_pool: MakePool, error: Exception, *, passes: bool) -> None:
    refused = make_pool().meaning_of(error)
    assert refused.passing is passes
    assert isinstance(refused, Refused)
    assert refused.doubted().passing is passes


async def test_what_is_under_way_is_finished_and_told_to_a_caller_who_is_cancelled(make_pool: MakePool) -> None:
    """It may have been stored: who gives it up would tell nobody."""
    opened = make_pool()
    await opened.open()
    told: list[str] = []
    with anyio.CancelScope() as scope:

        async def work(connection: asyncpg.Connection) -> str:
            scope.cancel()
            return str(await connection.fetchval("SELECT 'done'"))

        told.append(await opened.run(work))
    assert told == ["done"]
    with anyio.CancelScope() as scope:
        scope.cancel()
        inner = opened._opened()
        await opened.close()
    assert inner.is_closing()
    with pytest.raises(StoreError, match="not open"):
        await opened.run(work)


async def test_a_connection_comes_back_to_the_pool_without_a_round_trip(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    async def reset(self: object, **_options: object) -> None:
        asked.append(self)

    monkeypatch.setattr(asyncpg.Connection, "reset", reset)
    opened = make_pool()
    await opened.open()
    await opened.run(lambda on: on.fetchval("SELECT 1"))
    assert asked == []


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("no"),
        ConnectionResetError("reset"),
        FileNotFoundError("no socket"),
        asyncpg.CannotConnectNowError("starting up"),
        LOST,
        asyncpg.TooManyConnectionsError("full"),
    ],
)
@pytest.mark.parametrize("method", ["connecting", "greeting"])
async def test_a_server_that_is_starting_is_waited_for(
    make_pool: MakePool, waited: list[float], monkeypatch: pytest.MonkeyPatch, error: Exception, method: str
) -> None:
    """What was begun with it before is closed."""
    left = [error, error]
    begun: list[asyncpg.Pool] = []
    create, acquire = asyncpg.create_pool, asyncpg.Pool.acquire

    async def connect(*arguments: Any, **options: Any) -> asyncpg.Pool:
        if method == "connecting" and left:
            raise left.pop()
        begun.append(await create(*arguments, **options))
        return begun[-1]

    def greet(self: asyncpg.Pool, **options: Any) -> Any:
        if method == "greeting" and left:
            raise left.pop()
        return acquire(self, **options)

    monkeypatch.setattr(pool.asyncpg, "create_pool", connect)
    monkeypatch.setattr(asyncpg.Pool, "acquire", greet)
    opened = make_pool()
    await opened.open()
    assert waited == [0.02, 0.04]
    assert [early.is_closing() for early in begun] == [True] * (len(begun) - 1) + [False]
    assert await opened.run(lambda on: on.fetchval("SELECT 1")) == 1


async def test_a_server_that_refuses_is_not_waited_for(make_pool: MakePool, waited: list[float]) -> None:
    refused = make_pool()
    refused._url = refused._url.replace("/postgres?", "/nowhere?")
    with pytest.raises(StoreError, match="no such database"):
        await refused.open()
    assert waited == []


async def test_a_url_that_cannot_be_is_refused_without_its_text() -> None:
    odd = Pool("postgresql://me:secret@host:port/db", size=1, schema="s", statement_timeout=1)
    with pytest.raises(StoreError, match="an option, a host or a port that cannot be") as refused:
        await odd.open()
    assert "secret" not in str(refused.value)
    begun = Pool("postgresql://me:secret/ly@host/db", size=1, schema="s", statement_timeout=1)
    with pytest.raises(StoreError) as refused:
        await begun.open()
    assert "secret" not in "".join(traceback.format_exception(refused.value))


async def test_the_oldest_server_is_let_in_and_an_older_one_is_not(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_documents_say_which_server_is_the_oldest() -> None:
    text = (Path(__file__).parents[2] / "docs" / "postgresql.md").read_text()
    oldest = re.search(r"PostgreSQL (\d+) or later", text)
    assert oldest is not None
    assert int(oldest[1]) == pool._OLDEST_SERVER


def test_the_server_gives_up_on_a_statement_before_its_client_does() -> None:
    """Its refusal says what it is."""
    assert Pool("postgresql://x", size=1, schema="s", statement_timeout=30)._options["command_timeout"] > 30
