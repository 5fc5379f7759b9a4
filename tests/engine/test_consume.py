"""Durable consumers get each event at least once, in order within a chat, after every change of holder."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest

from support.processes.postgres_server import Server
from support.sql_by_hand import by_hand
from turnwise import ChatStore, ChatUnreadable, Engine, EngineClosed, Event, InvalidArgument, StoreError
from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.clock import sleep
from turnwise.engine.subscriptions.changes import ChangeReader
from turnwise.engine.subscriptions.consumer import MOST_RETRY_AFTER_S, DeliveryRefused
from turnwise.persistence.postgres import PostgresStore
from turnwise.persistence.sqlite import SQLiteStore
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.testing import ManualClock, crash_everywhere

QUICK = Settings(poll_interval=0.05, lease=0.5, renew_every=0.1)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    return str(request.getfixturevalue("postgres").new_url("consume"))


def store_on(url: str) -> SQLiteStore | PostgresStore:
    return PostgresStore(url) if url.startswith("postgres") else SQLiteStore(url.removeprefix("sqlite:///"))


def engine_on(url: str, settings: Settings = QUICK) -> Engine:
    return Engine(store_on(url), model=ScriptedModel(lambda _: Reply("yes")), settings=settings)


class Handled:
    """A handler that records the events, and refuses some."""

    def __init__(self, *refused: tuple[str, int]) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.kinds: set[str] = set()
        self.refused = {*refused}

    async def __call__(self, event: Event) -> None:
        self.kinds.add(event.kind)
        if (event.kind, event.seq) in self.refused:
            raise ValueError("not this one")
        self.seen[event.chat_id].append(event.seq)


@asynccontextmanager
async def consuming(engine: Engine, handler: Any, **options: Any) -> Any:
    task = asyncio.create_task(engine.consume("them", handler, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(holds: Any) -> None:
    with anyio.fail_after(120):
        while not (await holds() if asyncio.iscoroutinefunction(holds) else holds()):  # noqa: ASYNC110 - in the store of another process, too
            await anyio.sleep(0.01)


async def is_held(engine: Engine) -> bool:
    return any(one.delivering for one in await engine.consumers())


async def durable(engine: Engine, chat_id: str) -> list[int]:
    return [event.seq async for event in engine.events(chat_id, follow=False) if not event.fleeting]


async def test_consumer_gets_every_event_in_order(url: str) -> None:
    """Earlier events count, too; the next holder continues from the stored position, and repeats few events."""
    handled, steady = Handled(), Settings(poll_interval=0.05)
    async with engine_on(url, steady) as engine:
        chats = [(await engine.create_chat(message="hi")).id for _ in range(3)]
        async with consuming(engine, handled):
            for chat in chats:
                await engine.ask(chat, "again")
            for chat in chats:
                wanted = await durable(engine, chat)
                await until(lambda chat=chat, wanted=wanted: handled.seen[chat] == wanted)
        before = {chat: [*seen] for chat, seen in handled.seen.items()}
        second = Handled()
        async with consuming(engine, handled), engine_on(url, steady) as other:
            await until(partial(is_held, engine))
            waiting = asyncio.create_task(other.consume("them", second))
            await engine.ask(chats[0], "more")
            wanted = await durable(engine, chats[0])
            await until(lambda: [*dict.fromkeys(handled.seen[chats[0]])] == wanted)
            waiting.cancel()
        assert not second.seen
        for chat in chats[1:]:
            assert [*dict.fromkeys(handled.seen[chat])] == before[chat]
        assert "part" not in handled.kinds


async def test_poisoned_event_is_set_aside_and_given_again(url: str) -> None:
    """The chat's later events follow its last try; other chats' events come meanwhile."""
    handled = Handled(("message", 1), ("message", 2))
    async with engine_on(url) as engine, consuming(engine, handled, kinds=["message"], delays=(0.01, 0.01)):
        chat = (await engine.create_chat(message="hi")).id

        async def is_aside() -> bool:
            return bool(await engine.undelivered("them"))

        await until(is_aside)
        (aside,) = await engine.undelivered("them")
        assert (aside.chat_id, aside.due) == (chat, False)
        assert "not this one" in aside.error
        wanted = [event.seq async for event in engine.events(chat, follow=False) if event.kind == "message"]
        await until(lambda: handled.seen[chat] == wanted[1:])
        assert await engine.deliver_again("them") == 1

        async def is_aside_again() -> bool:
            return [(one.at > aside.at, one.due) for one in await engine.undelivered("them")] == [(True, False)]

        await until(is_aside_again)
        handled.refused.clear()
        assert await engine.deliver_again("them") == 1
        await until(lambda: handled.seen[chat][-1:] == wanted[:1])

        async def is_done() -> bool:
            return not await engine.undelivered("them")

        await until(is_done)
        (status,) = await engine.consumers()
        assert (status.name, status.delivering, status.undelivered) == ("them", True, 0)
        assert not await engine.drop_consumer("them")


class Follower:
    """A consumer that refuses the first message until it is redelivered, through any crash."""

    def __init__(self) -> None:
        self.handled = Handled()

    def reset(self) -> None:
        self.handled = Handled(("message", 1), ("message", 2))

    def engine(self, store: ChatStore, clock: ManualClock) -> Engine:
        self.clock = clock
        return Engine(store, model=ScriptedModel(lambda _: Reply("yes")), settings=Settings(coalesce=0), clock=clock)

    async def live(self, engine: Engine) -> None:
        async with consuming(engine, self.handled, kinds=["message"], delays=(1,)):
            await engine.create_chat(message="hi", client_id="c")
            while not await self.has_all(engine):
                await sleep(self.clock, 0.5)
            self.handled.refused.clear()
            await engine.deliver_again("them")
            while await engine.undelivered("them"):
                await sleep(self.clock, 0.5)

    async def has_all(self, engine: Engine) -> bool:
        (chat,) = (await engine.list_chats()).items
        last = (await engine._store.numbers()).last
        return chat.state == "waiting" and [one.position for one in await engine.consumers()] == [last]

    async def check(self, engine: Engine) -> None:
        (chat,) = (await engine.list_chats()).items
        wanted = [event.seq async for event in engine.events(chat.id, follow=False) if event.kind == "message"]
        first = list(dict.fromkeys(self.handled.seen[chat.id]))
        assert sorted(first) == wanted
        assert [seq for seq in first if seq != wanted[0]] == wanted[1:]
        assert await engine.undelivered("them") == []


@pytest.mark.deep
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_every_event_comes_if_the_process_dies_anywhere(store: str, request: pytest.FixtureRequest) -> None:
    """The process dies at each commit of the chat, the position, the set-aside events and the redeliveries."""
    url, them = store if store == "sqlite" else request.getfixturevalue("postgres").address, Follower()
    report = await crash_everywhere(them.engine, them.live, check=them.check, reset=them.reset, store=url)
    for words in ("advance_consumer", "set_aside", "deliver_again", "delivered_after_all", "create"):
        assert [point for point in report.points if words in point], words


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
@pytest.mark.parametrize("number", [-1, 10**9, 2**62, 2**62 - 1])
async def test_damaged_number_hides_no_commit(url: str, number: int, running: bool) -> None:
    """Consumers get the later events of all chats for every wrong number of the newest commit."""
    handled, steady = Handled(), Settings(poll_interval=0.05)

    async def has(chat_id: str) -> bool:
        return {*await durable(engine, chat_id)} <= {*handled.seen[chat_id]}

    async with engine_on(url, steady) as engine:
        other, damaged = [(await engine.create_chat(message="hi")).id for _ in range(2)]
        for chat in (other, damaged):
            await engine.wait(chat)
        async with consuming(engine, handled):
            await until(partial(has, damaged))
            await until(partial(has, other))
            if running:
                await damage(url, damaged, number)
                await engine.ask(other, "again")
                await until(partial(has, other))
                await engine.ask(damaged, "again")
                await until(partial(has, damaged))
        if not running:
            await damage(url, damaged, number)
        for chat in (other, damaged):
            await engine.ask(chat, "more")
        async with consuming(engine, handled):
            await until(partial(has, other))
            await until(partial(has, damaged))


async def damage(url: str, chat_id: str, number: int) -> None:
    """Change the number of a chat's last commit."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("UPDATE chats SET changed = ? WHERE id = ?", (number, chat_id))
        return
    address, schema = url.split("&schema=")
    connection = await asyncpg.connect(address, server_settings={"search_path": schema})
    sql = "UPDATE facts SET changed = $1 WHERE chat = (SELECT number FROM chats WHERE id = $2)"
    await connection.execute(sql, number, chat_id)
    await connection.close()


