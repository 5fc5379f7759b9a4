"""The lifetime of an engine: entered and left by whoever likes, in bounded time, on the loop it was entered in."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import anyio
import pytest

from support.engines import OpenEngine
from support.events import seen, shown
from support.latches import Gate, Latch, Started
from support.stores import Delegate, stored_at
from turnwise import (
    CompactionPolicy,
    Engine,
    EngineClosed,
    EngineInUse,
    ModelRequest,
    Settings,
    SettingsError,
    StoreError,
    tool,
)
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing import ManualClock

AT_ONCE = Settings(shutdown_grace=0, coalesce=0)


class Deaf:
    """Code that ignores its cancellation until the test lets it end."""

    def __init__(self) -> None:
        self.entered = anyio.Event()
        self.end = anyio.Event()
        self.ended = anyio.Event()

    async def __call__(self, seconds: float = 0) -> None:
        self.entered.set()
        while not self.end.is_set():
            try:
                await self.end.wait()
            except asyncio.CancelledError:
                continue
        self.ended.set()


async def test_an_engine_is_entered_in_one_task_and_left_in_another() -> None:
    """As notebooks and fixtures do."""
    engine = Engine("sqlite://", model=ScriptedModel(lambda _: "hello"))

    async def enter() -> None:
        await engine.__aenter__()

    async def leave() -> None:
        await engine.__aexit__(None, None, None)

    await asyncio.create_task(enter())
    chat = await engine.create_chat()
    assert (await engine.ask(chat.id, "hi")).text == "hello"
    await asyncio.create_task(leave())
    with pytest.raises(EngineClosed):
        await engine.create_chat()


async def test_an_engine_that_is_open_cannot_be_entered_again_and_lives_on() -> None:
    async with Engine("sqlite://", model=ScriptedModel(lambda _: "hello")) as engine:
        with pytest.raises(EngineInUse, match="share it"):
            await engine.__aenter__()
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "hello"


async def test_an_engine_that_was_left_can_be_entered_again(database: Any) -> None:
    engine = Engine(f"sqlite:///{database}", model=ScriptedModel(lambda _: "hello"))
    async with engine:
        chat = await engine.create_chat()
    async with engine:
        assert (await engine.ask(chat.id, "hi")).text == "hello"


async def test_a_store_serves_one_engine_at_a_time(database: Any) -> None:
    """Two would not hear each other, and the first to be left would close it for both."""
    store, model = stored_at(database), ScriptedModel(lambda _: "hello")
    async with Engine(store, model=model) as engine:
        for _ in range(2):
            with pytest.raises(SettingsError, match=r"store: is open in another engine.*one of its own"):
                await Engine(store, model=model, settings=Settings(run_worker=False)).__aenter__()
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "hello"
    async with Engine(store, model=model) as other, Engine(stored_at(database), model=model):
        assert (await other.ask(chat.id, "hi")).text == "hello"


def test_a_store_whose_engine_ended_with_its_loop_serves_another(database: Any) -> None:
    store, model = stored_at(database), ScriptedModel([])

    async def enter() -> None:
        await Engine(store, model=model).__aenter__()

    async def enter_and_leave() -> None:
        async with Engine(store, model=model):
            pass

    asyncio.run(enter())
    asyncio.run(enter_and_leave())


async def test_a_store_that_cannot_be_opened_may_be_tried_again(tmp_path: Any) -> None:
    store = stored_at(tmp_path / "folder" / "chats.db")
    with pytest.raises(StoreError, match="no folder"):
        await Engine(store, model=ScriptedModel([])).__aenter__()
    (tmp_path / "folder").mkdir()
    async with Engine(store, model=ScriptedModel([])) as engine:
        await engine.create_chat()


async def test_entering_that_fails_leaves_nothing_behind(tmp_path: Any) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/none/chats.db", model=ScriptedModel([]))
    for _ in range(2):
        with pytest.raises(Exception, match="no folder"):
            await engine.__aenter__()
    await engine.__aexit__(None, None, None)


async def test_an_engine_that_is_still_being_left_cannot_be_entered(strict_model: Any, database: Any) -> None:
    """It came up open, and dead."""
    work = Gate()
    model = strict_model([Reply(calls=[Call("work", {})]), "done"])
    engine = Engine(f"sqlite:///{database}", model=model, tools=[work.tool], settings=Settings(shutdown_grace=60))
    await engine.__aenter__()
    chat = await engine.create_chat()
    await engine.send_message(chat.id, "go")
    await work.entered.wait()
    leaving = [asyncio.create_task(engine.__aexit__(None, None, None)) for _ in range(2)]
    await anyio.wait_all_tasks_blocked()
    with pytest.raises(EngineInUse):
        await engine.__aenter__()
    work.open.set()
    await asyncio.gather(*leaving)
    async with engine:
        assert (await engine.get_chat(chat.id)).state == "waiting"


def test_another_event_loop_is_refused() -> None:
    """Whatever is asked: it would wait for ever."""
    engine = Engine("sqlite://", model=ScriptedModel([]))
    first = asyncio.new_event_loop()

    async def first_of(stream: Any) -> Any:
        return await anext(stream)

    try:
        first.run_until_complete(engine.__aenter__())
        chat = first.run_until_complete(engine.create_chat())
        events, diagnoses = engine.events(chat.id), engine.diagnose()
        uses = (
            engine.create_chat,
            lambda: engine.get_chat(chat.id),
            engine.list_chats,
            lambda: engine.wait(chat.id),
            lambda: engine.audit(chat.id),
            lambda: first_of(events),
            lambda: first_of(diagnoses),
            lambda: first_of(engine.export_chat(chat.id)),
            lambda: engine.put_file(chat.id, b"a file", media_type="text/plain"),
            lambda: first_of(engine.open_file(chat.id, "0" * 64)),
            engine.check_files,
            lambda: engine.queued(chat.id),
            lambda: first_of(engine.stream(chat.id, "hi")),
            lambda: engine.ask(chat.id, "hi"),
            lambda: engine.__aexit__(None, None, None),
        )
        for use in uses:
            with pytest.raises(SettingsError, match="event loop"):
                asyncio.run(use())  # type: ignore[operator]
        assert first.run_until_complete(first_of(engine.events(chat.id))).seq == 1, "made where no loop runs"
        first.run_until_complete(engine.__aexit__(None, None, None))
    finally:
        first.close()


def test_trio_is_refused_by_name() -> None:
    """Without an event loop of asyncio's nothing here works: better to say so than to hang."""

    async def enter() -> None:
        await Engine("sqlite://", model=ScriptedModel([])).__aenter__()

    with pytest.raises(SettingsError, match="asyncio"):
        enter().send(None)


