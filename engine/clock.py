"""Time, as the engine sees it: one clock for every timer, so that a test can move it by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import anyio
from anyio.lowlevel import checkpoint


class Timer(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Forget the callback. Cancelling twice, or too late, is harmless."""
        ...


class Clock(Protocol):
    """Tells the time and calls back."""

    def now(self) -> datetime:
        """Return the time, in UTC. Safe to call from any thread."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` from the event loop after that many seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.now(UTC)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` from the event loop after that many seconds."""
        return asyncio.get_running_loop().call_later(max(seconds, 0), callback)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait that many seconds of `clock`'s time; a time that has passed is not waited for."""
    if seconds <= 0:
        await checkpoint()
        return
    over = anyio.Event()
    timer = clock.call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()


async def wait_until(event: anyio.Event, clock: Clock, end: datetime) -> None:
    """Wait for `event`, but no longer than until `end` by `clock`'s time."""
    seconds = (end - clock.now()).total_seconds()
    if seconds <= 0:
        await checkpoint()
        return
    timer = clock.call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
