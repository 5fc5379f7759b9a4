"""A clock that stands still until it is moved by hand."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import anyio.lowlevel
from pydantic import AfterValidator

from turnwise.engine.isolation.clock import TIME_TOO_LATE
from turnwise.states.errors import InvalidArgument
from turnwise.states.values.checked import checked
from turnwise.states.values.plain import Misfit, shown

_FIRST_TIME: Final = datetime(1971, 1, 1, tzinfo=UTC)
_WITHIN: Final = f"a time from {_FIRST_TIME.year} on, before {TIME_TOO_LATE.year}"


def _in_utc(time: datetime) -> datetime:
    if time.utcoffset() is None:
        raise Misfit(f"must be a time with a time zone; it was {time.isoformat()}")
    if not _FIRST_TIME <= time < TIME_TOO_LATE:
        raise Misfit(f"must be {_WITHIN}; it was {time.isoformat()}")
    return time.astimezone(UTC)


class ManualClock:
    """A `Clock` for tests: time passes only in `advance`, so nothing has to sleep. `step` sets it to another time.

    Raises:
        InvalidArgument: no engine goes by the time, which has no time zone, or is before 1971, or from 9000 on.
    """

    @checked
    def __init__(self, start: Annotated[datetime, AfterValidator(_in_utc)] = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._passed = timedelta()
        self._stepped = timedelta()
        self._serial = itertools.count()
        self._timers: list[tuple[timedelta, int, _ManualTimer]] = []

    def now(self) -> datetime:
        """Return the time that the clock was moved to, in UTC."""
        return self._start + self._passed + self._stepped

    def monotonic(self) -> float:
        """Return the seconds that have passed, without the steps."""
        return self._passed.total_seconds()

    @checked
    def step(self, seconds: float) -> None:
        """Set the clock forward or back, although no time passes, as an administrator sets a machine's clock.

        Raises:
            InvalidArgument: no engine goes by the time to which that leads.
        """
        self._stepped += self._way(seconds)

    @checked
    def call_later(self, seconds: float, callback: Callable[[], object]) -> _ManualTimer:
        """Call `callback` in the `advance` that passes its time."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._passed + self._span(max(seconds, 0)), next(self._serial), timer))
        return timer

    @property
    def next_timer(self) -> datetime | None:
        """When the next timer is due; `None` if none waits, or that is after the last day of the calendar."""
        due = self._next_due()
        try:
            return None if due is None else self._start + self._stepped + due
        except OverflowError:  # a step came after it was set
            return None

    @checked
    def advance(self, seconds: float) -> Settling:
        """Let time pass; every timer that comes due is called, in order of its time.

        Await the result to let the tasks that were woken run.

        Raises:
            InvalidArgument: no time passes backwards (`step` sets the clock back), or no engine goes by the time to
                which that leads.
        """
        if seconds < 0:
            raise InvalidArgument("seconds", f"must be 0 or more, step sets a clock back; it was {shown(seconds)}")
        end = self._passed + self._way(seconds)
        while (next_due := self._next_due()) is not None and next_due <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._passed = max(self._passed, due)
            timer.fire()
        self._passed = end
        return Settling()

    def _next_due(self) -> timedelta | None:
        """Return how much time will have passed when the next timer is due; `None` if none waits."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _way(self, seconds: float) -> timedelta:
        """Return so many seconds, if they lead to a time by which an engine goes."""
        span = self._span(seconds)
        if not _FIRST_TIME <= self.now() + span < TIME_TOO_LATE:
            raise InvalidArgument("seconds", f"must lead to {_WITHIN}; it was {shown(seconds)}")
        return span

    def _span(self, seconds: float) -> timedelta:
        """Return so many seconds, if there is a date so far from now."""
        try:
            span = timedelta(seconds=seconds)
            self.now() + span
        except OverflowError:
            raise InvalidArgument("seconds", f"must end within the calendar; it was {shown(seconds)}") from None
        return span


class Settling:
    """Lets every task that is ready run, several times, when it is awaited."""

    ROUNDS = 20

    def __await__(self) -> Generator[Any, None, None]:
        for _ in range(self.ROUNDS):
            yield from anyio.lowlevel.checkpoint().__await__()


class _ManualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            self._callback()
