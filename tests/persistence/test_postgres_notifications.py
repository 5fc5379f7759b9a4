"""Messages between processes through PostgreSQL: a notification for every chat, and one for missed ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import asyncpg
import pytest
from tests.persistence.conftest import OpenStore

from turnwise.persistence.postgres import notifications
from turnwise.persistence.postgres.liveness import Liveness
from turnwise.persistence.postgres.notifications import NotificationListener, Notifications
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.states.errors import StoreError
from turnwise.states.names import ChatState
from turnwise.states.triggers import Renamed
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part

NEVER = 3600


@pytest.fixture
async def stores(open_store: OpenStore) -> tuple[PostgresStore, PostgresStore]:
    """Return two stores of one database, as two processes would have them, that never poll."""
    return await open_store(poll_interval=NEVER), await open_store(poll_interval=NEVER)


RENAME = plans.plan(plans.move(Renamed(title="other")))


async def test_every_change_and_part_notifies_other_stores(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """The other process first gets a notification that it may have missed some."""
    here, there = stores
    watch = aiter(there.watch())
    assert await anext(watch) is None
    await plans.created(here, "chat", plans.send("hello"), plans.claim())
    assert await anext(watch) == "chat"
    await plans.created(here, "other")
    while await anext(watch) != "other":
        pass
    await here.append_events("chat", 1, ChatState.streaming, [part("h")])
    assert await anext(watch) == "chat"


async def test_listener_reconnects(stores: tuple[PostgresStore, PostgresStore], postgres_server: str) -> None:
    """One notification covers the missed ones, and later changes arrive again."""
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


async def test_session_ended_before_it_listens_is_made_again(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = stores
    began, ended = Liveness.began, list[Any]()

    async def end_the_first(liveness: Liveness, session: Any) -> None:
        if not ended:
            ended.append(session)
            session.terminate()
            session._protocol.bind_execute()
        await began(liveness, session)

    monkeypatch.setattr(Liveness, "began", end_the_first)
    watch = aiter(there.watch())
    assert await anext(watch) is None
    while await anext(watch) is not None:
        pass
    await plans.created(here, "chat")
    assert await anext(watch) == "chat"


async def test_poll_covers_lost_notifications(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the sender loses the notification, and a busy database is never silent."""
    _, there = stores
    now, put = [0.0], list[Callable[[object], None]]()
    attach = NotificationListener._attach

    async def attached(listener: NotificationListener, session: Any) -> Any:
        put.append(listener._pending.put)
        return await attach(listener, session)

    monkeypatch.setattr(notifications, "monotonic", lambda: now[0])
    monkeypatch.setattr(NotificationListener, "_attach", attached)
    watch = aiter(there.watch())
    received = [await anext(watch)]
    for _ in range(10):
        now[0] += NEVER / 4
        put[0]("someone another-chat")
        received.append(await anext(watch))
    assert received[0] is None
    assert received.count(None) == 3
    assert {*received} == {None, "another-chat"}


class Line:
    """A pool that sends at once and records what was sent, with a server that no listener reaches."""

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


def over(line: Line) -> Notifications:
    return Notifications(line, Liveness(line), poll_interval=NEVER)  # type: ignore[arg-type]


async def test_notification_stays_within_the_server_limit(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    here, _ = stores
    beside = await here._pool.connect()
    payloads: list[str] = []
    schema = await beside.fetchval("SELECT current_schema()")
    await beside.add_listener(schema, lambda _on, _pid, _channel, payload: payloads.append(str(payload)))
    chat_ids = {f"{number} {'é' * 60}" for number in range(200)}
    for chat_id in chat_ids:
        here._notifications.notify(chat_id)
    with anyio.fail_after(60):
        while {line for payload in payloads for line in payload.partition(" ")[2].split("\n")} != chat_ids:
            await beside.fetchval("SELECT 1")
    await beside.close()
    assert all(len(payload.encode()) < 8000 for payload in payloads)
    assert 4 <= len(payloads) <= 6


async def test_unsent_notifications_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else is lost: listeners also poll."""

    class Away(Line):
        async def run(self, _work: object) -> None:
            raise StoreError("the server is away")

    telling = over(Away())
    for chat_id in ("a", "b", "a"):
        telling.notify(chat_id)
    await telling.close()
    assert caplog.messages == ["notices_lost count=2 problem=the server is away"]


@pytest.mark.parametrize("reader", ["waits for hints", "waits for the database"])
async def test_silent_server_is_noticed_by_the_listener(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """A connection whose other end is gone is silent: a missing answer shows it.

    A reader that is busy with the database does not delay this.
    """
    checked, noticed = anyio.Event(), anyio.Event()
    fetchval = asyncpg.Connection.fetchval

    async def silent(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
        if query == "SELECT 1" and not checked.is_set():
            checked.set()
            await anyio.sleep_forever()
        return await fetchval(self, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetchval", silent)
    monkeypatch.setattr(notifications, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(notifications, "ANSWER_S", 0.2)
    store = PostgresStore(postgres_url, poll_interval=NEVER)
    await store.open()
    monkeypatch.setattr(store._pool._servers, "end", lambda _server: noticed.set())
    watch = aiter(store.watch())
    assert await anext(watch) is None
    with anyio.fail_after(60):
        await noticed.wait()
        if reader == "waits for hints":
            assert await anext(watch) is None  # it listens again
    await store.close()


@pytest.mark.parametrize("refused_by", ["the URL", "the argument", "the server"])
async def test_readers_poll_while_nothing_listens(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, refused_by: str
) -> None:
    """At once, then every `poll_interval`: a role at its connection limit, a standby and poolers refuse LISTEN."""
    tries: list[object] = []

    async def refused(_pool: object) -> None:
        tries.append(None)
        raise asyncpg.TooManyConnectionsError("too many connections for role")

    monkeypatch.setattr("turnwise.persistence.postgres.pool.Pool.connect", refused)
    url = f"{postgres_url}&listen=false" if refused_by == "the URL" else postgres_url
    listens = {"listen": False} if refused_by == "the argument" else {}
    store = PostgresStore(url, poll_interval=0.01, **listens)
    await store.open()
    watch = aiter(store.watch())
    with anyio.fail_after(60):
        assert [await anext(watch) for _ in range(4)] == [None] * 4
    await store.close()
    assert bool(tries) is (refused_by == "the server")
