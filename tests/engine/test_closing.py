"""Leaving an engine, and what becomes of those who wait for something in it: nobody hangs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from support.latches import Latch, Started
from turnwise import Engine, EngineClosed, Event, Settings
from turnwise.providers.scripted import Reply

Wait = Callable[[Engine, str], Awaitable[object]]


async def read(engine: Engine, chat_id: str, into: list[Event] | None = None) -> None:
    """Read events for ever."""
    async with aclosing(engine.events(chat_id)) as events:
        async for event in events:
            if into is not None:
                into.append(event)


async def stream(engine: Engine, chat_id: str) -> None:
    """Send a message, and read what comes of it."""
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


class Waiting:
    """Tasks that wait for something in an engine, and how each of them ended."""

    def __init__(self, engine: Engine, chat_id: str) -> None:
        self._engine = engine
        self._chat_id = chat_id
        self.ended: dict[str, BaseException | None] = {}

    async def wait(self, name: str) -> None:
        """Wait in one of the ways there are."""
        try:
            await WAITS[name](self._engine, self._chat_id)
        except EngineClosed as error:
            self.ended[name] = error
        else:
            self.ended[name] = None


async def test_closing_ends_every_wait(open_engine: Any, strict_model: Any) -> None:
    latch = Latch()
    model = strict_model(Reply("x", first_delay=1), sleep=latch.pass_through)
    async with anyio.create_task_group() as tasks:  # noqa: SIM117 - the engine is left before the tasks end
        async with open_engine(model, settings=Settings(shutdown_grace=0)) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "hi")
            await latch.entered.wait()
            waiting = Waiting(engine, chat.id)
            for name in WAITS:
                tasks.start_soon(waiting.wait, name)
            await anyio.wait_all_tasks_blocked()
            assert waiting.ended == {}
    assert {name for name, error in waiting.ended.items() if error is not None} == set(WAITS)
    assert "async with" in str(waiting.ended["events"])


async def test_release_followers_ends_waits_but_no_turn(open_engine: Any, strict_model: Any) -> None:
    """It waits for its connections to end, and they wait for the engine: somebody has to begin."""
    latch = Latch()
    model = strict_model(Reply("done", first_delay=1), sleep=latch.pass_through)
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await latch.entered.wait()
        waiting = Waiting(engine, chat.id)
        async with anyio.create_task_group() as tasks:
            for name in WAITS:
                tasks.start_soon(waiting.wait, name)
            await anyio.wait_all_tasks_blocked()
            engine.release_followers()
            engine.release_followers()
        assert {name for name, error in waiting.ended.items() if error is not None} == set(WAITS)
        assert (await engine.get_chat(chat.id)).state == "streaming"
        with pytest.raises(EngineClosed, match="followers"):
            await engine.wait(chat.id)
        latch.open()
        await _until_rest(engine, chat.id)
        assert (await engine.messages(chat.id))[1].text == "done"


async def test_released_follower_reads_stored_events(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model("fine")) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
        engine.release_followers()
        assert (await engine.wait(chat.id)).state == "waiting"
        stored = [event async for event in engine.events(chat.id, follow=False)]
        followed: list[Event] = []
        with pytest.raises(EngineClosed):
            await read(engine, chat.id, followed)
        assert followed == stored


async def test_follower_sees_a_turn_that_ends_within_the_grace(open_engine: Any, strict_model: Any) -> None:
    latch, started = Latch(), Started(Reply("done", first_delay=1))
    followed: list[Event] = []

    async def follow(engine: Engine, chat_id: str) -> None:
        with pytest.raises(EngineClosed):
            await read(engine, chat_id, followed)

    async with anyio.create_task_group() as tasks:  # noqa: SIM117 - the engine is left before the tasks end
        async with open_engine(strict_model([started], sleep=latch.pass_through)) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "hi")
            await started.asked.wait()
            tasks.start_soon(follow, engine, chat.id)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(_open_when_blocked, latch)
    assert followed[-1].kind == "turn_finished"


@pytest.mark.parametrize("when", ["never entered", "left"])
async def test_closed_engine_refuses_every_call(strict_model: Any, when: str) -> None:
    engine = Engine("sqlite://", model=strict_model([]))
    if when == "left":
        async with engine:
            pass
    methods = inspect.getmembers(engine, inspect.ismethod)
    for name, method in [(name, method) for name, method in methods if not name.startswith("_")]:
        if name == "release_followers":
            continue
        required = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
        given = {parameter.name: _some(parameter.name) for parameter in required}
        with pytest.raises(EngineClosed, match="async with"):
            await _done(method, given)


async def test_engine_can_be_opened_again(strict_model: Any, database: Any) -> None:
    engine = Engine(f"sqlite:///{database}", model=strict_model(["one", "two"]))
    async with engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "one"
    async with engine:
        assert (await engine.ask(chat.id, "hi")).text == "two"


def _some(parameter: str) -> Any:
    return {"metadata": {}, "results": [], "at_version": 1}.get(parameter, "x")


async def _done(method: Callable[..., Any], given: dict[str, Any]) -> None:
    outcome = method(**given)
    await (anext(outcome) if inspect.isasyncgen(outcome) else outcome)


async def _open_when_blocked(latch: Latch) -> None:
    await anyio.wait_all_tasks_blocked()
    latch.open()


async def _until_rest(engine: Engine, chat_id: str) -> None:
    while (await engine.get_chat(chat_id)).state != "waiting":
        await anyio.lowlevel.checkpoint()
