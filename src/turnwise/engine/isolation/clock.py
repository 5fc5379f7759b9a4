"""Clocks: the engine takes all its time from one, so that a test can move it by hand."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Final, Protocol, TypeVar

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from pydantic import AfterValidator

from turnwise.foreign import guarded
from turnwise.logger import logger
from turnwise.states.errors import ModelError, ModelErrorKind
from turnwise.states.values.hints import validator_of
from turnwise.states.values.plain import Misfit, shown, type_name

T = TypeVar("T")

ROUNDING: Final = 1e-6
"""Seconds of tolerance for rounding: what is due within them is due now."""


LATE_S: Final = 1.0
"""Seconds by which a timer may be late; a later one shows that the process stood still."""
GRACE_S: Final = 1.0
"""Seconds that such a process gets to see what has arrived before what is overdue counts as too late."""

FIRST_TIME: Final = datetime(1971, 1, 1, tzinfo=UTC)
TIME_TOO_LATE: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""No store keeps an earlier time than the one, and no date is left after a later one than the other."""
WITHIN: Final = f"a time from {FIRST_TIME.year} on, before {TIME_TOO_LATE.year}"


def _in_utc(time: datetime) -> datetime:
    if time.utcoffset() is None:
        raise Misfit(f"must be a time with a time zone; it was {time.isoformat()}")
    if not FIRST_TIME <= time < TIME_TOO_LATE:
        raise Misfit(f"must be {WITHIN}; it was {time.isoformat()}")
    return time.astimezone(UTC)


Instant = Annotated[datetime, AfterValidator(_in_utc)]
"""A time by which an engine goes, in UTC."""
_INSTANT: Final = validator_of(Instant)


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
    """Wraps a clock that others wrote. Where it fails the machine's clock is used, and that is logged once.

    It fails, too, where it gives no time: a `now` without a time zone, or so far from today that no store can keep it
    or no date is left after it; a `monotonic` that is no finite number.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machine = SystemClock()
        self._failed = False

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return self._or_else(lambda: _instant(self._clock.now()), self._machine.now)

    def monotonic(self) -> float:
        """Return the clock's monotonic seconds, or its time in seconds if it has none."""
        measure: Callable[[], float] | None = getattr(self._clock, "monotonic", None)
        return (
            self.now().timestamp()
            if measure is None
            else self._or_else(lambda: _seconds(measure()), self._machine.monotonic)
        )

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` from the event loop after that many seconds."""
        return self._or_else(
            lambda: _GuardedTimer(self, self._clock.call_later(seconds, callback)),
            lambda: self._machine.call_later(seconds, callback),
        )

    def cancel(self, timer: Timer) -> None:
        """Cancel a timer of the clock. If that fails the callback may still come, which is harmless."""
        self._or_else(lambda: timer.cancel(), lambda: None)  # noqa: PLW0108 - what is no timer has no `cancel`

    def _or_else(self, code: Callable[[], T], instead: Callable[[], T]) -> T:
        try:
            with guarded():
                return code()
        except Exception:  # noqa: BLE001 - whatever it raises, time goes on
            if not self._failed:
                self._failed = True
                logger.exception("clock_failed", clock=type_name(self._clock))
            return instead()


def _instant(time: datetime) -> datetime:
    try:
        instant: datetime = _INSTANT(time)
    except Misfit as misfit:
        raise ValueError(f"now() {misfit.problem}") from None
    return instant


def _seconds(passed: float) -> float:
    if not isinstance(passed, int | float) or not math.isfinite(passed):
        raise TypeError(f"monotonic() must return a finite number of seconds; it was {shown(passed)}")
    return passed


class _GuardedTimer(msgspec.Struct, frozen=True):
    clock: GuardedClock
    timer: Timer

    def cancel(self) -> None:
        self.clock.cancel(self.timer)


async def sleep(clock: SteadyClock, seconds: float) -> None:
    """Wait that many seconds of `clock`'s time; not at all if they are not positive."""
    await _wait(asyncio.Event(), clock, seconds)


async def wait_until(event: asyncio.Event, clock: SteadyClock, end: float) -> None:
    """Wait for `event`, but no longer than until `end` by `clock.monotonic`."""
    await _wait(event, clock, end - clock.monotonic())


async def _wait(event: asyncio.Event, clock: SteadyClock, seconds: float) -> None:
    if seconds <= ROUNDING:
        await checkpoint()
        return
    timer = clock.call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


class _TimeOut:
    """A timer that does not count time in which the process stood still: what arrived meanwhile is seen first."""

    def __init__(self, clock: SteadyClock, seconds: float, callback: Callable[[], object]) -> None:
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


def time_out(clock: SteadyClock, seconds: float, callback: Callable[[], object]) -> Timer:
    """Call `callback` after that many seconds: something has taken too long.

    A process that stood still (stopped, or on a machine that slept) first sees what has arrived.
    """
    return _TimeOut(clock, seconds, callback)


@contextmanager
def calling_after(clock: SteadyClock, seconds: float | None, callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` after that many seconds if the work inside takes longer, as `time_out` does; `None`: no limit."""
    timer = None if seconds is None else time_out(clock, seconds, callback)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


@contextmanager
def fail_after(seconds: float | None) -> Iterator[None]:
    """Cancel the work inside if it takes longer than that many seconds of the machine's clock, as `time_out` does.

    Raises:
        TimeoutError: it was cancelled.
    """
    with anyio.CancelScope() as scope, calling_after(SystemClock(), seconds, scope.cancel):
        yield
        return
    raise TimeoutError


@contextmanager
def time_limit(
    clock: SteadyClock, seconds: float | None, kind: ModelErrorKind, problem: str, *, retryable: bool | None = None
) -> Iterator[None]:
    """Cancel the work inside if it takes longer than that many seconds; `None` sets no limit.

    Raises:
        ModelError: of that kind: it was cancelled. Its text is the `problem`, and after how many seconds.
    """
    with anyio.CancelScope() as scope, calling_after(clock, seconds, scope.cancel):
        yield
        return
    raise ModelError(kind, retryable, message=f"{problem} within {seconds:g} s", timed_out=True)
