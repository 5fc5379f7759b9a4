"""Tasks of an engine, and its lifetime: what is started runs, what fails fails alone, what ends has ended."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from turnwise import EngineInUse
from turnwise.engine.tasks import Lifetime, Tasks, finish, over


class Life:
    """A life that a test sees begin and end."""

    def __init__(self, *, fails: Exception | None = None, ends_with: Exception | None = None) -> None:
        self.told: list[str] = []
        self.hold: anyio.Event | None = None
        self.holding = anyio.Event()
        self.fails, self.ends_with = fails, ends_with

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        try:
            if self.hold is not None:
                self.holding.set()
                await self.hold.wait()
            if self.fails is not None:
                raise self.fails
            self.told.append("begun")
            yield
            if self.ends_with is not None:
                raise self.ends_with
        finally:
            await asyncio.sleep(0)  # an end that takes its time, as closing a store does
            self.told.append("ended")


# Tasks


@pytest.mark.parametrize("started", ["before", "by a task", "by a callback"])
async def test_what_is_started_runs_with_its_arguments_whoever_starts_it(started: str) -> None:
    tasks, ran = Tasks(), anyio.Event()
    given: list[object] = []

    async def work(*arguments: object) -> None:
        given.extend(arguments)
        ran.set()

    if started == "before":
        tasks.start_soon(work, 1, "two")
    async with tasks.running():
        if started == "by a task":
            tasks.start_soon(work, 1, "two")
        elif started == "by a callback":
            asyncio.get_running_loop().call_soon(tasks.start_soon, work, 1, "two")
        with anyio.fail_after(60):
            await ran.wait()
    assert given == [1, "two"]


async def test_what_still_runs_is_cancelled_on_leaving_which_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    tasks, entered = Tasks(), anyio.Event()
    told: list[str] = []

    async def work() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append("ended")

    async with tasks.running():
        tasks.start_soon(work)
        await entered.wait()
    assert told == ["ended"]
    assert caplog.records == []
    tasks.start_soon(work)  # nobody is left to run it, and whoever is late is not to blame
    await asyncio.sleep(0)
    assert told == ["ended"]


class Odd(BaseException):
    """What is neither an ordinary exception nor the program's end."""


@pytest.mark.parametrize("fault", [ValueError("planted"), asyncio.CancelledError("planted"), Odd("planted")])
async def test_a_task_that_fails_is_told_by_name_and_takes_no_other_with_it(
    caplog: pytest.LogCaptureFixture, fault: BaseException
) -> None:
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
    (told,) = caplog.records
    assert "task_failed" in told.getMessage()
    assert "failing" in told.getMessage()
    assert told.exc_info is not None
    assert told.exc_info[1] is fault


async def test_a_signal_that_ends_the_program_is_no_failure_of_the_task_that_it_strikes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def end(*_: object) -> None:
        raise Odd

    async def struck() -> None:
        signal.raise_signal(signal.SIGUSR1)

    async def run() -> None:
        async with tasks.running():
            tasks.start_soon(struck)
            await asyncio.Event().wait()

    tasks, before = Tasks(), signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(BaseExceptionGroup) as ended:
            await run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.group_contains(Odd)
    assert caplog.records == []


async def test_a_task_that_fails_as_it_is_cancelled_is_told_and_spoils_no_end(caplog: pytest.LogCaptureFixture) -> None:
    tasks, entered = Tasks(), anyio.Event()

    async def work() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("planted")

    async with tasks.running():
        tasks.start_soon(work)
        await entered.wait()
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError]


async def test_calls_of_user_code_end_with_the_tasks_even_if_the_owner_is_cancelled() -> None:
    tasks, entered = Tasks(patience=60), anyio.Event()
    told: list[str] = []

    async def code() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0)
            told.append("ended")

    with anyio.CancelScope() as scope:
        async with tasks.running():
            tasks.user_calls.start(code, "code")
            await entered.wait()
            scope.cancel()
            await asyncio.sleep(0)
    assert scope.cancelled_caught
    assert told == ["ended"]


# Lifetime


async def test_a_life_begins_once_ends_once_and_may_begin_again() -> None:
    lifetime, life = Lifetime(), Life()
    lifetime.check_loop()
    await lifetime.end()
    for _ in range(2):
        life.told.clear()
        await lifetime.begin(life)
        assert life.told == ["begun"]
        with pytest.raises(EngineInUse):
            await lifetime.begin(life)
        lifetime.check_loop()
        await lifetime.end()
        assert life.told == ["begun", "ended"]
        await lifetime.end()
    assert life.told == ["begun", "ended"]


