"""The lifetime of an engine: entered and left by whoever likes, in bounded time, on the loop it was entered in."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from support.engines import OpenEngine
from support.events import shown
from support.latches import Gate, Latch
from support.stores import stored_at
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


async def test_engine_may_be_left_in_another_task() -> None:
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


async def test_open_engine_cannot_be_entered_again() -> None:
    async with Engine("sqlite://", model=ScriptedModel(lambda _: "hello")) as engine:
        with pytest.raises(EngineInUse, match="share it"):
            await engine.__aenter__()
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "hello"


async def test_store_serves_one_engine_at_a_time(database: Any) -> None:
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


async def test_store_that_failed_to_open_can_be_retried(tmp_path: Any) -> None:
    store = stored_at(tmp_path / "folder" / "chats.db")
    with pytest.raises(StoreError, match="no folder"):
        await Engine(store, model=ScriptedModel([])).__aenter__()
    (tmp_path / "folder").mkdir()
    async with Engine(store, model=ScriptedModel([])) as engine:
        await engine.create_chat()


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


def test_trio_is_refused() -> None:
    """Without an event loop of asyncio's nothing here works: better to say so than to hang."""

    async def enter() -> None:
        await Engine("sqlite://", model=ScriptedModel([])).__aenter__()

    with pytest.raises(SettingsError, match="asyncio"):
        enter().send(None)


async def test_cancelled_caller_releases_the_chats(open_engine: Any, strict_model: Any, database: Any) -> None:
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


def test_ending_event_loop_releases_the_chats(
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


async def test_model_ignoring_cancellation_blocks_nothing(open_engine: Any, strict_model: Any, caplog: Any) -> None:
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
async def test_code_ignoring_cancellation_blocks_nothing(
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
async def test_running_chats_get_the_shutdown_grace(
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


async def test_poisonous_reply_is_given_up_after_25_workers(open_engine: Any, strict_model: Any) -> None:
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
