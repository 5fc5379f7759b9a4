"""Dead workers: the server sees the end of a session, and a worker whose connection was cut is not declared dead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
import asyncpg
import pytest

from turnwise.persistence.postgres import liveness, notifications
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.testing.conformance import plans

_LOCKED = (
    "FROM pg_locks WHERE locktype = 'advisory'"
    " AND classid::bigint << 32 | objid::bigint = hashtextextended(current_schema() || ' ' || $1, 0)"
)
_KNOWN = f"SELECT count(*) FROM workers WHERE worker = $1 AND EXISTS (SELECT {_LOCKED})"  # noqa: S608 - our own text
Attend = Callable[[str], Awaitable[tuple[PostgresStore, AsyncIterator[str | None]]]]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the seconds since the outage for judging workers. The server has been up for long."""
    seconds = [100.0]
    monkeypatch.setattr(liveness, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(liveness, "SETTLED", 0)
    return seconds


@pytest.fixture
async def attend(postgres_url: str, beside: asyncpg.Connection) -> AsyncIterator[Attend]:
    """Open a store for a worker, as its process would; return its name once the session stands."""
    watches = []  # the garbage collector ends an unreferenced watch's session
    async with AsyncExitStack() as stack:

        async def attended(worker: str) -> tuple[PostgresStore, AsyncIterator[str | None]]:
            store = PostgresStore(postgres_url, poll_interval=0.05)
            await store.open()
            stack.push_async_callback(store.close)
            store.attend(worker)
            watch = aiter(store.watch())
            watches.append(watch)
            assert await anext(watch) is None
            while not await beside.fetchval(_KNOWN, worker):
                await anyio.lowlevel.checkpoint()
            return store, watch

        yield attended


async def die(beside: asyncpg.Connection, worker: str, watch: AsyncIterator[str | None]) -> None:
    """End the watch of a worker with its session; return when the server has noticed."""
    await watch.aclose()  # type: ignore[attr-defined] # a generator
    while await beside.fetchval(f"SELECT count(*) {_LOCKED}", worker):
        await anyio.lowlevel.checkpoint()


async def cut_session(beside: asyncpg.Connection, worker: str) -> None:
    """Cut the session of a worker; return when the server has noticed, and the worker has a new session."""
    (cut,) = await beside.fetch(f"SELECT pid, pg_terminate_backend(pid) {_LOCKED}", worker)
    while [row["pid"] for row in await beside.fetch(f"SELECT pid {_LOCKED}", worker)] in ([], [cut["pid"]]):
        await anyio.lowlevel.checkpoint()


def next_session(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> anyio.Event:
    """Return an event that is set once a store has another session, and its locks."""
    began_session, another = store._liveness.began, anyio.Event()

    async def noted(session: asyncpg.Connection) -> None:
        await began_session(session)
        another.set()

    monkeypatch.setattr(store._liveness, "began", noted)
    return another


async def test_worker_without_session_is_gone(attend: Attend, beside: asyncpg.Connection, passed: list[float]) -> None:
    """No other worker is: neither a live one nor an unknown one."""
    everyone = ["judge", "killed", "alive", "unheard of"]
    judge, _ = await attend("judge")
    _, killed = await attend("killed")
    await attend("alive")
    assert await judge.gone(everyone) == frozenset()
    await die(beside, "killed", killed)
    assert await judge.gone(everyone) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(everyone) == {"killed"}
    assert await judge.gone(["alive"]) == frozenset()


async def test_worker_reconnects_after_a_cut(attend: Attend, beside: asyncpg.Connection, passed: list[float]) -> None:
    """It listens and locks again, so its chats stay with it."""
    judge, _ = await attend("judge")
    await attend("cut")
    await cut_session(beside, "cut")
    assert await judge.gone(["cut"]) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(["cut"]) == frozenset()


async def test_process_after_its_own_outage_declares_no_worker_dead(
    attend: Attend, beside: asyncpg.Connection, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers may have been cut off, too, and need time to return."""
    judge, _ = await attend("judge")
    _, killed = await attend("killed")
    await die(beside, "killed", killed)
    assert await judge.gone(["killed"]) == frozenset()
    monkeypatch.setattr(liveness, "SETTLED", 5)
    another = next_session(judge, monkeypatch)
    await cut_session(beside, "judge")
    await another.wait()
    monkeypatch.setattr(liveness, "SETTLED", 0)
    passed[0] += 4
    assert await judge.gone(["killed"]) == frozenset()
    passed[0] += 1
    assert await judge.gone(["killed"]) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(["killed"]) == {"killed"}


async def test_long_outage_delays_judgement(
    attend: Attend, beside: asyncpg.Connection, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was up all the time, and a worker that was cut off may return a little later."""
    judge, _ = await attend("judge")
    _, on_its_way = await attend("on its way")
    connect, ends = judge._pool.connect, passed[0] + 60

    async def reached() -> asyncpg.Connection:
        passed[0] += 4
        if passed[0] < ends:
            raise OSError("no route to host")
        return await connect()

    monkeypatch.setattr(judge._pool, "connect", reached)
    monkeypatch.setattr(notifications, "LISTEN_AGAIN_S", 0)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(liveness, "SETTLED", 10)
        await die(beside, "on its way", on_its_way)
        another = next_session(judge, monkeypatch)
        await cut_session(beside, "judge")
        await another.wait()
    for _ in range(2):
        passed[0] += 4
        assert await judge.gone(["on its way"]) == frozenset()
    passed[0] += 2
    assert await judge.gone(["on its way"]) == frozenset()
    passed[0] += liveness.GRACE
    assert await judge.gone(["on its way"]) == {"on its way"}


async def test_names_of_dead_workers_without_chats_are_removed(attend: Attend, beside: asyncpg.Connection) -> None:
    """A removed name is never found dead: its chats would wait until their leases expire."""
    store, _ = await attend("first")
    await plans.created(store, "held", plans.send("hello"), plans.claim("holder"))
    for worker, days in (("long dead", 8), ("holder", 8), ("dead", 6)):
        await beside.execute("INSERT INTO workers VALUES ($1, now() - $2 * interval '1 day')", worker, days)
    await beside.execute("UPDATE workers SET since = now() - interval '8 days' WHERE worker = 'first'")
    await attend("second")
    names = await beside.fetch("SELECT worker FROM workers ORDER BY worker")
    assert [row["worker"] for row in names] == ["dead", "first", "holder", "second"]