async def test_what_entering_or_leaving_raises_is_the_callers() -> None:
    lifetime = Lifetime()
    for _ in range(2):
        with pytest.raises(ValueError, match="at once"):
            await lifetime.begin(Life(fails=ValueError("at once")))
    await lifetime.begin(Life(ends_with=ValueError("at last")))
    with pytest.raises(ValueError, match="at last"):
        await lifetime.end()
    await lifetime.end()


async def test_who_is_cancelled_while_entering_leaves_nothing_behind_and_may_enter_again() -> None:
    lifetime, life = Lifetime(), Life()
    life.hold = anyio.Event()
    entering = asyncio.create_task(lifetime.begin(life))
    await life.holding.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert life.told == ["ended"], "when the caller learns of it, it is over"
    life.hold = None
    await lifetime.begin(life)
    await lifetime.end()
    assert life.told == ["ended", "begun", "ended"]


async def test_who_is_cancelled_while_entering_what_does_not_hear_of_it_is_cancelled_and_leaves_it() -> None:
    lifetime, life, go_on = Lifetime(), Life(), anyio.Event()

    @asynccontextmanager
    async def deaf() -> AsyncIterator[None]:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                go_on.set()
        async with life():
            yield

    entering = asyncio.create_task(lifetime.begin(deaf))
    for _ in range(3):
        await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert life.told == ["begun", "ended"]


async def test_a_life_whose_own_task_was_cancelled_ends_without_a_fuss() -> None:
    lifetime, life = Lifetime(), Life()
    await lifetime.begin(life)
    (owner,) = (task for task in asyncio.all_tasks() if task.get_name() == "turnwise engine")
    owner.cancel()
    await lifetime.end()
    assert life.told == ["begun", "ended"]


async def test_who_is_cancelled_while_leaving_hears_of_it_once_the_life_has_ended() -> None:
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
    assert life.told == ["begun", "ended"]
    await lifetime.begin(life)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await lifetime.end()
    assert life.told == ["begun", "ended"] * 2


@pytest.mark.parametrize("is_left", [False, True])
def test_a_life_that_ended_with_its_loop_may_begin_again_in_another(*, is_left: bool) -> None:
    lifetime, life = Lifetime(), Life()
    asyncio.run(lifetime.begin(life))
    assert life.told == ["begun", "ended"]

    async def again() -> None:
        if is_left:
            await lifetime.end()
        await lifetime.begin(life)
        with pytest.raises(EngineInUse):
            await lifetime.begin(life)
        await lifetime.end()

    asyncio.run(again())
    assert life.told == ["begun", "ended"] * 2


# Waiting for what must not be cut short


async def test_what_must_be_finished_is_and_its_result_or_its_fault_is_the_callers() -> None:
    async def work(fault: Exception | None) -> str:
        await asyncio.sleep(0)
        if fault is not None:
            raise fault
        return "done"

    assert await finish(work(None)) == "done"
    with pytest.raises(ValueError, match="planted"):
        await finish(work(ValueError("planted")))


@pytest.mark.parametrize("fault", [None, ValueError("planted"), asyncio.CancelledError("planted")])
@pytest.mark.parametrize("times", [1, 3])
async def test_who_is_cancelled_hears_of_it_once_the_work_is_done_and_no_fault_is_left_lying(
    fault: BaseException | None, times: int
) -> None:
    begun, go_on = anyio.Event(), anyio.Event()
    told: list[str] = []
    complaints: list[dict[str, Any]] = []

    async def work() -> None:
        begun.set()
        await go_on.wait()
        told.append("done")
        if fault is not None:
            raise fault

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    try:
        caller = asyncio.create_task(finish(work()))
        await begun.wait()
        for _ in range(times):
            caller.cancel()
            await asyncio.sleep(0)
        assert told == []
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        del caller
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert told == ["done"]
    assert complaints == []


@pytest.mark.parametrize("cancelled", ["by its task", "by a scope", "not at all"])
async def test_waiting_for_the_end_of_a_task_keeps_no_core_busy(
    monkeypatch: pytest.MonkeyPatch, cancelled: str
) -> None:
    waits: list[int] = []
    real: Callable[..., Any] = asyncio.wait

    async def counted(*given: Any, **more: Any) -> Any:
        waits.append(1)
        return await real(*given, **more)

    go_on, scope = anyio.Event(), anyio.CancelScope()

    async def wait() -> None:
        with scope:
            await over(work)

    work = asyncio.create_task(go_on.wait())
    monkeypatch.setattr(asyncio, "wait", counted)
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    if cancelled == "by its task":
        waiting.cancel()
    elif cancelled == "by a scope":
        scope.cancel()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    go_on.set()
    await asyncio.gather(waiting, return_exceptions=True)
    assert work.done()
    assert 1 <= len(waits) <= 3