async def test_whoever_is_cancelled_around_an_engine_leaves_it_in_order(
    open_engine: Any, strict_model: Any, database: Any
) -> None:
    """The chats are given back at once, and do not wait for the end of their leases."""
    work = Gate()
    model = strict_model([Reply(calls=[Call("work", {})])])
    with anyio.CancelScope() as scope:
        async with Engine(f"sqlite:///{database}", model=model, tools=[work.tool], settings=AT_ONCE) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "go")
            await work.entered.wait()
            scope.cancel()
            await anyio.sleep_forever()
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.get_chat(chat.id)).state == "pending"


async def test_a_chat_that_is_being_given_back_is_although_everything_around_is_cancelled(
    open_engine: Any, strict_model: Any, database: Any
) -> None:
    """The engine's own task is cancelled while the release waits for the store: it is stored nevertheless."""
    giving_back, go_on, work = anyio.Event(), anyio.Event(), Gate()

    class Slow(Delegate):
        async def change(self, chat_id: str, plan: Any, **options: Any) -> Any:
            if leaving is not None:
                giving_back.set()
                await go_on.wait()
            return await self._store.change(chat_id, plan, **options)

    leaving: asyncio.Task[None] | None = None
    model, store = strict_model([Reply(calls=[Call("work", {})])]), Slow(stored_at(database))
    engine = Engine(store, model=model, tools=[work.tool], settings=AT_ONCE)
    await engine.__aenter__()
    chat = await engine.create_chat()
    await engine.send_message(chat.id, "go")
    await work.entered.wait()
    leaving = asyncio.create_task(engine.__aexit__(None, None, None))
    await giving_back.wait()
    (owner,) = (task for task in asyncio.all_tasks() if task.get_name() == "turnwise engine")
    for _ in range(3):
        owner.cancel()
        leaving.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.get_chat(chat.id)).state == "pending"
        assert [record.trigger for record in await onlooker.audit(chat.id)].count("released") == 1


