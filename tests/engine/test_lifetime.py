"""The lifetime of an engine: it closes in bounded time, on its own loop, and ends every wait."""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest
import sniffio  # noqa: F401 - its presence changes how anyio finds the event loop

from support.engines import OpenChat
from support.latches import Gate, Latch
from support.stores import stored_at
from turnwise import Engine, EngineClosed, EngineInUse, Event, ModelRequest, Settings, SettingsError
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing import ManualClock

AT_ONCE = Settings(shutdown_grace=0, coalesce=0)


async def test_engine_may_be_left_in_another_task() -> None:
    """Notebooks and fixtures do so."""
    engine = Engine("sqlite://", model=ScriptedModel(lambda _: "hello"))
    await asyncio.create_task(awaited(engine.__aenter__))
    chat = await engine.create_chat()
    assert (await engine.ask(chat.id, "hi")).text == "hello"
    await asyncio.create_task(awaited(lambda: engine.__aexit__(None, None, None)))
    with pytest.raises(EngineClosed):
        await engine.create_chat()


async def test_store_serves_one_engine_at_a_time(database: Any) -> None:
    """Two engines would miss each other's changes, and the first to close would close it for both."""
    store, model = stored_at(database), ScriptedModel(lambda _: "hello")
    async with Engine(store, model=model) as engine:
        for _ in range(2):
            with pytest.raises(SettingsError, match=r"store: is open in another engine.*one of its own"):
                await Engine(store, model=model, settings=Settings(run_worker=False)).__aenter__()
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "hello"
    async with Engine(store, model=model) as other, Engine(stored_at(database), model=model):
        assert (await other.ask(chat.id, "hi")).text == "hello"


def test_another_event_loop_is_refused() -> None:
    """The engine would wait there for ever."""
    engine = Engine("sqlite://", model=ScriptedModel([]))
    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(engine.__aenter__())
        chat = first.run_until_complete(engine.create_chat())
        events = engine.events(chat.id)
        for use in (
            engine.create_chat,
            lambda: engine.wait(chat.id),
            lambda: engine.ask(chat.id, "hi"),
            lambda: anext(events),
            lambda: anext(engine.stream(chat.id, "hi")),
            lambda: anext(engine.open_file(chat.id, "0" * 64)),
            lambda: engine.__aexit__(None, None, None),
        ):
            with pytest.raises(SettingsError, match="event loop"):
                asyncio.run(awaited(use))
        first.run_until_complete(engine.__aexit__(None, None, None))
    finally:
        first.close()


async def awaited(use: Callable[[], Any]) -> None:
    await use()


def test_trio_is_refused() -> None:
    """The engine needs asyncio's event loop; an error is better than a hang."""

    async def enter() -> None:
        await Engine("sqlite://", model=ScriptedModel([])).__aenter__()

    with pytest.raises(SettingsError, match="asyncio"):
        enter().send(None)


async def test_cancelled_caller_releases_the_chats(open_engine: Any, strict_model: Any, database: Any) -> None:
    """The chats are released at once, not when their leases expire."""
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


async def test_running_chats_get_the_shutdown_grace(open_engine: Any, strict_model: Any, database: Any) -> None:
    """A turn that ends within the grace is finished; the gate opens only after the close began."""
    latch = Latch()
    model = strict_model([Reply("done", first_delay=1)], sleep=latch.pass_through)
    engine = Engine(f"sqlite:///{database}", model=model, settings=Settings(shutdown_grace=60))
    await engine.__aenter__()
    chat = await engine.create_chat()
    await engine.send_message(chat.id, "hi")
    await latch.entered.wait()
    leaving = asyncio.create_task(engine.__aexit__(None, None, None))
    await anyio.wait_all_tasks_blocked()
    assert not leaving.done()
    with pytest.raises(EngineInUse):
        await engine.__aenter__()
    latch.open()
    await leaving
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.get_chat(chat.id)).state == "waiting"
        assert (await onlooker.messages(chat.id))[-1].text == "done"


@pytest.mark.deep
async def test_poisonous_reply_is_given_up_after_25_workers(
    open_engine: Any, strict_model: Any, open_chat: OpenChat
) -> None:
    requests: list[ModelRequest] = []

    def silent(request: ModelRequest) -> Reply:
        requests.append(request)
        return Reply("x", stall_after=0)

    model = strict_model(silent)
    state, rounds = "pending", 0
    async with open_chat(model, settings=Settings(run_worker=False)) as (engine, chat, _):
        await engine.send_message(chat.id, "hi")
    while state != "error":
        rounds += 1
        assert rounds < 40
        asked = len(requests)
        async with open_engine(model, settings=AT_ONCE, clock=ManualClock()) as engine:
            while len(requests) == asked and (state := str((await engine.get_chat(chat.id)).state)) != "error":
                await anyio.wait_all_tasks_blocked()
    assert len(requests) == 25


Wait = Callable[[Engine, str], Awaitable[object]]


async def read(engine: Engine, chat_id: str, into: list[Event] | None = None) -> None:
    async with aclosing(engine.events(chat_id)) as events:
        async for event in events:
            if into is not None:
                into.append(event)


