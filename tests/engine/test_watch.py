"""Hearing of what other processes commit, whatever becomes of a look for it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from support.engines import MakeModel, OpenEngine
from turnwise import Engine, Settings, StoreError, tool
from turnwise.engine.follow.broadcast import Broadcaster
from turnwise.engine.follow.watch import watch
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel

pytestmark = pytest.mark.anyio


class Deaf(SQLiteStore):
    """A store that cannot look for changes the first few times."""

    def __init__(self, path: Path, failures: int) -> None:
        super().__init__(path)
        self.failures = failures
        self.hears = anyio.Event()

    async def watch(self) -> AsyncIterator[str | None]:
        """Fail, or watch."""
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk failed to read")
        self.hears.set()
        async for hint in super().watch():
            yield hint


class Late(SQLiteStore):
    """A store that begins to look for changes only when it is let."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_look = anyio.Event()

    async def _foreign_commits(self) -> int:
        await self.may_look.wait()
        return await super()._foreign_commits()


async def test_commit_before_first_watch_is_not_missed(database: Path) -> None:
    """A follower that has read before that would wait for ever: nothing else happens in this chat."""
    async with Engine(f"sqlite:///{database}", model=ScriptedModel([Reply("hi")])) as other:
        chat = await other.create_chat()
        store = Late(database)
        async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
            events = engine.events(chat.id)
            assert (await anext(events)).kind == "status"

            async def talk() -> None:
                await anyio.wait_all_tasks_blocked()
                await other.ask(chat.id, "hello")
                store.may_look.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talk)
                with anyio.fail_after(60):
                    async for event in events:
                        if event.kind == "turn_finished":
                            break


async def test_failing_watch_backs_off_and_hints(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed between two looks was not heard of."""
    told: list[float | str | None] = []
    pauses = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]

    async def sleep(seconds: float) -> None:
        told.append(seconds)
        await anyio.lowlevel.checkpoint()

    async def hear(chat_id: str | None) -> None:
        told.append(chat_id)
        if len(told) == 2 * len(pauses):
            tasks.cancel_scope.cancel()

    monkeypatch.setattr(anyio, "sleep", sleep)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, Deaf(database, failures=99), Broadcaster(), hear)
    assert told[: 2 * len(pauses)] == [word for pause in pauses for word in (pause, None)]


class Hints:
    """A store that gives hints, look by look; where it has none left it fails."""

    def __init__(self, *looks: list[str | None]) -> None:
        self.looks = list(looks)

    async def watch(self) -> AsyncIterator[str | None]:
        """Give the hints of the next look."""
        for hint in self.looks.pop(0) if self.looks else ():
            yield hint
        raise StoreError("the disk failed to read")


async def test_watch_resets_back_off_and_survives_bad_hints(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The listeners of this process are woken first, whatever the worker makes of the hint."""
    told: list[float | str | None] = []
    woken: list[str | None] = []
    hub = Broadcaster()
    monkeypatch.setattr(hub, "hint", woken.append)

    async def sleep(seconds: float) -> None:
        told.append(seconds)
        await anyio.lowlevel.checkpoint()
        if len(told) >= 12:
            tasks.cancel_scope.cancel()

    async def hear(chat_id: str | None) -> None:
        told.append(chat_id)
        assert woken[-1] == chat_id
        if chat_id == "a":
            raise LookupError("no such chat")

    monkeypatch.setattr(anyio, "sleep", sleep)
    store = Hints([], [], ["a", "b"], [], [None])
    with caplog.at_level(logging.DEBUG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, cast("Any", store), hub, hear)
    assert told[:12] == [0.1, None, 0.2, None, "a", "b", 0.1, None, 0.2, None, None, 0.1]
    assert woken[:7] == [None, None, "a", "b", None, None, None]
    lines = [record.getMessage() for record in caplog.records]
    assert sum("watch_failed" in line for line in lines) == 3, "once until something is heard again"
    (failed,) = [line for line in lines if "hint_failed" in line]
    assert "no such chat" in failed
    assert "chat_id=a" in failed


SELDOM = Settings(poll_interval=600, lease=3600, renew_every=600, shutdown_grace=0)
"""Of a worker that would not look by itself for as long as a test takes."""
IDLE = Settings(run_worker=False)


async def test_foreign_message_wakes_the_worker(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    async with open_engine(strict_model(["hi"]), settings=SELDOM) as engine:
        async with open_engine(strict_model([]), settings=IDLE) as other:
            chat = await other.create_chat()
            await other.send_message(chat.id, "hello")
        assert (await engine.wait(chat.id, timeout=60)).state == "waiting"


async def test_foreign_interrupt_ends_running_tool(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    entered, ended = anyio.Event(), anyio.Event()

    @tool
    async def work() -> None:
        """Work for ever."""
        entered.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    model = strict_model([Reply(calls=[Call("work", {})])])
    async with (
        open_engine(model, tools=[work], settings=SELDOM) as engine,
        open_engine(strict_model([]), tools=[work], settings=IDLE) as other,
    ):
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await entered.wait()
        await other.interrupt(chat.id)
        with anyio.fail_after(60):
            await ended.wait()
