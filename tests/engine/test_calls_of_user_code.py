"""The engine calls user code through its guards, and nowhere else."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

import pytest

from support.calls_of_user_code import Module, Source, UserCode, modules_of
from turnwise import Engine, tool

USER = UserCode.declared(Engine.__init__, inspect.unwrap(tool))

PLANTED = """
from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from turnwise.engine.clock import Clock
from turnwise.engine.observers.observer import Observer
from turnwise.engine.settings import CompactionStrategy
from turnwise.engine.tools.declare import Tool, ToolContext
from turnwise.engine.user_code import guarded, in_thread
from turnwise.engine.leased_chat import LeasedChat


async def asks_the_model(leased: LeasedChat, request: Any) -> None:
    await leased.configuration.model.generate(request)  # found
    async with aclosing(leased.configuration.model.stream(request)) as stream:  # found
        async for _ in stream:  # found
            pass
    await leased.runtime.tasks.user_calls.run(lambda: leased.configuration.model.generate(request), "model")


def asks_hooks(leased: LeasedChat, error: BaseException) -> list[str]:
    leased.configuration.settings.describe_error(error)  # found
    with guarded():
        leased.configuration.settings.describe_error(error)
    return [text for produce in leased.configuration.hooks.reminders for text in produce(None)]  # found


async def asks_the_tool(leased: LeasedChat, tools: dict[str, Tool], context: ToolContext) -> Any:
    tool = tools.get("name")
    with guarded():
        found = tool.reconcile(context)
    found = await found if inspect.isawaitable(found) else found  # found
    return found or tool.run()  # found


def tells(observers: tuple[Observer, ...], clock: Clock) -> None:
    for observer in observers:
        with guarded():
            ended = observer.model_called(None)
        later = lambda: observer.running(1)  # found
        ended()  # found
    measure: Callable[[], float] | None = getattr(clock, "monotonic", None)
    measure()  # found


class Folder:
    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased
        self._strategy = leased.configuration.settings.compaction.strategy

    async def fold(self) -> None:
        await self._leased.runtime.tasks.user_calls.run(self._fold_guarded, "fold")
        await self._leased.runtime.tasks.user_calls.run(self._fold_anyhow, "fold")
        await self._fold_anyhow()
        await handed_on(self._leased, lambda: self._strategy([], None))
        await kept(lambda: self._strategy([], None))  # found

    async def _fold_guarded(self) -> None:
        await self._strategy([], None)

    async def _fold_anyhow(self) -> None:
        await self._strategy([], None)  # found


async def handed_on(leased: LeasedChat, work: Callable[[], Awaitable[Any]]) -> Any:
    return await leased.runtime.tasks.user_calls.run(work, "work")


async def kept(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


async def in_a_thread(strategy: CompactionStrategy) -> None:
    def begin() -> Any:
        return strategy([], None)

    await in_thread(begin)
"""


def test_the_engine_calls_user_code_in_guards_only() -> None:
    engine = Source(modules_of("turnwise.engine"), USER)

    assert engine.unguarded() == []
    assert engine.called() == USER.callables | USER.objects


def test_a_call_outside_the_guards_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = ModuleType("turnwise.planted")
    monkeypatch.setitem(sys.modules, planted.__name__, planted)
    exec(compile(PLANTED, "planted", "exec"), planted.__dict__)  # noqa: S102 - our own snippet
    source = Source([*modules_of("turnwise.engine"), Module(planted.__name__, PLANTED, planted.__dict__)], USER)

    wanted = [place for place, line in enumerate(PLANTED.splitlines(), start=1) if line.endswith("# found")]
    assert sorted({int(found.split(":")[1]) for found in source.unguarded()}) == wanted
