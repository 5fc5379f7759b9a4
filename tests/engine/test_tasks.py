"""Tasks of an engine, and its lifetime: what is started runs, what fails fails alone, what ends has ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from turnwise import EngineInUse
from turnwise.engine.tasks import Lifetime, Tasks, finish


class Life:
    """A life that a test sees begin and end."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.hold: anyio.Event | None = None
        self.holding = anyio.Event()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        try:
            if self.hold is not None:
                self.holding.set()
                await self.hold.wait()
            self.log.append("started")
            yield
        finally:
            await asyncio.sleep(0)  # an end that takes its time, as closing a store does
            self.log.append("ended")


async def test_leaving_cancels_running_tasks(caplog: pytest.LogCaptureFixture) -> None:
    tasks, entered = Tasks(), anyio.Event()
    log: list[str] = []

    async def work() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    async with tasks.running():
        tasks.start_soon(work)
        await entered.wait()
    assert log == ["ended"]
    assert caplog.records == []
    tasks.start_soon(work)  # it is too late to run, and no error
    await asyncio.sleep(0)
    assert log == ["ended"]


class Odd(BaseException):
    """What is neither an ordinary exception nor the program's end."""


@pytest.mark.parametrize("fault", [ValueError("planted"), asyncio.CancelledError("planted"), Odd("planted")])
async def test_failing_task_is_logged_and_ends_no_other(caplog: pytest.LogCaptureFixture, fault: BaseException) -> None:
    tasks, failed, go_on, done = Tasks(), anyio.Event(), anyio.Event(), anyio.Event()

    async def failing() -> None:
        failed.set()
        raise fault

    async def other() -> None:
        await go_on.wait()
        done.set()

    async with tasks.running():
        tasks.start_soon(other)
        tasks.start_soon(failing)
        with anyio.fail_after(60):
            await failed.wait()
            go_on.set()
            await done.wait()
    (record,) = caplog.records
    assert "task_failed" in record.getMessage()
    assert "failing" in record.getMessage()
    assert record.exc_info[1] is fault


async def test_user_code_ends_with_the_tasks() -> None:
    tasks, entered = Tasks(patience=60), anyio.Event()
    log: list[str] = []

    async def code() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0)
            log.append("ended")

    with anyio.CancelScope() as scope:
        async with tasks.running():
            tasks.user_calls.start(code, "code")
            await entered.wait()
            scope.cancel()
            await asyncio.sleep(0)
    assert scope.cancelled_caught
    assert log == ["ended"]


async def test_cancelled_entering_leaves_nothing_behind() -> None:
    lifetime, life = Lifetime(), Life()
    life.hold = anyio.Event()
    entering = asyncio.create_task(lifetime.begin(life))
    await life.holding.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert life.log == ["ended"], "when the caller learns of it, it is over"
    life.hold = None
    await lifetime.begin(life)
    await lifetime.end()
    assert life.log == ["ended", "started", "ended"]


async def test_cancelled_leaving_waits_for_the_end() -> None:
    """Once, however often: a scope of asyncio's that cancels it counts on that."""
    lifetime, life = Lifetime(), Life()
    await lifetime.begin(life)
    leaving = asyncio.create_task(lifetime.end())
    await asyncio.sleep(0)
    for _ in range(3):
        leaving.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert life.log == ["started", "ended"]
    await lifetime.begin(life)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await lifetime.end()
    assert life.log == ["started", "ended"] * 2


@pytest.mark.parametrize("is_left", [False, True])
def test_lifetime_can_begin_again_in_another_loop(*, is_left: bool) -> None:
    lifetime, life = Lifetime(), Life()
    asyncio.run(lifetime.begin(life))
    assert life.log == ["started", "ended"]

    async def again() -> None:
        if is_left:
            await lifetime.end()
        await lifetime.begin(life)
        with pytest.raises(EngineInUse):
            await lifetime.begin(life)
        await lifetime.end()

    asyncio.run(again())
    assert life.log == ["started", "ended"] * 2


@pytest.mark.parametrize("fault", [None, ValueError("planted"), asyncio.CancelledError("planted")])
async def test_finish_delays_cancellation_until_the_work_is_done(fault: BaseException | None) -> None:
    started, go_on, done = anyio.Event(), anyio.Event(), anyio.Event()

    async def work() -> None:
        started.set()
        await go_on.wait()
        done.set()
        if fault is not None:
            raise fault

    caller = asyncio.create_task(finish(work()))
    await started.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
    assert not done.is_set()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()