async def test_lease_ends_though_the_clock_is_set_back(tmp_path: Path) -> None:
    """It lasts for its term at most, from the first look after the clock step."""
    clock = ManualClock()
    store = SQLiteStore(str(tmp_path / "chats.db"), now=clock.now)
    await store.open()
    hold = partial(store.hold_consumer, "them", seconds=30, from_now=False)
    assert await hold("dead")
    clock.step(-3600)
    assert await hold("next") is None
    clock.advance(29)
    assert await hold("next") is None
    clock.advance(1)
    assert await hold("next")
    await store.close()


async def test_waiting_process_looks_once_in_a_poll(tmp_path: Path) -> None:
    """Commits wake the delivering process; in another process each look at the lease would cost a transaction."""
    url = f"sqlite:///{tmp_path}/chats.db"
    clock, looks = ManualClock(), Counter[str]()
    async with engine_on(url, Settings()) as engine, consuming(engine, Handled()):
        await until(partial(is_held, engine))
        other = Engine(store_on(url), model=ScriptedModel(lambda _: Reply("yes")), clock=clock)
        async with other:
            hold = other._store.hold_consumer
            other._store.hold_consumer = lambda *args, **more: (looks.update(["look"]), hold(*args, **more))[1]
            waiting = asyncio.create_task(other.consume("them", Handled()))
            await until(lambda: looks["look"] == 1)
            for _ in range(5):
                await other.create_chat(message="hi")
                await clock.advance(0.01)
            assert looks["look"] == 1
            await clock.advance(2)
            await until(lambda: looks["look"] == 2)
            waiting.cancel()


