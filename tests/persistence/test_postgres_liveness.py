"""Who has died: the server sees the end of a session, and nobody is thought dead whose connection was merely cut."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import asyncpg
import pytest

from turnwise.persistence.conformance import plans
from turnwise.persistence.postgres import liveness, notices
from turnwise.persistence.postgres.store import PostgresStore

Attend = Callable[[str], Awaitable[tuple[PostgresStore, AsyncIterator[str | None]]]]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that have passed for those who judge: a test sets them. The server is up for long."""
    seconds = [100.0]
    monkeypatch.setattr(liveness, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(liveness, "SETTLED", 0)
    return seconds


@pytest.fixture
async def attend(postgres_url: str) -> AsyncIterator[Attend]:
    """Open a store for a worker, as its process would; its session stands when its name is returned."""
    watches = []  # a watch that nobody holds ends its session
    async with AsyncExitStack() as stack:

        async def attended(worker: str) -> tuple[PostgresStore, AsyncIterator[str | None]]:
            store = PostgresStore(postgres_url, poll_interval=0.05)
            await store.open()
            stack.push_async_callback(store.close)
            store.attend(worker)
            watch = aiter(store.watch())
            watches.append(watch)
            assert await anext(watch) is None
            return store, watch

        yield attended


async def end_session(beside: asyncpg.Connection, worker: str) -> None:
    """End the session of a worker, as its death would; return when the server has seen the end of it."""
    locked = (
        "FROM pg_locks WHERE locktype = 'advisory'"
        " AND classid::bigint << 32 | objid::bigint = hashtextextended(current_schema() || ' ' || $1, 0)"
    )
    assert await beside.fetchval(f"SELECT pg_terminate_backend(pid) {locked}", worker)
    while await beside.fetchval(f"SELECT count(*) {locked}", worker):
        await anyio.lowlevel.checkpoint()


async def test_a_worker_whose_session_has_ended_is_gone_after_a_moment(
    attend: Attend, beside: asyncpg.Connection, passed: list[float]
) -> None:
    """And nobody else: not who lives, nor who was never heard of."""
    everyone = ["judge", "killed", "alive", "unheard of"]
    judge, _ = await attend("judge")
    await attend("killed")
    await attend("alive")
    assert await judge.gone(everyone) == frozenset()
    await end_session(beside, "killed")
    assert await judge.gone(everyone) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(everyone) == {"killed"}
    assert await judge.gone(["alive"]) == frozenset()


KEY = "hashtextextended($1 || ' ' || $2, 0)"
ALIKE = {
    "of another database": f"SELECT pg_advisory_lock_shared({KEY})",
    "of two keys": f"SELECT pg_advisory_lock_shared(({KEY} >> 32)::int, (({KEY} << 32) >> 32)::int)",
    "of another schema": "SELECT pg_advisory_lock_shared(hashtextextended('not' || $1 || ' ' || $2, 0))",
}


@asynccontextmanager
async def locked_alike(
    beside: asyncpg.Connection, postgres_server: str, alike: str, worker: str
) -> AsyncIterator[None]:
    """Hold a lock that is not the worker's, and differs in one thing from it."""
    schema = await beside.fetchval("SELECT current_schema()")
    elsewhere = f"{schema}_copy"
    await beside.execute(f"CREATE DATABASE {elsewhere}")
    other = await asyncpg.connect(
        postgres_server, **({"database": elsewhere} if alike == "of another database" else {})
    )
    try:
        await other.fetchval(ALIKE[alike], schema, worker)
        yield
    finally:
        await other.close()
        await beside.execute(f"DROP DATABASE {elsewhere} WITH (FORCE)")


@pytest.mark.parametrize("alike", ALIKE)
async def test_a_lock_that_is_not_the_workers_keeps_nobody_alive(
    attend: Attend, beside: asyncpg.Connection, postgres_server: str, passed: list[float], alike: str
) -> None:
    """A copy of the database has workers of the same names; other programs have locks of their own."""
    judge, _ = await attend("judge")
    await attend("killed")
    await end_session(beside, "killed")
    async with locked_alike(beside, postgres_server, alike, "killed"):
        assert await judge.gone(["killed", "judge"]) == frozenset()
        passed[0] += liveness.GRACE
        assert await judge.gone(["killed", "judge"]) == {"killed"}


@pytest.mark.parametrize("alike", ALIKE)
async def test_a_lock_that_is_not_the_workers_keeps_no_name(
    attend: Attend, beside: asyncpg.Connection, postgres_server: str, alike: str
) -> None:
    await attend("first")
    await beside.execute("INSERT INTO workers VALUES ('long dead', now() - interval '8 days')")
    async with locked_alike(beside, postgres_server, alike, "long dead"):
        await attend("second")
        names = await beside.fetch("SELECT worker FROM workers ORDER BY worker")
    assert [row["worker"] for row in names] == ["first", "second"]


async def test_a_worker_whose_connection_was_cut_comes_back(
    attend: Attend, beside: asyncpg.Connection, passed: list[float]
) -> None:
    """It listens again, and has its lock again: its chats are left to it."""
    judge, _ = await attend("judge")
    _, watch = await attend("cut")
    await end_session(beside, "cut")
    assert await judge.gone(["cut"]) == frozenset()
    while await beside.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted") < 2:
        await anext(watch)
    passed[0] += liveness.GRACE
    assert await judge.gone(["cut"]) == frozenset()


async def test_a_worker_that_stopped_has_not_died(
    attend: Attend, beside: asyncpg.Connection, passed: list[float]
) -> None:
    """What it may still hold runs out by itself: its store was closed before it could give it back."""
    judge, _ = await attend("judge")
    stopped, _ = await attend("stopped")
    await stopped.close()
    assert await judge.gone(["stopped"]) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(["stopped"]) == frozenset()
    assert [row["worker"] for row in await beside.fetch("SELECT worker FROM workers")] == ["judge"]


async def test_who_was_cut_off_itself_judges_nobody_for_a_while(
    attend: Attend, beside: asyncpg.Connection, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may have been cut off with it, and not be back yet."""
    judge, watch = await attend("judge")
    await attend("killed")
    await end_session(beside, "killed")
    assert await judge.gone(["killed"]) == frozenset()
    monkeypatch.setattr(liveness, "SETTLED", 5)
    await end_session(beside, "judge")
    while await beside.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted") < 1:
        await anext(watch)
    monkeypatch.setattr(liveness, "SETTLED", 0)
    passed[0] += 4
    assert await judge.gone(["killed"]) == frozenset()
    passed[0] += 1
    assert await judge.gone(["killed"]) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(["killed"]) == {"killed"}


async def test_nobody_is_judged_for_a_while_after_an_outage_however_long_it_was(
    attend: Attend, beside: asyncpg.Connection, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was there all the time, and cannot tell: who was cut off may find the way back a little later."""
    judge, watch = await attend("judge")
    await attend("on its way")
    connect, ends = judge._pool.connect, passed[0] + 60

    async def reached() -> asyncpg.Connection:
        passed[0] += 4
        if passed[0] < ends:
            raise OSError("no route to host")
        return await connect()

    monkeypatch.setattr(judge._pool, "connect", reached)
    monkeypatch.setattr(notices, "_LONGEST_PAUSE", 0)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(liveness, "SETTLED", 10)
        for worker in ("on its way", "judge"):
            await end_session(beside, worker)
        while passed[0] < ends:
            await anext(watch)
    for _ in range(2):
        passed[0] += 4
        assert await judge.gone(["on its way"]) == frozenset()
    passed[0] += 2
    assert await judge.gone(["on its way"]) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(["on its way"]) == {"on its way"}


async def test_who_has_just_begun_judges_nobody_for_a_while(
    attend: Attend, beside: asyncpg.Connection, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been started because of an outage that the others are about to come back from."""
    await attend("on its way")
    await end_session(beside, "on its way")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(liveness, "SETTLED", 10)
        judge, _ = await attend("judge")
    for _ in range(2):
        passed[0] += 4
        assert await judge.gone(["on its way"]) == frozenset()
    passed[0] += 2
    assert await judge.gone(["on its way"]) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(["on its way"]) == {"on its way"}


async def test_who_has_no_session_judges_nobody(
    attend: Attend, beside: asyncpg.Connection, passed: list[float], postgres_url: str
) -> None:
    """It cannot know how long the others have had to come back."""
    await attend("killed")
    await end_session(beside, "killed")
    judge = PostgresStore(postgres_url)
    await judge.open()
    for _ in range(2):
        assert await judge.gone(["killed"]) == frozenset()
        passed[0] += liveness.GRACE
    await judge.close()


async def test_nobody_is_judged_right_after_a_start_of_the_server(
    attend: Attend, beside: asyncpg.Connection, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone must first find the way back."""
    judge, _ = await attend("judge")
    await attend("killed")
    await end_session(beside, "killed")
    monkeypatch.setattr(liveness, "SETTLED", 3600 * 24 * 365)
    for _ in range(2):
        assert await judge.gone(["killed"]) == frozenset()
        passed[0] += liveness.GRACE


async def test_names_of_the_long_dead_are_forgotten_unless_they_hold_a_chat(
    attend: Attend, beside: asyncpg.Connection
) -> None:
    """Who is not known any more would not be found dead: its chats would wait for their leases to run out."""
    store, _ = await attend("first")
    await plans.created(store, "held", plans.send("hello"), plans.claim("holder"))
    for worker, days in (("long dead", 8), ("holder", 8), ("dead", 6)):
        await beside.execute("INSERT INTO workers VALUES ($1, now() - $2 * interval '1 day')", worker, days)
    await beside.execute("UPDATE workers SET since = now() - interval '8 days' WHERE worker = 'first'")
    await attend("second")
    names = await beside.fetch("SELECT worker FROM workers ORDER BY worker")
    assert [row["worker"] for row in names] == ["dead", "first", "holder", "second"]
