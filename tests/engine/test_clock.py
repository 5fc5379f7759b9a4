"""Clocks: waits and time limits by a manual clock, and faulty clocks of applications."""

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from turnwise.engine.isolation.clock import SystemClock, Timeout, sleep, time_limit, wait_until
from turnwise.states.errors import InvalidArgument
from turnwise.states.model_errors import ModelError
from turnwise.testing import ManualClock

FIRST: Final = datetime(1971, 1, 1, tzinfo=UTC)
TOO_LATE: Final = datetime(9000, 1, 1, tzinfo=UTC)
EAST: Final = FIRST.replace(tzinfo=timezone(timedelta(hours=3)))
MOMENT: Final = timedelta(microseconds=1)


@pytest.mark.parametrize("start", [datetime(2026, 1, 1), FIRST - MOMENT, TOO_LATE, EAST])  # noqa: DTZ001 - a fault
def test_manual_clock_refuses_an_unsupported_start(start: datetime) -> None:
    """Otherwise the engine would use the machine's clock, and the test would wait in real time."""
    with pytest.raises(InvalidArgument, match=r"start: must be a time (with a time zone|from 1971 on, before 9000)"):
        ManualClock(start)


def test_manual_clock_stays_within_supported_times() -> None:
    clock, called = ManualClock(TOO_LATE - timedelta(seconds=5)), list[str]()
    clock.call_later(1, lambda: called.append("never"))
    for move in (clock.advance, clock.step):
        with pytest.raises(InvalidArgument, match=r"^seconds: must lead to a time from 1971 on, before 9000; it was 5"):
            move(5)
    assert (clock.now(), clock.monotonic(), called) == (TOO_LATE - timedelta(seconds=5), 0, [])


@pytest.mark.parametrize("seconds", ["1", float("nan"), 1e18])
@pytest.mark.parametrize("method", ["advance", "step", "call_later"])
def test_manual_clock_refuses_invalid_seconds(method: str, seconds: Any) -> None:
    clock = ManualClock()
    with pytest.raises(InvalidArgument, match=r"^seconds: must"):
        getattr(clock, method)(seconds, *([print] if method == "call_later" else []))
    with pytest.raises(InvalidArgument, match="seconds: must be 0 or more, step sets a clock back"):
        clock.advance(-0.001)
    assert (clock.now(), clock.monotonic(), clock.next_timer) == (ManualClock().now(), 0, None)


class Stopped(ManualClock):
    """The clock of a suspended process: timers that are due fire when it resumes."""

    def stand_still(self, seconds: float) -> None:
        late = [(timer.fire, timer.cancel()) for _, _, timer in self._timers if not timer.cancelled]
        self.advance(seconds)
        for fire, _ in late:
            fire.__self__.cancelled = False
            fire()


@pytest.mark.parametrize("arrives", [False, True])
def test_time_out_lets_a_woken_process_see_what_came(*, arrives: bool) -> None:
    clock, late = Stopped(), list[float]()
    timer = Timeout(clock, 10, lambda: late.append(clock.monotonic()))
    clock.stand_still(60)
    assert late == []
    if arrives:
        timer.cancel()
    clock.advance(5)
    assert late == ([] if arrives else [61])


async def test_sleep_lasts_until_the_clock_has_advanced() -> None:
    clock, woke = ManualClock(), anyio.Event()

    async def sleeper() -> None:
        await sleep(clock, 10)
        woke.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper)
        await anyio.wait_all_tasks_blocked()
        await clock.advance(9)
        assert not woke.is_set()
        await clock.advance(1)
        assert woke.is_set()


async def test_ended_wait_leaves_no_timer() -> None:
    """Otherwise a clock that is moved far would call an ended wait."""
    clock, bell = ManualClock(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_until, bell, clock, clock.monotonic() + 10)
        tasks.start_soon(sleep, clock, 5)
        await anyio.wait_all_tasks_blocked()
        assert clock.next_timer == clock.now() + timedelta(seconds=5)
        bell.set()
        await anyio.wait_all_tasks_blocked()
        assert clock.next_timer == clock.now() + timedelta(seconds=5)
        tasks.cancel_scope.cancel()
    assert clock.next_timer is None


async def test_work_beyond_its_limit_raises_model_error() -> None:
    clock, problems = ManualClock(), list[ModelError]()

    async def wait_for_ever() -> None:
        try:
            with time_limit(clock, 0.5, "network", "nothing came", retryable=False):
                await anyio.sleep_forever()
        except ModelError as error:
            problems.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_ever)
        await anyio.wait_all_tasks_blocked()
        await clock.advance(0.5)
    (problem,) = problems
    assert (problem.kind, problem.retryable, problem.message) == ("network", False, "nothing came within 0.5 s")


async def test_time_limit_passes_errors_and_cancellation_on() -> None:
    clock = ManualClock()
    with pytest.raises(LookupError), time_limit(clock, 5, "network", "nothing came"):
        raise LookupError
    with anyio.CancelScope() as scope, time_limit(clock, 5, "network", "nothing came"):
        scope.cancel()
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert clock.next_timer is None


@pytest.mark.parametrize("seconds", [-1, 0, 0.001])
async def test_system_clock_returns_utc_and_runs_timers(seconds: float) -> None:
    clock, called = SystemClock(), anyio.Event()
    assert clock.now().tzinfo is UTC
    assert abs(clock.now().timestamp() - time.time()) < 60
    assert abs(clock.monotonic() - time.monotonic()) < 60
    clock.call_later(seconds, called.set)
    with anyio.fail_after(60):
        await called.wait()