async def test_consumer_without_a_readable_position_is_said(database: Path) -> None:
    """`consume` raises the error, the list and `doctor` work, and a dropped consumer starts again."""
    url, handled = f"sqlite:///{database}", Handled()
    async with engine_on(url) as engine, consuming(engine, handled):
        await engine.create_chat()
        await until(lambda: bool(handled.seen))
    await by_hand(url, "UPDATE consumers SET position = 'x'")
    async with engine_on(url) as engine:
        with pytest.raises(ChatUnreadable, match="position of 'them' is not a number"):
            await engine.consume("them", handled)
        assert [(one.name, one.position) for one in await engine.consumers()] == [("them", 0)]
        assert [one.issues[0].column async for one in engine.diagnose()] == ["consumers.position"]
        assert await engine.drop_consumer("them")
        handled.seen.clear()
        async with consuming(engine, handled):
            await until(lambda: bool(handled.seen))


async def test_bad_kind_and_closed_engine_are_said(url: str) -> None:
    async with engine_on(url) as engine:
        with pytest.raises(InvalidArgument, match="message"):
            await engine.consume("them", Handled(), kinds=["part"])
        for wrong, problem in (
            ({"handler": None}, "handler: must be a function"),
            ({"handler": "print"}, "handler: must be a function"),
            ({"kinds": []}, "kinds: must name a kind"),
            ({"delays": [math.inf]}, r"delays\[0\]: must be finite"),
        ):
            with pytest.raises(InvalidArgument, match=problem):
                await engine.consume("them", **{"handler": Handled(), **wrong})  # type: ignore[arg-type]
        handled = Handled()
        task = asyncio.create_task(engine.consume("them", handled))
        await engine.create_chat()
        await until(lambda: bool(handled.seen))
    with pytest.raises(EngineClosed):
        await task
    async with engine_on(url) as engine:
        assert [one.delivering for one in await engine.consumers()] == [False]


