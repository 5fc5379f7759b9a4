"""The runner: the job of each state, the end of jobs, and chats whose job fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.engine.chats import contents

from support.runtimes import runtime_of
from support.stores import Delegate, stored_at
from turnwise import EngineInUse, Settings
from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.agents import Agents
from turnwise.engine.isolation.tasks import Lifetime, Tasks, run_shielded
from turnwise.engine.jobs import leased_chat
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.engine.worker.runner import IDLE_ROUNDS, JOBS, Runner
from turnwise.engine.worker.slots import Slots
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.arguments import Origin, StepReply
from turnwise.states.errors import StoreError
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts
from turnwise.states.messages import TextPart
from turnwise.states.names import ChatState, Job
from turnwise.states.triggers import AttemptDiscarded, Interrupt, LeaseExpired, StepFinished
from turnwise.testing import ManualClock
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part

AT = ManualClock().now()
Does = Callable[[LeasedChat], Awaitable[None]]


class Jobs:
    """Scripted jobs in place of the real ones; they record starts and cancellations."""

    def __init__(self, patch: pytest.MonkeyPatch, *does: Does) -> None:
        self.started: list[Job | None] = []
        self.cancelled: list[Job | None] = []
        self.running = anyio.Event()
        self._does = [*does]
        for job in JOBS:
            patch.setitem(JOBS, job, self._job)  # type: ignore[arg-type]

    def _job(self, leased: LeasedChat) -> Any:
        return SimpleNamespace(run=partial(self._run, leased))

    async def _run(self, leased: LeasedChat) -> None:
        job = leased.job
        try:
            await asyncio.sleep(0)
            self.started.append(job)
            self.running.set()
            await (self._does.pop(0) if self._does else _for_ever)(leased)
        except asyncio.CancelledError:
            self.cancelled.append(job)
            raise


async def _for_ever(_leased: LeasedChat) -> None:
    await anyio.sleep_forever()


async def answers(leased: LeasedChat) -> None:
    await leased.fire(StepFinished(token=leased.token, reply=StepReply(parts=(TextPart(text="done"),))))


def raises(error: BaseException) -> Does:
    async def fails(_leased: LeasedChat) -> None:
        raise error

    return fails


@asynccontextmanager
async def held(
    database: Path, store: ChatStore | None = None, agents: Agents | None = None
) -> AsyncIterator[LeasedChat]:
    """Open a streaming chat with "so far" visible, held by worker `w`, which has these agents."""
    store = store or stored_at(database, ManualClock())
    await store.open()
    committed = await plans.created(store, "chat", plans.send("hello"), plans.claim("w"))
    await store.append_events("chat", 1, ChatState.streaming, [part("so far")])
    leased = LeasedChat(runtime_of(store, ManualClock(), agents=agents), committed.before, 1)
    leased.take(committed)
    leased.observe(await store.facts("chat"))
    yield leased
    await store.close()


async def triggers(leased: LeasedChat) -> list[tuple[str, str]]:
    """Return the triggers and actors after the claim."""
    records = await leased.runtime.store.audit("chat")
    return [(str(record.trigger), record.actor) for record in records[3:]]


@asynccontextmanager
async def running(runner: Runner) -> AsyncIterator[None]:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            yield


# Letting go


async def test_released_runner_starts_no_job(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch)
    async with held(database) as leased:
        runner = Runner(leased)
        runner.let_go()
        async with running(runner):
            pass
        assert jobs.started == []
        assert await triggers(leased) == [("released", "worker:w")]
        assert (await leased.runtime.store.facts("chat")).state == "pending"


async def test_release_cancels_the_job(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch)
    async with held(database) as leased:
        runner = Runner(leased)
        async with running(runner):
            await jobs.running.wait()
            runner.let_go()
        assert (jobs.started, jobs.cancelled) == ([Job.stream_step], [Job.stream_step])
        assert await triggers(leased) == [("released", "worker:w")]


async def test_chat_of_a_foreign_agent_is_released(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch)
    async with held(database, agents=Agents([Agent("other", ScriptedModel([]))], Settings())) as leased:
        async with running(Runner(leased)):
            pass
        assert jobs.started == []
        assert await triggers(leased) == [("released", "worker:w")]


@pytest.mark.parametrize("how", ["it rests", "it is lost"])
async def test_chat_without_a_lease_is_not_released(database: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async def ends(leased: LeasedChat) -> None:
        if how == "it rests":
            await answers(leased)
        else:
            leased.observe(replace(leased.facts, version=leased.facts.version + 1, lease=None))
        runner.let_go()

    Jobs(monkeypatch, ends)
    async with held(database) as leased:
        runner = Runner(leased)
        async with running(runner):
            pass
        assert "released" not in [trigger for trigger, _ in await triggers(leased)]


# Moving


async def test_interrupt_cancels_the_job_and_settles(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch)
    async with held(database) as leased:
        runner = Runner(leased)
        async with running(runner):
            await jobs.running.wait()
            jobs.running = anyio.Event()
            await leased.runtime.store.change("chat", plans.plan(plans.move(Interrupt())))
            runner.observe(await leased.runtime.store.facts("chat"))
            await jobs.running.wait()
            assert (jobs.started, jobs.cancelled) == ([Job.stream_step, Job.settle], [Job.stream_step])
            assert leased.job is Job.settle
            await leased.runtime.store.change("chat", plans.plan(plans.move(LeaseExpired(token=plans.HOLDER))))
            runner.observe(await leased.runtime.store.facts("chat"))
        assert len(jobs.started) == 2, "what another may have is not gone on with"


TRIED = AttemptDiscarded(token=1, error=ErrorInfo(kind="network", message="away"), delay=0, retry_at=AT)


async def test_interrupt_after_a_commit_cancels_the_job(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = anyio.Event()

    async def commits(leased: LeasedChat) -> None:
        await leased.fire(TRIED)
        committed.set()
        await anyio.sleep_forever()

    async def gives_up(leased: LeasedChat) -> None:
        leased.give_up()

    jobs = Jobs(monkeypatch, commits, gives_up)
    async with held(database) as leased:
        runner = Runner(leased)
        async with running(runner):
            await committed.wait()
            await leased.runtime.store.change("chat", plans.plan(plans.move(Interrupt())))
            runner.observe(await leased.runtime.store.facts("chat"))
        assert jobs.cancelled == [Job.stream_step]


async def test_job_without_progress_is_given_up(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits longer each time, and logs that."""
    jobs, waits = Jobs(monkeypatch, *[raises(ConcurrentTransition())] * 20), list[float]()
    async with held(database) as leased:
        clock = cast("ManualClock", leased.runtime.clock)
        async with running(Runner(leased)):
            while not leased.lost:
                if clock.next_timer is not None:
                    waits.append((clock.next_timer - clock.now()).total_seconds())
                await clock.advance(waits[-1] if waits else 0)
        assert len(jobs.started) == IDLE_ROUNDS
        assert waits == sorted({*waits})
        assert "job_made_no_progress" in caplog.text


