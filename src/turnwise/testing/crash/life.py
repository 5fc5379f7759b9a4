"""One life of a process inside this one: all of its tasks stop at once, as a kill stops them.

A kill runs no cleanup: no `finally`, no `except CancelledError`, no further line. So the tasks of a life are frozen
where they stand, the real store is cut off, and they are cancelled only after all about the crash has been checked.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar

from turnwise.engine.isolation.tasks import over
from turnwise.engine.isolation.user_code import DRIVE
from turnwise.states.errors import StoreError
from turnwise.testing.crash.points import Points

_T = TypeVar("_T")
_LIFE: Final[ContextVar[EngineRun | None]] = ContextVar("turnwise_crashing_life", default=None)
MOST_AWAITS: Final = 25
"""How many awaits of one call of user code are points: a tool may wait in a loop."""
_CANCEL_TIMEOUT_S: Final = 0.2
_ROUNDS: Final = 20


class Killed(StoreError):
    """The process of this store was killed."""

    def __init__(self) -> None:
        super().__init__("the process of this store was killed", passing=True)


class EngineRun:
    """The tasks that `run` and everything in it start, until a point is reached at which they are killed."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.steps = 0
        """How often a task has gone on: as long as it changes, something happens."""
        self.store_calls = 0
        """Calls of the store that are under way."""
        self.user_calls = 0
        """Calls of user code that are under way."""
        self.started_tools: list[tuple[str, str]] = []
        """The chat and the call of each start of a tool, in order."""
        self.killed = asyncio.Event()
        self.is_frozen = False
        self._outside = copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._in_store: set[asyncio.Task[Any] | None] = set()

    def run(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start work that belongs to this life, inside `task_factory`."""
        context = self._outside.copy()
        context.run(_LIFE.set, self)
        context.run(DRIVE.set, self._drive)
        return asyncio.get_running_loop().create_task(work, context=context)

    async def outside(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return what work of the store returns, which no kill stops half-way: a database is another process.

        Raises:
            Killed: this life is over.
        """
        if self.killed.is_set():
            raise Killed
        caller = asyncio.current_task()
        self._in_store.add(caller)
        self.store_calls += 1
        task = self._outside.copy().run(asyncio.ensure_future, work())
        task.add_done_callback(self._store_answered)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await over(task)  # a store promises that a cancelled call is complete, or never happened
            if not task.cancelled():
                task.exception()
            raise
        finally:
            self._in_store.discard(caller)

    def _store_answered(self, _task: asyncio.Task[Any]) -> None:
        self.store_calls -= 1

    async def reach(self, point: str) -> None:
        """Pass a point, or die there."""
        if self.points.reach(point):
            self.kill()
            await asyncio.sleep(0)

    def kill(self) -> None:
        """Stop every task where it stands. The caller has to await something at once."""
        self.is_frozen = True
        self.killed.set()

    async def end(self) -> None:
        """Cancel what is left, with the store cut off, once nothing depends on it any more."""
        self.killed.set()
        self.is_frozen = False
        for _ in range(_ROUNDS):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_CANCEL_TIMEOUT_S)

    def hold(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_in_store(self) -> bool:
        return asyncio.current_task() in self._in_store

    def _drive(
        self, coroutine: Coroutine[Any, Any, None], name: str, about: Mapping[str, Any]
    ) -> Coroutine[Any, Any, None]:
        if name.startswith("tool "):
            self.started_tools.append((about["chat_id"], about["call_id"]))
        where = self.points.chat(about.get("chat_id", ""))
        return Driven(coroutine, self, call=f"{name} in {where}")


class Driven(Coroutine[Any, Any, Any]):
    """A coroutine that goes on only while its life does; each await of user code is a point."""

    def __init__(self, inner: Coroutine[Any, Any, Any], life: EngineRun, *, call: str | None = None) -> None:
        self._inner = inner
        self._life = life
        self._call = call
        self._awaits = 0
        self._began = self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # `cr_frame` and the like, by which anyio knows whether a task has started

    def send(self, value: Any) -> Any:
        """Go on, unless the life is over."""
        life, is_first = self._life, not self._began
        if is_first:
            self._begin()
        if life.is_frozen or (is_first and self._dies_at("before")):
            return _never()
        try:
            awaited = self._step(lambda: self._inner.send(value))
        except StopIteration:
            if life.is_frozen or self._dies_at("after"):
                return _never()
            raise
        if not life.is_frozen and self._call is not None and not life.is_in_store():
            self._awaits += 1
            if self._awaits <= MOST_AWAITS:
                self._dies_at(f"at await {self._awaits} of")
        return _never() if life.is_frozen else awaited

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:  # noqa: ARG002 - tasks throw errors
        """Let an error come out of what is awaited, unless the life is over."""
        error = kind if value is None else value
        if self._life.is_frozen:
            return _never()
        if self._ended:
            raise error
        if not self._began:
            self._begin()
        self._close_arguments()
        awaited = self._step(lambda: self._inner.throw(error))
        return _never() if self._life.is_frozen else awaited

    def _close_arguments(self) -> None:
        """Close the coroutine that a task was to run, if it never began: Python warns of one that nothing awaits."""
        if not inspect.iscoroutine(self._inner) or inspect.getcoroutinestate(self._inner) != inspect.CORO_CREATED:
            return
        for argument in inspect.getcoroutinelocals(self._inner).values():
            for found in (argument, *gc.get_referents(argument)):  # anyio keeps it in a handle
                if inspect.iscoroutine(found) and inspect.getcoroutinestate(found) == inspect.CORO_CREATED:
                    found.close()

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        raise NotImplementedError("only a task runs it")

    def _begin(self) -> None:
        self._began = True
        task = asyncio.current_task()
        if task is not None:
            self._life.hold(task)
        self._life.user_calls += self._call is not None

    def _step(self, step: Callable[[], Any]) -> Any:
        self._life.steps += 1
        try:
            return step()
        except BaseException:
            self._ended = True
            self._life.user_calls -= self._call is not None
            raise

    def _dies_at(self, moment: str) -> bool:
        if self._call is not None and self._life.points.reach(f"{moment} {self._call}"):
            self._life.kill()
        return self._life.is_frozen


def _never() -> Any:
    """Return what a task is to wait for that is not to go on."""
    return next(iter(asyncio.get_running_loop().create_future().__await__()))


@contextmanager
def task_factory() -> Iterator[None]:
    """Let every task that is started in a life belong to it."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        context = options.get("context")
        life = _LIFE.get() if context is None else context.get(_LIFE)
        driven = coroutine if life is None else Driven(coroutine, life)
        return asyncio.Task(driven, loop=loop, **options) if before is None else before(loop, driven, **options)

    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)