async def stream(engine: Engine, chat_id: str) -> None:
    async with aclosing(engine.stream(chat_id, "and more?")) as events:
        async for _ in events:
            pass


WAITS: dict[str, Wait] = {
    "events": read,
    "wait": lambda engine, chat_id: engine.wait(chat_id),
    "wait for a state": lambda engine, chat_id: engine.wait(chat_id, until=["error"]),
    "ask": lambda engine, chat_id: engine.ask(chat_id, "and then?"),
    "stream": stream,
}


async def wait_for_the_end(name: str, engine: Engine, chat_id: str, ended: dict[str, str]) -> None:
    with pytest.raises(EngineClosed) as closed:
        await WAITS[name](engine, chat_id)
    ended[name] = str(closed.value)


async def test_closing_ends_every_wait(strict_model: Any, open_chat: OpenChat) -> None:
    latch, ended = Latch(), dict[str, str]()
    model = strict_model(Reply("x", first_delay=1), sleep=latch.pass_through)
    async with anyio.create_task_group() as tasks:  # noqa: SIM117 - the engine is left before the tasks end
        async with open_chat(model, settings=Settings(shutdown_grace=0)) as (engine, chat, _):
            await engine.send_message(chat.id, "hi")
            await latch.entered.wait()
            for name in WAITS:
                tasks.start_soon(wait_for_the_end, name, engine, chat.id, ended)
            await anyio.wait_all_tasks_blocked()
            assert ended == {}
    assert set(ended) == set(WAITS)
    assert "async with" in ended["events"]


async def test_release_followers_ends_waits_but_no_turn(open_chat: OpenChat) -> None:
    """A server waits for its connections, which wait for the engine: one of them has to end first."""
    latch, ended = Latch(), dict[str, str]()
    async with open_chat(Reply("done", first_delay=1), sleep=latch.pass_through) as (engine, chat, _):
        await engine.send_message(chat.id, "hi")
        await latch.entered.wait()
        async with anyio.create_task_group() as tasks:
            for name in WAITS:
                tasks.start_soon(wait_for_the_end, name, engine, chat.id, ended)
            await anyio.wait_all_tasks_blocked()
            engine.release_followers()
            engine.release_followers()
        assert set(ended) == set(WAITS)
        assert (await engine.get_chat(chat.id)).state == "streaming"
        with pytest.raises(EngineClosed, match="ended its streams"):
            await engine.wait(chat.id)
        latch.open()
        while (await engine.get_chat(chat.id)).state != "waiting":
            await anyio.lowlevel.checkpoint()
        assert (await engine.messages(chat.id))[1].text == "done"


async def test_released_follower_reads_stored_events(open_chat: OpenChat) -> None:
    async with open_chat("fine") as (engine, chat, _):
        await engine.ask(chat.id, "hi")
        engine.release_followers()
        assert (await engine.wait(chat.id)).state == "waiting"
        stored = [event async for event in engine.events(chat.id, follow=False)]
        followed: list[Event] = []
        with pytest.raises(EngineClosed):
            await read(engine, chat.id, followed)
        assert followed == stored


@pytest.mark.parametrize("when", ["never entered", "left"])
async def test_closed_engine_refuses_every_call(strict_model: Any, when: str) -> None:
    engine = Engine("sqlite://", model=strict_model([]))
    if when == "left":
        async with engine:
            pass
    methods = inspect.getmembers(engine, inspect.ismethod)
    for name, method in [(name, method) for name, method in methods if not name.startswith("_")]:
        if name in ("acting", "release_followers", "add_failure_callback"):
            continue
        required = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
        arguments = {parameter.name: _some(parameter.name) for parameter in required}
        with pytest.raises(EngineClosed, match="async with"):
            await _done(method, arguments)


async def test_engine_can_be_opened_again(strict_model: Any, database: Any) -> None:
    engine = Engine(f"sqlite:///{database}", model=strict_model(["one", "two"]))
    async with engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "one"
    async with engine:
        assert (await engine.ask(chat.id, "hi")).text == "two"


def _some(parameter: str) -> Any:
    numbers = dict.fromkeys(("at_version", "wanted", "per_second", "burst"), 1)
    lines = ['{"format": "turnwise-owner", "format_version": 1, "owner": "x", "budgets": []}', "{}"]
    return {"metadata": {}, "results": [], "lines": lines, "handler": print, **numbers}.get(parameter, "x")


async def _done(method: Callable[..., Any], arguments: dict[str, Any]) -> None:
    outcome = method(**arguments)
    await (anext(outcome) if inspect.isasyncgen(outcome) else outcome)


# Plain asyncio


def lived(model: ScriptedModel, life: Callable[[Engine, str], Awaitable[None]], **settings: object) -> None:
    async def main() -> None:
        known = Settings(**settings)  # type: ignore[arg-type]
        async with Engine("sqlite://", model=model, settings=known) as engine:
            chat = await engine.create_chat()
            await life(engine, chat.id)
            assert (await engine.verify(chat.id)).ok

    asyncio.run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has eager tasks from 3.12 on")
def test_eager_tasks_work() -> None:
    async def life(engine: Engine, chat_id: str) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
        assert (await engine.ask(chat_id, "hi")).text == "abc"

    lived(ScriptedModel(Reply("abc", chunks=3)), life)