# Failing


class Odd(BaseException):
    """Neither an ordinary exception nor the program's end."""


@pytest.mark.parametrize("fault", [ValueError("planted"), Odd("planted"), asyncio.CancelledError("planted")])
async def test_failed_job_stores_error_and_partial_reply(
    database: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    Jobs(monkeypatch, raises(fault))
    async with held(database) as leased:
        leased.attempt.origin = Origin(model="a model", provider="a provider")
        async with running(Runner(leased)):
            pass
        facts, history = await leased.runtime.store.facts("chat"), await leased.runtime.store.history("chat")
        assert (facts.state, facts.lease) == ("error", None)
        assert "planted" in facts.last_error.detail
        assert await triggers(leased) == [("failed", "worker:w")]
        assert contents(history) == [("user", "hello"), ("assistant", "so far")]
        assert (history[-1].partial, history[-1].model, history[-1].provider) == (True, "a model", "a provider")


# A store that is away


AWAY = StoreError("away", passing=True)
DOUBTED = StoreError("no answer", written="unknown", passing=True)


class Away(Delegate):
    """A store that fails as often as the test decides, before or after it stores a change."""

    def __init__(self, store: Any, *failures: StoreError, stores: bool = False) -> None:
        super().__init__(store)
        self.failures = [*failures]
        self.stores = stores
        self.unread: list[StoreError] = []
        """Errors for readers, after these failures."""
        self.holds = False
        """Whether the chat is held: earlier calls do not fail."""

    async def change(self, chat_id: str, plan: Any, **options: Any) -> Any:
        if not (self.holds and self.failures):
            return await self._store.change(chat_id, plan, **options)
        if self.stores:
            await self._store.change(chat_id, plan, **options)
        raise self.failures.pop(0)

    async def facts(self, chat_id: str) -> Facts:
        if self.holds and not self.failures and self.unread:
            raise self.unread.pop(0)
        return await self._store.facts(chat_id)


async def lived_through(
    store: Away, monkeypatch: pytest.MonkeyPatch, database: Path, *does: Does
) -> tuple[list[StoreError], list[str], ChatState]:
    """Return the errors of subscribers, the stored messages, and the chat's state."""
    monkeypatch.setattr(leased_chat, "AGAIN_AFTER", 0)
    Jobs(monkeypatch, *does)
    received: list[StoreError] = []
    async with held(database, store) as leased:
        store.holds = True
        monkeypatch.setattr(leased.runtime.writer.broadcaster, "fail", lambda _chat, failure: received.append(failure))
        async with running(Runner(leased)):
            pass
        return received, [trigger for trigger, _ in await triggers(leased)], (await store.facts("chat")).state


@pytest.mark.parametrize(
    ("failures", "stores", "unread", "received"),
    [
        ([AWAY, AWAY], False, [], [AWAY, AWAY]),
        ([DOUBTED, AWAY], False, [], [DOUBTED, AWAY]),
        ([DOUBTED], True, [], [DOUBTED, DOUBTED]),
        ([DOUBTED], True, [AWAY], [DOUBTED, AWAY, DOUBTED]),
    ],
    ids=["away", "in doubt, not stored", "in doubt, stored", "in doubt, then unreadable"],
)
async def test_commit_waits_for_the_store_and_is_made_once(
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[StoreError],
    unread: list[StoreError],
    received: list[StoreError],
    *,
    stores: bool,
) -> None:
    """Without an answer, the chat's version shows whether the commit was stored."""
    store = Away(stored_at(database, ManualClock()), *failures, stores=stores)
    store.unread = [*unread]
    lived = await lived_through(store, monkeypatch, database, answers)
    assert lived == (received, ["step_finished"], ChatState.waiting)


@pytest.mark.parametrize("job", [raises(AWAY), raises(DOUBTED)])
async def test_unreachable_store_leaves_the_chat_as_it_is(
    database: Path, monkeypatch: pytest.MonkeyPatch, job: Does
) -> None:
    received, stored, state = await lived_through(Away(stored_at(database, ManualClock())), monkeypatch, database, job)
    assert (len(received), stored, state) == (1, [], ChatState.streaming)


async def test_failure_is_stored_once_the_store_is_back(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Away(stored_at(database, ManualClock()), AWAY, AWAY)
    lived = await lived_through(store, monkeypatch, database, raises(ValueError("planted")))
    assert lived == ([AWAY, AWAY], ["failed"], ChatState.error)


# The slots of a worker


def test_failed_commit_frees_its_slot() -> None:
    slots = Slots(1)
    with pytest.raises(ValueError, match="refused"), slots.reserve(1, "one"):
        raise ValueError("refused")
    assert slots.free == 1
    assert not slots.awaits("one")


# Tasks


class Life:
    """A life whose start and end a test sees."""

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
    tasks, entered = Tasks(close_timeout=60), anyio.Event()
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
    """For any number of cancellations: asyncio's cancelling scope counts on that."""
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
async def test_run_shielded_delays_cancellation(fault: BaseException | None) -> None:
    started, go_on, done = anyio.Event(), anyio.Event(), anyio.Event()

    async def work() -> None:
        started.set()
        await go_on.wait()
        done.set()
        if fault is not None:
            raise fault

    caller = asyncio.create_task(run_shielded(work()))
    await started.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
    assert not done.is_set()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()
