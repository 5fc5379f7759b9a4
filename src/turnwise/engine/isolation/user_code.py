"""Calls of user code: models, tools, hooks, strategies, observers, stores, clocks.

It may raise anything, and it may ignore its cancellation. An exception is the failure of that one call, and a call that
does not end is abandoned and logged. So an error of a store that user code uses itself is never taken for one of the
engine's. The engine calls user code only through this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar, copy_context
from typing import Any, Final, Generic, TypeVar, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from turnwise.foreign import described, guarded, is_the_programs
from turnwise.logger import logger
from turnwise.providers.scripted import Sleep, sleep_by

T = TypeVar("T")

UNRESPONSIVE_AFTER: Final = 5.0
"""Seconds after which a cancelled call that still runs is logged."""
CANCEL_EVERY: Final = 1.0
"""Seconds between two cancellations of such a call."""
CLOSE_TIMEOUT_S: Final = 1.0
"""Seconds that calls get to end when their engine is left."""


Drive = Callable[[Coroutine[Any, Any, None], str, Mapping[str, Any]], Coroutine[Any, Any, None]]
"""Wraps a call's coroutine, given also the call's name and log fields."""
DRIVE: Final[ContextVar[Drive | None]] = ContextVar("turnwise_drive", default=None)
"""Drives every call of user code: for tests that stop an engine at any of its awaits."""


def was_cancelled() -> bool:
    """Whether the current task was cancelled, by a scope around it or by its owner.

    If not, a `CancelledError` comes from an inner task, or was raised by hand.
    """
    task = asyncio.current_task()
    return anyio.current_effective_deadline() == -float("inf") or (task is not None and task.cancelling() > 0)


def is_the_engines(error: BaseException) -> bool:
    """Whether an error ends more than the call of user code: it cancels the engine's task, or ends the program."""
    return not isinstance(error, Exception) and (was_cancelled() or is_the_programs(error))


class UserCall(Generic[T]):
    """One call of user code, in a task of its own."""

    def __init__(self, code: Callable[[], Awaitable[T]], name: str, about: dict[str, Any], sleep: Sleep) -> None:
        self.name = name
        self.about = about
        self.abandoned = False
        self._context = copy_context()
        self._given: tuple[T | None, Exception | None] | None = None
        """The result or error of the code."""
        self._answered = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._cancellation_shield = anyio.CancelScope()
        """A scope inside `_scope`; while it is shielded, no cancellation reaches the code."""
        # No eager task: it would begin before `self.task` is set.
        run, drive = self._run(code, sleep), DRIVE.get()
        self.task = asyncio.Task(run if drive is None else drive(run, name, about), name=f"turnwise {name}")

    async def outcome(self) -> T:
        """Return the result of the code, or raise its error; a cancelled caller does not wait for the code to end."""
        await self._answered.wait()
        value, error = cast("tuple[T | None, Exception | None]", self._given)
        if error is not None:
            raise error
        return cast("T", value)

    def give(self, value: T) -> None:
        """Give the caller its answer before the code has ended."""
        self._answer(value, None)

    def fail(self, error: Exception) -> None:
        """Have the caller's wait raise an error before the code has ended."""
        self._answer(None, error)

    def _answer(self, value: T | None, error: Exception | None) -> None:
        if self._given is None:
            self._given = value, error
            self._answered.set()

    def abandon(self) -> None:
        """Cancel the code, and drop its later result or error."""
        if self.abandoned:
            return
        self.abandoned = True
        if not self.task.done():
            self._scope.cancel()
            timer = asyncio.get_running_loop().call_later(UNRESPONSIVE_AFTER, self._warn_unresponsive)
            self.task.add_done_callback(lambda _: timer.cancel())

    def log(self, event: str) -> None:
        self._context.run(logger.warning, event, code=self.name, **self.about)

    def leave_behind(self) -> None:
        self.log("user_code_abandoned")
        self._cancellation_shield.shield = True
        # Otherwise `asyncio.run` would wait for it for ever, and the program could not end.
        asyncio._unregister_task(self.task)  # noqa: SLF001 - documented for those who own tasks

    def _warn_unresponsive(self) -> None:
        self.log("user_code_ignores_cancellation")
        self._cancel_now_and_then()

    def _cancel_now_and_then(self) -> None:
        """Cancel every `CANCEL_EVERY` seconds: anyio does it in every round of the event loop, which costs a core."""
        if not self.task.done():
            self._cancellation_shield.shield = False
            self._cancellation_shield.shield = True
            asyncio.get_running_loop().call_later(CANCEL_EVERY, self._cancel_now_and_then)

    async def _run(self, code: Callable[[], Awaitable[T]], sleep: Sleep) -> None:
        sleep_by(sleep)
        answer: tuple[T | None, Exception | None] = None, None  # of an abandoned call
        if self.abandoned:
            return
        try:
            with self._scope, self._cancellation_shield, guarded():
                answer = await code(), None
        except Exception as error:  # noqa: BLE001 - the caller gets it
            answer = None, error
        if self._given is None:
            self._answer(*answer)
        elif answer[1] is not None and not self.abandoned:
            logger.debug("user_code_failed_late", code=self.name, problem=described(answer[1]), **self.about)


class UserCalls:
    """The calls of user code that run."""

    def __init__(self, close_timeout: float = CLOSE_TIMEOUT_S, sleep: Sleep = anyio.sleep) -> None:
        self._close_timeout = close_timeout
        self._sleep = sleep
        self._calls: dict[UserCall[Any], None] = {}

    def start(self, code: Callable[[], Awaitable[T]], name: str, **about: Any) -> UserCall[T]:
        """Call user code; `about` says in the log where it belongs."""
        call = UserCall(code, name, about, self._sleep)
        self._calls[call] = None
        call.task.add_done_callback(lambda _: self._calls.pop(call, None))
        return call

    async def run(self, code: Callable[[], Awaitable[T]], name: str, **about: Any) -> T:
        """Run user code and return its result. A cancelled caller abandons or cancels the code, or never calls it.

        Raises:
            UserCodeError: it raised what is no ordinary exception.
            Exception: it raised that.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        call = self.start(code, name, **about)
        try:
            return await call.outcome()
        finally:
            call.abandon()

    async def close(self) -> None:
        """Cancel every call and wait a moment. Calls that do not end are named in the log and left behind."""
        calls = [*self._calls]
        if not calls:
            return
        for call in calls:
            call.abandon()
        await asyncio.wait([call.task for call in calls], timeout=self._close_timeout)
        for call in calls:
            if not call.task.done():
                call.leave_behind()


async def in_thread(code: Callable[[], T]) -> T:
    """Run blocking user code in a thread and return its result. If the caller is cancelled the thread runs on.

    It never waits for a thread, nor keeps turnwise's own work, which shares a limited number of them, waiting for one.

    Raises:
        UserCodeError: it raised what is no ordinary exception.
        Exception: it raised that.
    """

    def run() -> T:
        with guarded():
            return code()

    with anyio.CancelScope() as scope:
        try:
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except asyncio.CancelledError:
            scope.cancel()  # so that `anyio.from_thread.check_cancelled` raises in the thread
    raise asyncio.CancelledError
