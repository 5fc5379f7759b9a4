"""Clocks: the engine takes all its time from one, so that a test can move it by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Protocol

import anyio
from anyio.lowlevel import checkpoint

from turnwise.states.model_errors import ModelError, ModelErrorKind

ROUNDING: Final = 1e-6
"""Seconds of tolerance for rounding."""
LATE_S: Final = 1.0
"""Seconds by which a timer may be late; a later one shows that the process stood still."""
GRACE_S: Final = 1.0
"""Seconds in which such a process handles arrived events before its timers fire."""

TIME_TOO_LATE: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""No timer is set for this time or a later one."""


class Timer(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Do not call back. Cancelling twice, or too late, is harmless."""
        ...


class Clock(Protocol):
    """Returns the time and calls back. Its time may be set, forward or back, which does not affect `monotonic`."""

    def now(self) -> datetime:
        """Return the time, in UTC. Safe to call from any thread."""
        ...

    def monotonic(self) -> float:
        """Return steady seconds; only differences have a meaning."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` from the event loop after that many seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait that many seconds of `clock`'s time; not at all if they are not positive."""
    await _wait(asyncio.Event(), clock, seconds)


async def wait_until(event: asyncio.Event, clock: Clock, end: float) -> None:
    """Wait for `event`, but no longer than until `end` by `clock.monotonic`."""
    await _wait(event, clock, end - clock.monotonic())


async def _wait(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    if seconds <= ROUNDING:
        await checkpoint()
        return
    timer = clock.call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


class Timeout:
    """Calls `callback` after that many seconds. A process that was suspended first handles arrived events."""

    def __init__(self, clock: Clock, seconds: float, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._callback = callback
        self._due = clock.monotonic() + seconds
        self._timer = clock.call_later(seconds, self._fire)

    def _fire(self) -> None:
        if self._clock.monotonic() - self._due > LATE_S:
            self._timer = self._clock.call_later(GRACE_S, self._callback)
        else:
            self._callback()

    def cancel(self) -> None:
        self._timer.cancel()


@contextmanager
def calling_after(clock: Clock, seconds: float | None, callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` after that many seconds if the work inside takes longer, by a `Timeout`; `None`: no limit."""
    timer = None if seconds is None else Timeout(clock, seconds, callback)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


@contextmanager
def fail_after(seconds: float | None) -> Iterator[None]:
    """Raise `TimeoutError` if the work inside takes longer than that many seconds of the machine's clock."""
    with anyio.CancelScope() as scope, calling_after(SystemClock(), seconds, scope.cancel):
        yield
        return
    raise TimeoutError


@contextmanager
def time_limit(
    clock: Clock, seconds: float | None, kind: ModelErrorKind, problem: str, *, retryable: bool | None = None
) -> Iterator[None]:
    """Raise a `ModelError` of that kind if the work inside takes longer than that many seconds (`None`: no limit)."""
    with anyio.CancelScope() as scope, calling_after(clock, seconds, scope.cancel):
        yield
        return
    raise ModelError(kind, retryable, message=f"{problem} within {seconds:g} s", timed_out=True)
