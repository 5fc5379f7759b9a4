"""Many stores on one PostgreSQL database: who wins, who waits, and what a crash of the server leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import asyncpg
import pytest

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import contents, part
from turnwise.persistence.files.protocol import Blob
from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.protocol import Expiry
from turnwise.states.errors import InvalidArgument, StoreError
from turnwise.states.messages import TextPart
from turnwise.states.names import ChatState
from turnwise.states.triggers import ClearContext, EditMessage, Renamed

OpenStore = Callable[..., Awaitable[PostgresStore]]


@pytest.fixture
async def open_store(postgres_url: str) -> AsyncIterator[OpenStore]:
    """Open stores on the test's schema, as as many processes would."""
    async with AsyncExitStack() as stack:

        async def opened(**options: Any) -> PostgresStore:
            store = PostgresStore(postgres_url, **options)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield opened


def rename(title: str) -> plans.Plan:
    return plans.plan(plans.move(Renamed(title=title)))


async def test_a_store_that_was_never_opened_can_be_closed(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.close()
    await store.close()


async def test_an_erasure_is_told_that_old_rows_are_left_to_the_server(open_store: OpenStore) -> None:
    assert await (await open_store()).scrub() is False


async def test_a_renewal_tells_what_time_it_is_there(open_store: OpenStore) -> None:
    """A worker whose chats only stream hears it nowhere else."""
    holder, other = await open_store(), await open_store()
    await plans.created(holder, "chat", plans.send("hello"), plans.claim("worker"))
    assert other._transactions._clock.now() is None
    assert await other.renew("worker", 30) == {"chat": 1}
    told = other._transactions._clock.now()
    assert told is not None
    assert abs((told - datetime.now(UTC)).total_seconds()) < 60


async def test_many_stores_claim_every_chat_once(open_store: OpenStore) -> None:
    """Two hundred chats, four workers of two processes: no chat twice, none left."""
    stores = [await open_store(), await open_store()]
    wanted = {f"chat-{number}" for number in range(200)}
    async with anyio.create_task_group() as tasks:
        for chat_id in wanted:
            tasks.start_soon(plans.created, stores[0], chat_id, plans.send("hello"))
    claimed: list[str] = []

    async def work(worker: int) -> None:
        claim = plans.plan(plans.claim(f"worker-{worker}"))
        while found := await stores[worker % 2].claim(claim, runs=plans.RUNS, limit=10):
            claimed.extend(committed.facts.chat_id for committed in found)

    async with anyio.create_task_group() as tasks:
        for worker in range(4):
            tasks.start_soon(work, worker)
    assert len(claimed) == 200
    assert set(claimed) == wanted


async def test_changes_of_many_stores_follow_one_another(open_store: OpenStore) -> None:
    """Each is decided on what the one before left; who loses the race too often locks the chat."""
    stores = [await open_store(pool_size=2) for _ in range(4)]
    await plans.created(stores[0], "chat")

    async def write(store: PostgresStore) -> None:
        for number in range(10):
            await store.change("chat", rename(str(number)))

    async with anyio.create_task_group() as tasks:
        for store in stores:
            tasks.start_soon(write, store)
    records = await stores[0].audit("chat")
    assert [record.version for record in records] == list(range(1, 42))
    assert verify_records(records).ok


async def test_a_pool_holds_no_more_connections_than_it_may(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """Whoever finds none free waits for one."""
    start = await beside.fetchval("SELECT clock_timestamp()")  # connections of earlier tests may still be closing
    store = await open_store(pool_size=2)
    await plans.created(store, "chat")
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'turnwise' AND backend_start > $1"
    before = await beside.fetchval(count, start)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(store.facts, "chat")
    assert await beside.fetchval(count, start) - before <= 1
    assert 1 <= before <= 2


async def test_a_statement_that_takes_too_long_is_given_up(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """Another holds the chat: the change is refused, says why, and has written nothing."""
    store = await open_store(statement_timeout=1)
    await plans.created(store, "chat")
    before = await contents(store, "chat")
    async with beside.transaction():
        await beside.execute("SELECT FROM chats FOR UPDATE")
        with pytest.raises(StoreError, match="statement_timeout"):
            await store.change("chat", rename("late"))
    assert await contents(store, "chat") == before
    assert (await store.change("chat", rename("now"))).facts.version == 2


async def test_connections_that_are_cut_lose_and_double_nothing(
    open_store: OpenStore, beside: asyncpg.Connection
) -> None:
    """While the server ends connections again and again, every change happens once."""
    store = await open_store(pool_size=4)
    async with anyio.create_task_group() as tasks:
        for chat in range(4):
            tasks.start_soon(plans.created, store, f"chat-{chat}", plans.send("hello"), plans.claim(), plans.start())
    before = (await store.facts("chat-0")).version
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'turnwise' AND pid <> pg_backend_pid()"
    )

    async def write(chat_id: str) -> None:
        for number in range(10):
            await store.change(chat_id, rename(str(number)))
            await store.journal(chat_id, 1, ChatState.streaming, [part(str(number))])

    async with anyio.create_task_group() as writers:
        for chat in range(4):
            writers.start_soon(write, f"chat-{chat}")
        for _ in range(5):
            await beside.fetchval(cut)
            await store.facts("chat-0")
    for chat in range(4):
        records = await store.audit(f"chat-{chat}")
        assert len(records) == before + 10
        assert verify_records(records).ok
        shown = await store.shown(f"chat-{chat}", 1, 1)
        assert [event.part.delta for event in shown] == [str(number) for number in range(10)]
        events = await store.events(f"chat-{chat}", after=0, limit=1000)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_a_crash_of_the_server_skips_the_numbers_of_what_was_under_way(
    open_store: OpenStore, beside: asyncpg.Connection, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partial events are gone, their numbers are not given again, and callers wait for the server to come back."""
    if "TURNWISE_TEST_POSTGRES" in os.environ:
        pytest.skip("kills a process of the server's: only on the one that the tests have started")
    store = await open_store()
    last = await plans.created(store, "chat", plans.send("hello"), plans.claim(), plans.start())
    shown = await store.journal("chat", 1, ChatState.streaming, [part("h"), part("i")])
    monkeypatch.setattr(pool, "PATIENCE", 60)
    crashed = anyio.Event()
    witness = await asyncpg.connect(postgres_server)
    await witness.execute("CHECKPOINT")  # what all tests before have written need not be read again, which takes long
    witness.add_termination_listener(lambda _: crashed.set())
    os.kill(beside.get_server_pid(), signal.SIGKILL)
    await crashed.wait()
    committed = await store.change("chat", plans.plan(plans.reply("hi")))
    assert committed.facts.version == last.facts.version + 1
    events = await store.events("chat", after=0, limit=100)
    assert {event.seq for event in shown}.isdisjoint(event.seq for event in events)
    assert committed.events[0].seq == shown[-1].seq + 1
    assert [message.text for message in await store.history("chat")] == ["hello", "hi"]


async def test_time_is_the_databases(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """Whatever the clocks of the machines say that share it."""
    store = await open_store()
    before = await beside.fetchval("SELECT clock_timestamp()")
    held = await plans.created(store, "chat", plans.send("hello"), plans.claim(lease=30))
    expiry = await store.lease_expiry("chat")
    after = await beside.fetchval("SELECT clock_timestamp()")
    told = (await store.overdue(limit=1)).at
    assert before < held.at < after
    assert told is not None
    assert after < told < await beside.fetchval("SELECT clock_timestamp()")
    assert expiry is not None
    assert expiry.expires == held.at + timedelta(seconds=30)
    assert before < expiry.now < after


async def test_a_clock_that_is_handed_in_takes_its_place(open_store: OpenStore) -> None:
    """Leases run out when it is moved, and not before."""
    time = datetime(2026, 1, 1, tzinfo=UTC)
    store = await open_store(now=lambda: time)
    held = await plans.created(store, "chat", plans.send("hello"), plans.claim(lease=30))
    assert held.at == time
    (event,) = await store.journal("chat", 1, ChatState.streaming, [part("h")])
    assert event.at == time
    time += timedelta(seconds=29)
    assert (await store.overdue(limit=10)).leases == ()
    time += timedelta(seconds=1)
    overdue = await store.overdue(limit=10)
    assert (overdue.leases, overdue.at) == ((("chat", 1),), time)
    await store.renew("worker", 5)
    assert await store.lease_expiry("chat") == Expiry(time + timedelta(seconds=5), time)


@pytest.mark.parametrize("url", ["mysql://ada:secret@host/db", "ada:secret@host/db", "http://h/?password=secret"])
def test_a_url_of_something_else_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^url: must be like postgresql://user:password@host") as refused:
        PostgresStore(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("argument", "right", "wrong"),
    [
        ("url", ["postgresql:///db", "postgres://db.example"], [b"postgresql:///db", None, "", "db", "sqlite:///x.db"]),
        ("pool_size", [1, 262_143], [0, -1, 262_144, "5", 2.0, None]),
        ("statement_timeout", [0.001, 30, 2_147_483], [0, 0.0009, 2_147_484, float("inf"), float("nan"), "30", None]),
        ("poll_interval", [0.001, 5, 2_147_483], [0, -1, float("inf"), float("nan"), "x", None]),
        ("now", [None, datetime.now], [5]),
        ("poolsize", [], [5]),
    ],
)
def test_a_store_takes_what_a_server_can_be_told_and_nothing_else(
    argument: str, right: list[Any], wrong: list[Any]
) -> None:
    """The server would be blamed for it, or refuse it again and again."""
    for value in right:
        PostgresStore(**{"url": "postgresql:///db"} | {argument: value})
    for value in wrong:
        with pytest.raises(InvalidArgument) as refused:
            PostgresStore(**{"url": "postgresql:///db"} | {argument: value})
        assert refused.value.argument == argument


async def test_what_has_rested_long_is_told_pruned_and_let_go_by_the_clock_that_is_handed_in(
    open_store: OpenStore,
) -> None:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    store = await open_store(now=lambda: time)
    await plans.created(store, "chat", plans.send("hello"), plans.claim(), plans.start())
    await store.journal("chat", 1, ChatState.streaming, [part("h")])
    await store.change("chat", plans.plan(plans.reply("hi")))
    await store.note_file("chat", Blob("0" * 64, 1), kept_in="here")
    for later, done in ((59, False), (1, True)):
        time += timedelta(seconds=later)
        assert await store.rested(archived=False, seconds=60, limit=10) == (["chat"] if done else [])
        assert await store.let_go(seconds=60, limit=10) == int(done)
        await store.prune(keep=60, after="", limit=10)
        assert (await store.shown("chat", 1, 1) == []) is done


async def test_a_server_that_is_not_there_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 1)
    store = PostgresStore("postgresql://me:secret@127.0.0.1:1/db")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1.*cannot be reached") as caught:
        await store.open()
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreError, match="not open"):
        await store.facts("chat")


async def test_a_database_that_does_not_exist_is_named(postgres_server: str) -> None:
    store = PostgresStore(postgres_server.replace("/postgres?", "/nowhere?"))
    with pytest.raises(StoreError, match="no such database"):
        await store.open()


async def test_a_value_that_no_column_holds_is_refused_at_once(open_store: OpenStore) -> None:
    """PostgreSQL's text has no NUL."""
    store = await open_store()
    with pytest.raises(StoreError, match="nothing was written"):
        await plans.created(store, "a\0b")
    await plans.created(store, "chat", plans.send("a\0b"))
    assert (await store.history("chat"))[0].text == "a\0b"


@pytest.mark.parametrize(
    ("sql", "value", "told"),
    [
        ("SELECT $1::int", 2**40, "the database refused"),
        ("SELECT $1::text", 3, "the database refused"),
        ("SELECT 1 / $1::int", 0, "the database refused"),
        ("SELECT pg_sleep($1 + 60)", 0, "longer than `statement_timeout` allows"),
    ],
)
async def test_a_refusal_is_told_as_one_and_not_as_a_server_that_is_away(
    postgres_url: str, sql: str, value: int, told: str
) -> None:
    """Whether the server refused or the driver did: nobody shall look for a broken network."""
    url, _, schema = postgres_url.rpartition("schema=")
    refused = pool.Pool(url.rstrip("?&"), size=1, schema=schema, statement_timeout=1)
    await refused.open()
    asked: list[str] = []

    async def ask(connection: asyncpg.Connection) -> object:
        asked.append(sql)
        return await connection.fetchval(sql, value)

    with pytest.raises(StoreError, match=told) as caught:
        await refused.run(ask)
    await refused.close()
    assert "cannot be reached" not in str(caught.value)
    assert not isinstance(caught.value, pool.Unreachable)
    assert asked == [sql]


async def test_what_the_driver_itself_refuses_is_no_server_that_is_away(postgres_url: str) -> None:
    url, _, schema = postgres_url.rpartition("schema=")
    refused = pool.Pool(url.rstrip("?&"), size=1, schema=schema, statement_timeout=1)
    await refused.open()
    asked: list[object] = []

    async def ask(connection: asyncpg.Connection) -> None:
        asked.append(connection)
        raise asyncpg.ClientConfigurationError("no such option")

    with pytest.raises(StoreError, match=r"the database refused \(PostgreSQL: no such option\); nothing was written"):
        await refused.run(ask)
    await refused.close()
    assert len(asked) == 1


async def test_a_boundary_of_an_earlier_version_shows_its_summary_first(
    open_store: OpenStore, beside: asyncpg.Connection
) -> None:
    """It did not list the summary among what it carries."""
    store = await open_store()
    await plans.created(store, "chat", *plans.turn("one", "1"), *plans.turn("two", "2", tokens=90))
    for later in (plans.fold("summary", 3), plans.start(), plans.reply("3")):
        await store.change("chat", plans.plan(later))
    await beside.execute("UPDATE boundaries SET carried = ARRAY[3]")
    other = await open_store()
    assert [message.text for message in await other.prompt("chat")] == ["summary", "two", "3"]


async def test_an_edit_rewrites_no_row_that_it_does_not_cut(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """To edit the end of a long chat costs no more than that of a short one."""
    store = await open_store()
    clear = plans.move(ClearContext())
    await plans.created(store, "chat", *plans.turn("one", "1"), clear, *plans.turn("two", "2"), clear)
    rows = "SELECT position, ctid FROM messages UNION ALL SELECT -position, ctid FROM boundaries"
    before = dict(await beside.fetch(rows))
    last = (await store.history("chat"))[3]
    found = await store.cut_at("chat", last.id)
    assert found is not None
    edit = EditMessage(cut=found[1], parts=(TextPart(text="three"),))
    await store.change("chat", plans.plan(plans.move(edit)))
    after = dict(await beside.fetch(rows))
    assert {position for position, place in before.items() if after[position] != place} == {4, 5, 6, -6}


async def test_attempts_to_reach_a_server_come_ever_more_seldom_until_patience_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])
    waited = []
    for pause in pool.pauses_of(10):
        waited.append(pause)
        now[0] += pause
    assert waited[:4] == [0.02, 0.04, 0.08, 0.16]
    assert max(waited) == 1
    assert 10 <= sum(waited) < 11


async def test_a_pool_that_is_closed_gives_no_connection_of_its_own(postgres_server: str) -> None:
    closed = pool.Pool(postgres_server, size=1, schema="public", statement_timeout=5)
    await closed.open()
    await closed.close()
    with pytest.raises(StoreError, match="not open"):
        await closed.connect()
