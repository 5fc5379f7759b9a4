"""The tasks of an engine: owned by a task of its own, so that it may be entered in one task and left in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from turnwise.engine.isolation.user_code import CLOSE_TIMEOUT_S, UserCalls
from turnwise.foreign import described, is_the_programs
from turnwise.logger import logger
from turnwise.providers.scripted import Sleep
from turnwise.states.errors import EngineClosed, EngineInUse, SettingsError

T = TypeVar("T")


class Tasks:
    """Runs an engine's tasks until it is left. A task that fails is logged; the others go on."""

    def __init__(self, close_timeout: float = CLOSE_TIMEOUT_S, sleep: Sleep = anyio.sleep) -> None:
        self.user_calls = UserCalls(close_timeout, sleep)
        """Calls of user code: they run beside the engine's own tasks and cannot block them."""
        self._group: TaskGroup | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._wanted: asyncio.Queue[Callable[[], Coroutine[Any, Any, None]]] = asyncio.Queue()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the tasks that are started inside; on leaving, cancel those that still run."""
        try:
            self._owner = asyncio.current_task()
            async with anyio.create_task_group() as self._group:
                self._group.start_soon(self._start_submitted)
                yield
                self._group.cancel_scope.cancel()
        finally:
            self._group = None
            with anyio.CancelScope(shield=True):
                await self.user_calls.close()

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> None:
        """Start a task, from a task or a callback of the event loop. Its errors reach no other task."""
        work = partial(self._run, partial(function, *arguments))
        if asyncio.current_task() is not None and self._group is not None:
            self._group.start_soon(work)
        else:  # anyio starts none outside a task
            self._wanted.put_nowait(work)

    def start_vital(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start a task whose error ends the engine."""
        if self._group is not None:
            self._group.start_soon(partial(self._run, function, is_vital=True))

    async def run(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a function as one of the tasks, and wait for it. It ends with its caller, or before the store closes."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        scope = anyio.CancelScope()

        async def work() -> None:
            with scope:
                await _answer(function(), outcome)
            outcome.cancel()

        self.start_soon(work)
        try:
            await asyncio.wait([outcome])
        finally:
            if not outcome.done():
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([outcome])
        if outcome.cancelled():
            raise EngineClosed("the engine was closed; what was not done goes on in the next one", waited=True)
        outcome.result()

    async def _start_submitted(self) -> None:
        while self._group is not None:
            self._group.start_soon(await self._wanted.get())

    async def _run(self, function: Callable[[], Coroutine[Any, Any, object]], *, is_vital: bool = False) -> None:
        try:
            await function()
        except BaseException as error:
            if (self._ends() and not isinstance(error, Exception)) or is_the_programs(error):
                raise
            name = getattr(getattr(function, "func", function), "__qualname__", function)
            logger.exception("engine_failed" if is_vital else "task_failed", error=error, task=name)
            if is_vital:
                raise RuntimeError(f"the engine ended by an error in {name}: {described(error)}") from error

    def _ends(self) -> bool:
        """Whether the tasks are cancelled by their owner, or by the end of the event loop."""
        were_left = self._group is None or self._group.cancel_scope.cancel_called
        return were_left or (self._owner is not None and self._owner.cancelling() > 0)


class Lifetime:
    """The time during which an engine is open. One task opens and closes it, whichever task asks."""

    def __init__(self) -> None:
        self._owner: asyncio.Task[None] | None = None
        self._leaving: asyncio.Event

    async def begin(self, life: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """Enter `life`, and stay in it until the end."""
        _running_loop()
        if self._owner is not None and not self._owner.done():  # one that is done ended with its loop
            raise EngineInUse
        self._leaving = asyncio.Event()
        opened = asyncio.Event()
        self._owner = owner = asyncio.create_task(_hold_open(life, opened, self._leaving), name="turnwise engine")
        owner.add_done_callback(lambda _: opened.set())
        try:
            await opened.wait()
        except BaseException:
            self._leaving.set()  # in case its cancellation is lost
            owner.cancel()
            await over(owner)
            self._owner = None
            raise
        if owner.done():
            self._owner = None
            owner.result()

    async def end(self) -> None:
        """End the life and wait for it; a cancellation of the caller takes effect afterwards. May be called twice."""
        owner = self._owner
        if owner is None:
            return
        if not owner.done():
            self.check_loop()
        self._leaving.set()
        was_cancelled = await over(owner)
        if self._owner is owner:
            self._owner = None
        if not owner.cancelled():
            owner.result()
        if was_cancelled:
            raise asyncio.CancelledError

    async def over(self) -> None:
        """Wait for the end of the life, and raise its error, if any."""
        self.check_loop()
        owner, leaving = self._owner, self._leaving
        if owner is None:
            return
        await asyncio.wait([owner])
        if not leaving.is_set():
            if owner.cancelled():
                raise EngineClosed("the task of the engine was cancelled", waited=True)
            owner.result()

    async def here(self, stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yield from a stream in the engine's own event loop; a thread without a loop may create the stream."""
        self.check_loop()
        async with aclosing(stream) as items:
            async for item in items:
                yield item

    def check_loop(self) -> None:
        """Raise a `SettingsError` if the engine is used in another event loop than the one in which it was entered."""
        if self._owner is not None and _running_loop() is not self._owner.get_loop():
            raise SettingsError(
                "event loop", "must be the one in which the engine was entered; another one needs an engine of its own"
            )


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result; a cancellation of the caller takes effect afterwards.

    A cancelled caller does not get the result, so necessary further steps belong to the work.
    """
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(_answer(work, outcome))
    try:
        return await outcome  # the task itself would end an iteration of the event loop later
    except asyncio.CancelledError:
        await over(task)
        raise


async def _answer(work: Coroutine[Any, Any, T], outcome: asyncio.Future[T]) -> None:
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - the caller gets it
        if not outcome.done():
            outcome.set_exception(error)
    except BaseException:
        outcome.cancel()
        raise
    else:
        if not outcome.done():
            outcome.set_result(result)


async def run_in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run `work` in a thread and return its result: it may take a second for a long chat."""
    return await anyio.to_thread.run_sync(work, *arguments)


async def over(task: asyncio.Task[Any]) -> bool:
    """Wait for the end of a task through any cancellations of the caller; return whether there were any."""
    was_cancelled = False
    while not task.done():
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
        except asyncio.CancelledError:
            was_cancelled = True
    return was_cancelled


async def _hold_open(
    life: Callable[[], AbstractAsyncContextManager[None]], opened: asyncio.Event, leaving: asyncio.Event
) -> None:
    async with life():
        opened.set()
        await leaving.wait()


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise SettingsError(
            "event loop", "must be asyncio's, also under anyio: anyio.run(main, backend='asyncio'), never 'trio'"
        ) from None
