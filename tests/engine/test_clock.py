"""Waiting, by a clock that only moves when it is told to."""

from __future__ import annotations

import anyio
import pytest

from turnwise.engine.clock import sleep, wait_until
from turnwise.testing import ManualClock


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_time_that_has_passed_is_not_waited_for(seconds: float) -> None:
    """A test may move its clock past a retry before the engine has begun to wait for it."""
    with anyio.fail_after(120):
        await sleep(ManualClock(), seconds)


async def test_sleep_lasts_until_the_clock_is_moved_that_far() -> None:
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


async def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    """A worker that was busy while its clock was moved looks again at once."""
    clock = ManualClock()
    with anyio.fail_after(120):
        await wait_until(anyio.Event(), clock, clock.monotonic())
