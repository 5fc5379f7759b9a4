"""Clocks: the engine takes all its time from one, so that a test can move it by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

import anyio
from anyio.lowlevel import checkpoint

from turnwise.engine.user_code import guarded
from turnwise.logger import logger

ROUNDING: Final = 1e-6
"""Seconds of tolerance for rounding: what is due within them is due now."""


class Timer(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Do not call back. Cancelling twice, or too late, is harmless."""
        ...


class Clock(Protocol):
    """Tells the time and calls back. Intervals are measured by its `monotonic` if it has one, else by the time."""

    def now(self) -> datetime:
        """Return the time, in UTC. Safe to call from any thread."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` from the event loop after that many seconds."""
        ...


class SteadyClock(Clock, Protocol):
    """A clock whose time may be set, forward or back, and whose `monotonic` is not affected by that."""

    def monotonic(self) -> float:
        """Return seconds that pass evenly, even if the time is set. Only differences mean anything."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic clock."""
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` from the event loop after that many seconds."""
        return asyncio.get_running_loop().call_later(seconds, callback)


class GuardedClock:
    """Wraps a clock that others wrote. Where it fails the machine's clock is used, and that is logged once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machine = SystemClock()
        self._failed = False

    def now(self) -> datetime:
        """Return the time, in UTC."""
        try:
            with guarded():
                return self._clock.now()
        except Exception:  # noqa: BLE001 - whatever it raises, time goes on
            self._tell()
            return self._machine.now()

    def monotonic(self) -> float:
        """Return the clock's monotonic seconds, or its time in seconds if it has none."""
        measure: Callable[[], float] | None = getattr(self._clock, "monotonic", None)
        if measure is None:
            return self.now().timestamp()
        try:
            with guarded():
                return measure()
        except Exception:  # noqa: BLE001 - as above
            self._tell()
            return self._machine.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` from the event loop after that many seconds."""
        try:
            with guarded():
                return _GuardedTimer(self._clock.call_later(seconds, callback), self._tell)
        except Exception:  # noqa: BLE001 - as above
            self._tell()
            return self._machine.call_later(seconds, callback)

    def _tell(self) -> None:
        if not self._failed:
            self._failed = True
            logger.exception("clock_failed", clock=type(self._clock).__name__)


@dataclass(frozen=True, slots=True)
class _GuardedTimer:
    timer: Timer
    tell: Callable[[], None]

    def cancel(self) -> None:
        try:
            with guarded():
                self.timer.cancel()
        except Exception:  # noqa: BLE001 - the callback may still come, which is harmless: nobody waits for it
            self.tell()


async def sleep(clock: SteadyClock, seconds: float) -> None:
    """Wait that many seconds of `clock`'s time; not at all if they are not positive."""
    if seconds <= 0:
        await checkpoint()
        return
    over = anyio.Event()
    timer = clock.call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()


async def wait_until(event: anyio.Event, clock: SteadyClock, end: float) -> None:
    """Wait for `event`, but no longer than until `end` by `clock.monotonic`."""
    seconds = end - clock.monotonic()
    if seconds <= ROUNDING:
        await checkpoint()
        return
    timer = clock.call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
