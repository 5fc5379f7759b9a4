"""What one process tells the others through PostgreSQL: a hint for every chat, and one for whatever was missed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import asyncpg
import pytest

from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.postgres import notices
from turnwise.persistence.postgres.liveness import Liveness
from turnwise.persistence.postgres.notices import Notices
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.states.errors import StoreError
from turnwise.states.names import ChatState
from turnwise.states.triggers import Renamed

NEVER = 3600


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Return two stores of one database, as two processes would have them, that never poll."""
    async with AsyncExitStack() as stack:
        pair = PostgresStore(postgres_url, poll_interval=NEVER), PostgresStore(postgres_url, poll_interval=NEVER)
        for store in pair:
            await store.open()
            stack.push_async_callback(store.close)
        yield pair


RENAME = plans.plan(plans.move(Renamed(title="other")))


async def test_every_change_and_every_part_is_hinted_at(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """To the other process; first of all it is told that it may have missed some."""
    here, there = stores
    watch = aiter(there.watch())
    assert await anext(watch) is None
    await plans.created(here, "chat", plans.send("hello"), plans.claim(), plans.start())
    assert await anext(watch) == "chat"
    await plans.created(here, "other")
    while await anext(watch) != "other":
        pass
    await here.journal("chat", 1, ChatState.streaming, [part("h")])
    assert await anext(watch) == "chat"


async def test_the_hints_of_a_moment_go_together_however_many_they_are(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    """More than one notice may carry."""
    here, there = stores
    watch = aiter(there.watch())
    assert await anext(watch) is None
    told = {f"chat {number} {'x' * 40}" for number in range(900)}
    for chat_id in told:
        here._notices.tell(chat_id)
    heard: set[str | None] = set()
    while heard != told:
        heard.add(await anext(watch))
        assert heard <= told


async def test_a_process_does_not_hear_itself(stores: tuple[PostgresStore, PostgresStore]) -> None:
    here, there = stores
    watch = aiter(here.watch())
    assert await anext(watch) is None
    await plans.created(here, "mine")
    await plans.created(there, "theirs")
    assert await anext(watch) == "theirs"


async def test_a_store_that_was_closed_and_opened_again_hears_as_before(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    here, there = stores
    await there.close()
    await there.open()
    watch = aiter(there.watch())
    assert await anext(watch) is None
    await plans.created(here, "chat")
    with anyio.fail_after(60):
        assert await anext(watch) == "chat"


async def test_processes_that_were_forked_with_a_store_not_open_yet_hear_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a server loads the application before it forks: each of its processes opens a copy of one store."""
    with monkeypatch.context() as alike:
        alike.setattr(secrets, "token_hex", lambda _: "alike")
        here, there = PostgresStore(postgres_url, poll_interval=NEVER), PostgresStore(postgres_url, poll_interval=NEVER)
    async with AsyncExitStack() as stack:
        for store in (here, there):
            await store.open()
            stack.push_async_callback(store.close)
        watch = aiter(there.watch())
        assert await anext(watch) is None
        await plans.created(here, "chat")
        with anyio.fail_after(60):
            assert await anext(watch) == "chat"


async def test_a_broken_connection_is_made_again(
    stores: tuple[PostgresStore, PostgresStore], postgres_server: str
) -> None:
    """What was missed meanwhile is hinted at as a whole, and later changes are heard again."""
    here, there = stores
    await plans.created(here, "chat")
    watch = aiter(there.watch())
    assert await anext(watch) is None
    beside = await asyncpg.connect(postgres_server)
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    assert await beside.fetchval(cut) >= 1
    await beside.close()
    while await anext(watch) is not None:
        pass  # a hint from before the cut may still be on its way
    await here.change("chat", RENAME)
    while await anext(watch) != "chat":
        pass


async def test_a_poll_stands_behind_the_notices(postgres_url: str) -> None:
    """Now and then some chat is hinted at, although nothing was heard."""
    store = PostgresStore(postgres_url, poll_interval=0.01)
    await store.open()
    watch = aiter(store.watch())
    assert [await anext(watch) for _ in range(3)] == [None, None, None]
    await store.close()


async def test_a_poll_stands_behind_the_notices_also_while_those_of_other_chats_come(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of this chat may have been lost with the process that sent it, and a busy database is never silent."""
    _, there = stores
    now, attach = [0.0], notices._PendingNotices.attach
    put: list[Callable[[object], None]] = []

    async def attached(pending: Any, connection: asyncpg.Connection) -> None:
        put.append(pending._put)
        await attach(pending, connection)

    monkeypatch.setattr(notices, "monotonic", lambda: now[0])
    monkeypatch.setattr(notices._PendingNotices, "attach", attached)
    watch = aiter(there.watch())
    heard = [await anext(watch)]
    for _ in range(10):
        now[0] += NEVER / 4
        put[0]("someone another-chat")
        heard.append(await anext(watch))
    assert heard == [None, *["another-chat"] * 4, None, *["another-chat"] * 4, None]


async def test_whoever_is_far_behind_gets_one_hint_for_all(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """Memory stays bounded, whatever a reader does."""
    here, there = stores
    watch = aiter(there.watch())
    assert await anext(watch) is None
    sql = "SELECT pg_notify(current_schema(), 'someone chat-' || number) FROM generate_series(1, $1::int) AS number"
    await here._pool.run(lambda on: on.execute(sql, 1))
    assert await anext(watch) == "chat-1"
    (listening,) = there._notices._listening
    for count, heard in ((1000, "chat-1"), (1001, None)):
        await here._pool.run(lambda on, count=count: on.execute(sql, count))
        await listening.fetchval("SELECT 1")  # what was told before it arrives before its answer
        with anyio.fail_after(60):
            assert await anext(watch) == heard
            if heard:
                assert [await anext(watch) for _ in range(999)] == [f"chat-{number}" for number in range(2, 1001)]


async def test_listening_ends_with_the_store(stores: tuple[PostgresStore, PostgresStore]) -> None:
    here, _ = stores
    heard: list[str | None] = []

    async def listen() -> None:
        heard.extend([hint async for hint in here.watch()])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await anyio.wait_all_tasks_blocked()
        await here.close()
    assert set(heard) <= {None}


async def test_what_was_not_told_is_not_waited_for_when_a_store_closes(postgres_url: str) -> None:
    """Closing sends what waits, and ends whoever listens."""
    store = PostgresStore(postgres_url)
    await store.open()
    watch = aiter(store.watch())
    assert await anext(watch) is None
    await plans.created(store, "chat")
    await store.close()
    await store.close()


async def test_a_store_closes_although_its_notices_were_cancelled(postgres_url: str) -> None:
    """As an event loop does that ends."""
    store = PostgresStore(postgres_url)
    await store.open()
    watch = aiter(store.watch())
    assert await anext(watch) is None
    before = asyncio.all_tasks()
    store._notices.tell("chat")
    (sending,) = asyncio.all_tasks() - before
    sending.cancel()
    await store.close()
    with pytest.raises(StoreError, match="is not open"):
        await store.facts("chat")


class Line:
    """A pool that sends at once and notes what was sent, and whose server cannot be reached by a listener."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.origins: list[str] = []
        self.tries = 0

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(self)

    async def execute(self, _sql: str, payloads: list[str]) -> None:
        self.origins += [payload.partition(" ")[0] for payload in payloads]
        self.sent.append([chat_id for payload in payloads for chat_id in payload.partition(" ")[2].split("\n")])

    async def connect(self) -> Any:
        self.tries += 1
        raise ConnectionRefusedError

    def meaning_of(self, error: Exception) -> StoreError:
        return StoreError(str(error))


def over(line: Line) -> Notices:
    return Notices(line, Liveness(line), poll_interval=NEVER)  # type: ignore[arg-type]


async def test_hints_that_come_one_after_another_go_together() -> None:
    line = Line()
    telling = over(line)
    told = [f"chat-{number}" for number in range(40)]
    for chat_id in told:
        telling.tell(chat_id)
        telling.tell(chat_id)
        await anyio.lowlevel.checkpoint()
    await telling.close()
    assert sorted(chat_id for together in line.sent for chat_id in together) == sorted(told)
    assert len(line.sent) < 20


async def test_what_is_told_later_is_sent_too() -> None:
    line = Line()
    telling = over(line)
    for chat_id in ("early", "late"):
        telling.tell(chat_id)
        with anyio.fail_after(60):
            while [chat_id] not in line.sent:
                await anyio.lowlevel.checkpoint()
    await telling.close()
    assert line.sent == [["early"], ["late"]]


async def test_who_opens_again_is_another() -> None:
    """Two may do so at once: a process and one that was forked from it. Neither is to take the other for itself."""
    line = Line()
    telling = over(line)
    for _ in range(2):
        telling.open()
        telling.tell("chat")
        await telling.close()
    assert len(set(line.origins)) == 2


async def test_closing_sends_what_waits_even_for_a_caller_that_is_cancelled() -> None:
    line = Line()
    telling = over(line)
    telling.tell("chat")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await telling.close()
    assert line.sent == [["chat"]]
    await over(line).close()


async def test_a_notice_carries_many_hints_and_no_more_than_the_server_takes(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    here, _ = stores
    beside = await here._pool.connect()
    heard: list[str] = []
    schema = await beside.fetchval("SELECT current_schema()")
    await beside.add_listener(schema, lambda _on, _pid, _channel, payload: heard.append(str(payload)))
    told = {f"{number} {'é' * 60}" for number in range(200)}
    for chat_id in told:
        here._notices.tell(chat_id)
    with anyio.fail_after(60):
        while {line for payload in heard for line in payload.partition(" ")[2].split("\n")} != told:
            await beside.fetchval("SELECT 1")
    await beside.close()
    assert all(len(payload.encode()) < 8000 for payload in heard)
    assert 4 <= len(heard) <= 6


async def test_a_listener_tries_ever_more_seldom_to_reach_a_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line()
    listening = over(line)
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 6:
            await listening.close()

    monkeypatch.setattr(notices.anyio, "sleep", wait)
    assert [hint async for hint in listening.hear()] == []
    assert waited == [0.1, 0.2, 0.4, 0.8, 1, 1]
    assert line.tries == 6


async def test_a_listener_whose_session_is_refused_tries_ever_more_seldom_and_warns_once(
    stores: tuple[PostgresStore, PostgresStore],
    beside: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where its user may not write down that its worker lives: it can connect, and no more."""
    here, _ = stores
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 6:
            await beside.execute("ALTER TABLE refused RENAME TO workers")

    await beside.execute("ALTER TABLE workers RENAME TO refused")
    here.attend("worker")
    monkeypatch.setattr(notices.anyio, "sleep", wait)
    watch = aiter(here.watch())
    with anyio.fail_after(60):
        assert await anext(watch) is None
        here._notices._listening.pop().terminate()
        assert await anext(watch) is None
    assert waited == [0.1, 0.2, 0.4, 0.8, 1, 1, 0.1]
    assert [line.split()[0] for line in caplog.messages] == ["listening_failed"]


async def test_notices_that_cannot_be_sent_are_warned_of_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else is lost: whoever listens also polls."""

    class Away(Line):
        async def run(self, _work: object) -> None:
            raise StoreError("the server is away")

    telling = over(Away())
    for chat_id in ("a", "b", "a"):
        telling.tell(chat_id)
    await telling.close()
    assert caplog.messages == ["notices_lost count=2 problem=the server is away"]


async def test_each_hint_is_given_once(stores: tuple[PostgresStore, PostgresStore]) -> None:
    here, there = stores
    watch = aiter(there.watch())
    assert await anext(watch) is None
    for chat_id in ("a", "b", "c"):
        here._notices.tell(chat_id)
        assert await anext(watch) == chat_id


async def test_a_reader_that_leaves_takes_its_connection_with_it(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And counts as cut off: it judges no worker for a while."""
    here, _ = stores
    made: list[asyncpg.Connection] = []
    connect = here._pool.connect

    async def connected() -> asyncpg.Connection:
        made.append(await connect())
        return made[-1]

    monkeypatch.setattr(here._pool, "connect", connected)
    watch = here._notices.hear()
    assert await anext(watch) is None
    await watch.aclose()  # type: ignore[attr-defined]
    assert [connection.is_closed() for connection in made] == [True]
    assert not here._notices._listening


async def test_a_poll_looks_whether_the_server_is_still_there_and_a_hint_does_not(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose other end is gone says nothing by itself: no answer within a time is an answer."""
    asked: list[float | None] = []
    fetchval = asyncpg.Connection.fetchval

    async def noted(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
        if query == "SELECT 1":
            asked.append(options.get("timeout"))
        return await fetchval(self, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetchval", noted)
    async with AsyncExitStack() as stack:
        here, there = PostgresStore(postgres_url), PostgresStore(postgres_url, poll_interval=NEVER)
        for store in (here, there):
            await store.open()
            stack.push_async_callback(store.close)
        watch = aiter(there.watch())
        assert await anext(watch) is None
        for chat_id in ("a", "b"):
            here._notices.tell(chat_id)
            assert await anext(watch) == chat_id
        assert asked == []
        there._notices._poll_interval = 0.01
        here._notices.tell("c")
        while await anext(watch) != "c":
            pass  # polls may come before
        assert await anext(watch) is None
        assert asked
        assert all(timeout is not None and timeout > 0 for timeout in asked)