def test_chats_are_given_back_although_the_event_loop_ends_and_cancels_every_task(
    strict_model: Any, open_engine: OpenEngine, database: Any, caplog: Any
) -> None:
    """A server whose task is cancelled leaves its engine to the loop."""
    model, given = strict_model([Reply(calls=[Call("work", {})])]), list[str]()

    async def run_without_leaving() -> None:
        work = Gate()
        engine = Engine(f"sqlite:///{database}", model=model, tools=[work.tool])
        await engine.__aenter__()
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await work.entered.wait()

    async def look() -> None:
        async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
            (chat,) = (await onlooker.list_chats()).items
            assert chat.state == "pending"
            given.extend(record.trigger for record in await onlooker.audit(chat.id))

    asyncio.run(run_without_leaving())
    asyncio.run(look())
    assert given[-1] == "released"
    assert "task_failed" not in caplog.text


async def test_a_deaf_model_holds_up_neither_an_interrupt_nor_the_end(
    open_engine: Any, strict_model: Any, caplog: Any
) -> None:
    deaf = Deaf()
    model = strict_model(Reply("Hello", chunks=["Hel", "lo"], delay=1), sleep=deaf)
    async with open_engine(model, settings=AT_ONCE) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await shown(engine, chat.id, "Hel")
        await deaf.entered.wait()
        await engine.interrupt(chat.id)
        assert (await engine.wait(chat.id)).settled
    (line,) = [record.getMessage() for record in caplog.records if "user_code_left_behind" in record.getMessage()]
    assert line.startswith(f"user_code_left_behind chat_id={chat.id} version=")
    assert "state=interrupted code=model step step=1 attempt=1" in line
    deaf.end.set()
    await deaf.ended.wait()
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert [message.text for message in await onlooker.messages(chat.id)] == ["hi", "Hel"]


@pytest.mark.parametrize("where", ["tool", "prepare_messages", "strategy"])
async def test_deaf_code_holds_up_neither_an_interrupt_nor_the_end(
    open_engine: Any, strict_model: Any, caplog: Any, where: str
) -> None:
    deaf = Deaf()

    async def prepare(_messages: Any) -> None:
        await deaf()

    async def strategy(_messages: Any, _budget: Any) -> None:
        await deaf()

    @tool
    async def work() -> str:
        """Work."""
        await deaf()
        return "late"

    policy = CompactionPolicy(context_limit=100, strategy=strategy if where == "strategy" else None)
    settings = Settings(shutdown_grace=0, coalesce=0, compaction=policy)
    reply = Reply("hi", usage=(90, 1)) if where == "strategy" else Reply(calls=[Call("work", {})])
    options = {"prepare_messages": prepare} if where == "prepare_messages" else {}
    model = strict_model([reply])
    async with open_engine(model, tools=[work], settings=settings, **options) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await deaf.entered.wait()
        await engine.interrupt(chat.id)
        rested = await engine.wait(chat.id)
        assert rested.settled
        version = rested.version
    assert "user_code_left_behind" in caplog.text
    deaf.end.set()
    await deaf.ended.wait()
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.get_chat(chat.id)).version == version