@pytest.mark.deep
async def test_long_transaction_of_others_delays_no_change(postgres: Server) -> None:
    """On a real PostgreSQL only the number to continue from waits for it."""
    async with engine_on(postgres.new_url("long")) as engine:
        store, other = engine._store, await asyncpg.connect(postgres.address)
        await engine.create_chat()
        reader = ChangeReader(store, 0)
        assert len(await reader.read() or ()) == 1
        assert reader.settled == (await store.numbers()).last
        await other.execute("BEGIN; SELECT pg_current_xact_id()")
        late = await engine.create_chat()
        (found,) = await reader.read() or ()
        assert (found.change.chat_id, found.resume < found.change.number) == (late.id, True)
        assert not await reader.read()
        await other.close()
        while reader.settled < (await store.numbers()).last:
            assert not await reader.read()


@pytest.mark.parametrize(("asked", "waits"), [(100, 100), (10**6, MOST_RETRY_AFTER_S), (0.5, 1)])
async def test_handler_may_ask_for_a_later_try(asked: float, waits: float) -> None:
    """The try waits as long as the handler asks, up to the ceiling, and at least the consumer's delay."""
    clock, times = ManualClock(), list[float]()
    tried = anyio.Event()

    class Busy(DeliveryRefused):
        retry_after = asked

    async def handle(_: Event) -> None:
        times.append(clock.monotonic())
        tried.set()
        if len(times) == 1:
            raise Busy("busy")

    model, settings = ScriptedModel(lambda _: Reply("yes")), Settings(lease=10**6)
    async with Engine("sqlite://", model=model, settings=settings, clock=clock) as engine:
        await engine.create_chat()
        async with consuming(engine, handle, delays=(1,)):
            with anyio.fail_after(60):
                await tried.wait()
                while len(times) == 1:
                    await clock.advance(waits / 10)
    assert waits <= times[1] - times[0] < 100 * waits


USED = (
    "hold_consumer",
    "due_again",
    "changes",
    "changed_events",
    "changed_event",
    "set_aside",
    "delivered_after_all",
    "advance_consumer",
)
AWAY, BROKEN = StoreError("it is away", passing=True), StoreError("it is broken")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        *((method, error) for method in USED for error in (AWAY, BROKEN)),
        ("advance_consumer", False),
    ],
)
async def test_store_that_is_away_only_delays_events(
    method: str, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A permanent failure ends the deliveries; a lost lease is claimed again."""
    clock, answers, refused, seen = ManualClock(), [answer], [DeliveryRefused("not yet")], list[int]()

    def handle(event: Event) -> None:
        if refused:
            raise refused.pop()
        seen.append(event.seq)

    model = ScriptedModel(lambda _: Reply("yes"))
    async with Engine("sqlite://", model=model, clock=clock, settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat(message="hi")
        await engine.wait(chat.id)
        wanted, call = await durable(engine, chat.id), getattr(engine._store, method)

        async def fail_once(*args: Any, **more: Any) -> Any:
            if not answers:
                return await call(*args, **more)
            if isinstance(answers[0], Exception):
                raise answers.pop()
            return answers.pop()

        setattr(engine._store, method, fail_once)

        def is_told() -> bool:
            return answer is not False or "consumer_lost" in caplog.text

        async with consuming(engine, handle, delays=()) as task:
            with anyio.fail_after(120):
                while not task.done() and (
                    sorted({*seen}) != wanted or await engine.undelivered("them") or answers or not is_told()
                ):
                    await engine.deliver_again("them")
                    await clock.advance(1)
            if answer is BROKEN:
                with pytest.raises(StoreError, match="it is broken"):
                    await task
            assert task.done() is (answer is BROKEN)
            assert answer is not AWAY or sorted(seen) == wanted, "none came twice"
    assert ("consumer_lost" in caplog.text) is (answer is False)