@pytest.mark.parametrize("waits_for", ["model", "tool"])
async def test_running_chats_get_their_grace(
    open_engine: Any, strict_model: Any, database: Any, waits_for: str
) -> None:
    """A turn that ends in time is finished; the gate opens only once the engine is being left."""
    latch = Latch()

    @tool
    async def work() -> str:
        """Work."""
        await latch.pass_through()
        return "worked"

    replies = {"model": [Reply("done", first_delay=1)], "tool": [Reply(calls=[Call("work", {})]), "done"]}
    model = strict_model(replies[waits_for], sleep=latch.pass_through)
    engine = Engine(f"sqlite:///{database}", model=model, tools=[work], settings=Settings(shutdown_grace=60))
    await engine.__aenter__()
    chat = await engine.create_chat()
    await engine.send_message(chat.id, "hi")
    await latch.entered.wait()
    leaving = asyncio.create_task(engine.__aexit__(None, None, None))
    await anyio.wait_all_tasks_blocked()
    assert not leaving.done()
    latch.open()
    await leaving
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.get_chat(chat.id)).state == "waiting"
        assert (await onlooker.messages(chat.id))[-1].text == "done"


async def test_a_caller_that_is_cancelled_again_and_again_does_not_hide_what_was_committed(
    open_engine: Any, strict_model: Any, database: Any
) -> None:
    """Subscribers, `wait` and the worker learn of it, though whoever asked is gone."""
    committed, go_on = anyio.Event(), anyio.Event()

    class Slow(Delegate):
        async def change(self, chat_id: str, plan: Any, **options: Any) -> Any:
            done = await self._store.change(chat_id, plan, **options)
            committed.set()
            await go_on.wait()
            return done

    started = Started(Reply("hello"))
    never = Settings(poll_interval=3600, renew_every=3600, lease=7200)  # no round of the worker finds it by chance
    async with open_engine(strict_model(started), store=Slow(stored_at(database)), settings=never) as engine:
        chat = await engine.create_chat()
        sending = asyncio.create_task(engine.send_message(chat.id, "hi"))
        await committed.wait()
        for _ in range(5):
            sending.cancel()
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await started.asked.wait()
        assert (await engine.wait(chat.id)).state == "waiting"


async def test_a_repair_whose_caller_is_cancelled_is_told_to_followers(
    open_engine: Any, strict_model: Any, database: Any
) -> None:
    repaired, go_on = anyio.Event(), anyio.Event()

    class Slow(Delegate):
        async def repair(self, *given: Any, **options: Any) -> Any:
            done = await self._store.repair(*given, **options)
            repaired.set()
            await go_on.wait()
            return done

    idle = Settings(run_worker=False)
    async with open_engine(strict_model([]), settings=idle) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE chats SET state = 'nonsense'")
    async with open_engine(strict_model([]), store=Slow(stored_at(database)), settings=idle) as engine:
        following = asyncio.create_task(seen(engine, chat.id, "status", state="error"))
        await anyio.wait_all_tasks_blocked()
        repairing = asyncio.create_task(engine.repair(chat.id))
        await repaired.wait()
        repairing.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await repairing
        with anyio.fail_after(60):
            await following


async def test_a_reply_is_not_asked_for_for_ever_by_workers_that_die_of_it(open_engine: Any, strict_model: Any) -> None:
    requests: list[ModelRequest] = []

    def silent(request: ModelRequest) -> Reply:
        requests.append(request)
        return Reply("x", stall_after=0)

    model = strict_model(silent)
    state, rounds = "pending", 0
    async with open_engine(model, settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
    while state != "error":
        rounds += 1
        assert rounds < 40
        asked = len(requests)
        async with open_engine(model, settings=AT_ONCE, clock=ManualClock()) as engine:
            while len(requests) == asked and (state := str((await engine.get_chat(chat.id)).state)) != "error":
                await anyio.wait_all_tasks_blocked()
    assert len(requests) == 25
