"""The worker: how much it runs at once, what it claims, and that no clock keeps it from its rounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from support import life
from support.chats import said
from support.events import events_of, seen
from support.latches import Gate, Latch
from support.runtimes import runtime_of
from support.stores import Delegate, stored_at
from turnwise import RESTING, Engine, FolderFiles, ModelError, RetryPolicy, Settings, StoreError, ToolContext, tool
from turnwise.engine.apply import Chain
from turnwise.engine.tasks import Tasks
from turnwise.engine.worker.runner import JOBS
from turnwise.engine.worker.worker import Worker
from turnwise.persistence.protocol import Overdue, Pruned
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.protocol import ModelPart, ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.names import Job, Trigger
from turnwise.states.triggers import Circumstances, Claimed, LeaseExpired
from turnwise.testing import ManualClock


class Unwatched(Delegate):
    """A store whose notices are all lost."""

    async def watch(self) -> AsyncIterator[str | None]:
        await anyio.sleep_forever()
        yield None


class Counting(ScriptedModel):
    """A model that knows how many of its replies are under way, and the most there were.

    The first ones wait until `together` are under way.
    """

    def __init__(self, together: int = 1) -> None:
        super().__init__(lambda _: Reply("done", chunks=1))
        self.now = self.most = 0
        self._together, self._full = together, anyio.Event()

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self._together:
            self._full.set()
        await self._full.wait()
        try:
            async for part in super().stream(request):
                yield part
        finally:
            self.now -= 1


async def filled(open_engine: Any, chats: int) -> list[str]:
    """Return chats that wait for a worker."""
    async with open_engine(ScriptedModel([]), settings=Settings(run_worker=False)) as engine:
        waiting = [(await engine.create_chat()).id for _ in range(chats)]
        for chat_id in waiting:
            await engine.send_message(chat_id, "hi")
    return waiting


@pytest.mark.parametrize("comes", ["before", "meanwhile"])
async def test_never_more_chats_run_than_may(open_engine: Any, comes: str) -> None:
    model = Counting(together=3)
    waiting = await filled(open_engine, 12 if comes == "before" else 0)
    async with open_engine(model, settings=Settings(max_running=3, coalesce=0)) as engine:
        if comes == "meanwhile":
            waiting = [(await engine.create_chat()).id for _ in range(12)]
            async with anyio.create_task_group() as tasks:
                for chat_id in waiting:
                    tasks.start_soon(engine.send_message, chat_id, "hi")
        for chat_id in waiting:
            await engine.wait(chat_id)
    assert model.most == 3


async def test_a_full_claim_is_followed_by_the_next_without_a_poll(open_engine: Any, database: Any) -> None:
    """25 chats wait, ten are claimed at a time, and the clock stands still."""
    waiting = await filled(open_engine, 25)
    clock = ManualClock()
    store = Unwatched(stored_at(database, clock))
    async with open_engine(ScriptedModel(lambda _: "hello"), store=store, clock=clock) as engine:
        for chat_id in waiting:
            assert (await engine.wait(chat_id)).state == "waiting"


class Rounds(Delegate):
    """A store that counts the rounds of a worker: its renewals, and its looks for what is overdue."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.renewals = self.looks = 0

    async def renew(self, worker: str, seconds: float) -> Any:
        held = await self._store.renew(worker, seconds)
        self.renewals += 1
        return held

    async def overdue(self, *, limit: int) -> Any:
        found = await self._store.overdue(limit=limit)
        self.looks += 1
        return found


@pytest.mark.parametrize("step", [-3600, 3600])
async def test_a_wall_clock_that_steps_stops_neither_renewals_nor_sweeps(
    open_engine: Any, strict_model: Any, database: Any, step: float
) -> None:
    clock, work = ManualClock(), Gate(timeout=10_000)
    model, idle = strict_model([Reply(calls=[Call("work", {})]), "done"]), strict_model([])
    settings = Settings(coalesce=0, poll_interval=5, renew_every=5)
    held, looked_at = (Rounds(stored_at(database, clock)) for _ in range(2))
    async with (
        open_engine(model, store=held, clock=clock, tools=[work.tool], settings=settings) as engine,
        open_engine(idle, store=looked_at, clock=clock, tools=[work.tool], settings=settings) as other,
    ):
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await work.entered.wait()
        holder = (await engine.explain(chat.id)).lease_worker
        clock.step(step)
        for _ in range(12):
            renewals, looks = held.renewals, looked_at.looks
            clock.advance(6)
            while held.renewals == renewals or looked_at.looks == looks:
                explained = await other.explain(chat.id)
            explained = await other.explain(chat.id)
            assert (explained.state, explained.lease_worker) == ("executing_tools", holder)
        assert explained.lease_expires is not None
        assert 0 < (explained.lease_expires - clock.now()).total_seconds() <= 30
        work.open.set()
        assert (await engine.wait(chat.id)).state == "waiting"
        assert len(work.runs) == 1


@pytest.mark.parametrize("step", [-3600, 3600])
async def test_a_wall_clock_that_steps_neither_stalls_a_reply_nor_delays_a_retry(
    open_engine: Any, strict_model: Any, step: float
) -> None:
    clock = ManualClock()
    opened = anyio.Event()

    def first(_: Any) -> Reply:
        opened.set()
        return Reply("ab", chunks=1, delay=10, error_after=1)

    model = strict_model([first, "done"])
    settings = Settings(coalesce=0, idle_timeout=60, retry=RetryPolicy(first_delay=5))
    async with open_engine(model, clock=clock, settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await opened.wait()
        clock.step(step)
        async for event in engine.events(chat.id):
            if event.kind == "retry":
                break
            await clock.advance(5)
        clock.step(step)
        await clock.advance(5)
        with anyio.fail_after(60):
            assert (await engine.wait(chat.id)).state == "waiting"


async def test_a_retry_waits_no_longer_than_its_delay_where_the_clock_stepped_before_another_worker_took_over(
    open_engine: Any, strict_model: Any
) -> None:
    """When it is due was stored by the clock of before, which has been set back by a year since."""
    waits: list[float] = []

    class Noted(ManualClock):
        def call_later(self, seconds: float, callback: Any) -> Any:
            waits.append(seconds)
            return super().call_later(seconds, callback)

    clock, model = Noted(), strict_model([Reply(error=ModelError("overloaded")), "done"])
    settings = Settings(coalesce=0, shutdown_grace=0, retry=RetryPolicy(first_delay=5))
    async with open_engine(model, clock=clock, settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await seen(engine, chat.id, "retry")
    clock.step(-365 * 86400)
    async with open_engine(model, clock=clock, settings=settings) as engine:
        await engine.wait(chat.id, until=["streaming"])
        with anyio.fail_after(60):
            while (await engine.get_chat(chat.id)).state != "waiting":
                await clock.advance(1)  # nobody passes a year like this
        assert (await engine.messages(chat.id))[-1].text == "done"
    assert max(waits) < 100, "nobody even begins to wait for the moment that was stored"


@pytest.mark.parametrize("others", [0, 3])
async def test_a_batch_runs_up_to_its_cap_and_never_above(open_engine: Any, others: int) -> None:
    """The first ten end together; then there are ten results to store, and calls that start as they are."""
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    full: dict[str, anyio.Event] = {}
    release = anyio.Event()

    @tool(parallel_safe=True)
    async def look(number: int, context: ToolContext) -> str:
        """Look."""
        chat = context.chat_id
        running[chat] = running.get(chat, 0) + 1
        most[chat] = max(most.get(chat, 0), running[chat])
        if running[chat] == 10:
            full[chat].set()
        await (full[chat] if number < 10 else release).wait()
        running[chat] -= 1
        return "seen"

    def answer(request: Any) -> Reply:
        if request.messages[-1].role == "tool":
            return Reply("done")
        return Reply(calls=[Call("look", {"number": number}) for number in range(30)])

    async with open_engine(ScriptedModel(answer), tools=[look], settings=Settings(coalesce=0)) as engine:
        chats = [(await engine.create_chat()).id for _ in range(1 + others)]
        for chat_id in chats:
            full[chat_id] = anyio.Event()
            await engine.send_message(chat_id, "go")
        for chat_id in chats:
            await seen(engine, chat_id, "tool_result", 10)
        for _ in range(50):
            await engine.get_chat(chats[0])
        release.set()
        for chat_id in chats:
            assert (await engine.wait(chat_id)).state == "waiting"
            results = [message for message in await engine.messages(chat_id) if message.result is not None]
            assert len(results) == 30
    assert set(most.values()) == {10}


BAD_REPLIES = {
    "NaN": [ModelPart("tool_call", id="c1", name="look", arguments={"number": float("nan")})],
    "metadata": [ModelPart("tool_call", id="c1", name="look", arguments={}, metadata={"x": float("inf")})],
    "an object": [ModelPart("tool_call", id="c1", name="look", arguments={"number": object()})],
    "the id": [ModelPart("tool_call", id=7, name="look", arguments={})],  # type: ignore[arg-type]
    "half a character": [ModelPart("tool_call", id="\ud800", name="\udfff", arguments={"\ud800": "\ud800"})],
    "the text": [ModelPart("text_delta", text=7)],  # type: ignore[arg-type]
    "text and NaN": [
        ModelPart("text_delta", text="so "),
        ModelPart("tool_call", name="look", arguments={"n": float("nan")}),
    ],
    "usage": [ModelPart("text_delta", text="hm"), ModelPart("finish", usage="much")],  # type: ignore[arg-type]
}


UNREADABLE = ("an object", "the id", "the text")
HOPELESS = ("too deep", "no part")


def too_deep() -> dict[str, Any]:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"deep": deep}
    return deep


class Mumbling(ScriptedModel):
    """A model that puts a bare text behind its first part."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        async for part in super().stream(request):
            yield part
            if len(self.requests) == 1:
                yield "text"  # type: ignore[misc]


@pytest.mark.parametrize("bad", [*BAD_REPLIES, "too deep", "no part"])
async def test_of_a_reply_that_cannot_be_stored_what_can_be_is_or_the_attempt_fails_and_no_other_chat(
    open_engine: Any, bad: str
) -> None:
    """A provider may do better next time; a model that is written wrong, or an endless answer, would do the same."""

    @tool
    async def look(number: int = 1) -> str:
        """Look."""
        return "seen"

    deep = [ModelPart("tool_call", id="c1", name="look", arguments={"number": too_deep()})] if bad == "too deep" else []
    deep += [ModelPart("text_delta", text="so ")] if bad == "no part" else []
    parts = [*BAD_REPLIES.get(bad, deep), ModelPart("finish", stop_reason="end_turn")]
    kind = Mumbling if bad == "no part" else ScriptedModel
    model = kind([Reply(parts=parts), "fine", "fine"])
    clock = ManualClock()
    async with open_engine(model, tools=[look], clock=clock, settings=Settings(coalesce=0)) as engine:
        chat, other = await engine.create_chat(), await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        while (ended := await engine.get_chat(chat.id)).state not in RESTING:
            await clock.advance(1)
        for _ in range(5):
            await clock.advance(31)
        assert ended == await engine.get_chat(chat.id)
        retries = [event for event in await events_of(engine, chat.id) if event.kind == "retry" and event.delay]
        assert len(model.requests) == (1 if bad in (*HOPELESS, "usage") else 2)
        assert len(retries) == (bad in UNREADABLE)
        assert ended.state == ("error" if bad in HOPELESS else "waiting")
        assert ended.usage.partial
        assert (await engine.ask(other.id, "hello")).text == "fine"


async def test_a_frozen_worker_that_wakes_asks_nobody_with_what_is_anothers(
    open_engine: Any, strict_model: Any, database: Any
) -> None:
    """It has stored that its attempt begins; when it reads the history, others have gone on with it."""
    frozen, thaw = anyio.Event(), anyio.Event()

    class Freezing(Unwatched):
        async def prompt(self, chat_id: str) -> Any:
            if not frozen.is_set():
                frozen.set()
                await thaw.wait()
            return await self._store.prompt(chat_id)

    still, now = ManualClock(), ManualClock()
    zombies, model = strict_model([]), strict_model(["first", "second"])
    async with open_engine(model, settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "one")
    async with open_engine(zombies, store=Freezing(stored_at(database, still)), clock=still) as zombie:
        await frozen.wait()
        async with open_engine(model, clock=now, settings=Settings(coalesce=0)) as engine:
            await now.advance(31)
            await engine.wait(chat.id)
            await engine.ask(chat.id, "two")
            thaw.set()
            for _ in range(50):
                await zombie.get_chat(chat.id)
            assert zombies.requests == []
            assert [text for _, text in said(await zombie.messages(chat.id))] == ["one", "first", "two", "second"]


async def test_a_lease_that_the_same_worker_lost_and_got_again_is_not_the_old_one(
    open_engine: Any, strict_model: Any, database: Any
) -> None:
    """Renewals compare tokens: the old run of the chat must stop although the worker holds it."""
    work = Gate()

    class Regained(Unwatched):
        held: Any = None

        async def renew(self, worker: str, seconds: float) -> Any:
            held = await self._store.renew(worker, seconds)
            return self.held(held) if self.held else held

    clock = ManualClock()
    store = Regained(stored_at(database, clock))
    model = strict_model([Reply(calls=[Call("work", {})]), "done"])
    async with open_engine(model, store=store, clock=clock, tools=[work.tool], settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await work.entered.wait()
        elsewhere = stored_at(database, clock)
        await elsewhere.open()
        token = (await elsewhere.facts(chat.id)).lease.token
        worker = (await elsewhere.facts(chat.id)).lease.worker

        def expire(facts: Any, at: Any) -> Any:
            chain = Chain(facts, Circumstances(now=at, limits=Settings().limits(None), actor=f"worker:{worker}"))
            chain.fire(LeaseExpired(token=token))
            chain.fire(Claimed(worker=worker))
            return chain.decisions

        await elsewhere.change(chat.id, expire)
        await elsewhere.close()
        await clock.advance(10)
        with anyio.fail_after(60):
            while not work.cancelled:
                await engine.get_chat(chat.id)
        assert work.cancelled == 1


async def test_an_overdue_lease_that_another_has_replaced_meanwhile_is_not_ended(
    open_engine: Any, strict_model: Any, database: Any
) -> None:
    """Between a worker's look and its write the chat was let go and claimed again: by then it is another's lease."""
    swept = anyio.Event()

    class Late(Unwatched):
        async def overdue(self, *, limit: int) -> Any:
            if looks:
                swept.set()
            looks.append(limit)
            return Overdue(leases=((chat.id, 1),), deadlines=(), strays=())

    clock, work, looks = ManualClock(), Gate(timeout=10_000), list[int]()
    model = strict_model(["first", Reply(calls=[Call("work", {})]), "done"])
    async with open_engine(model, clock=clock, tools=[work.tool], settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "one")
        await engine.send_message(chat.id, "two")
        await work.entered.wait()
        async with open_engine(strict_model([]), store=Late(stored_at(database, clock)), clock=clock):
            while not swept.is_set():
                await clock.advance(1)
            assert [record.trigger for record in await engine.audit(chat.id)].count("claimed") == 2
            assert "lease_expired" not in [record.trigger for record in await engine.audit(chat.id)]
        work.open.set()
        assert (await engine.wait(chat.id)).state == "waiting"
        assert (len(work.runs), work.cancelled) == (1, 0)


@pytest.mark.parametrize("sleeps", ["before it renews", "between its renewal and its sweep"])
async def test_a_worker_that_renews_late_keeps_the_chats_it_runs(
    open_engine: Any, strict_model: Any, database: Any, sleeps: str
) -> None:
    """All of its leases have run out while the machine slept, and nobody has taken them: they are renewed."""
    clock, work, swept = ManualClock(), Gate(timeout=10_000), anyio.Event()

    class Asleep(Unwatched):
        async def overdue(self, *, limit: int) -> Any:
            if work.entered.is_set() and sleeps != "before it renews" and not swept.is_set():
                clock.advance(300)
            found = await self._store.overdue(limit=limit)
            if found.leases:
                swept.set()
            return found

    model = strict_model([Reply(calls=[Call("work", {})]), "done"])
    store = Asleep(stored_at(database, clock))
    async with open_engine(model, store=store, clock=clock, tools=[work.tool], settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await work.entered.wait()
        if sleeps == "before it renews":
            await clock.advance(300)
        while sleeps != "before it renews" and not swept.is_set():
            await clock.advance(10)
        for _ in range(50):
            await engine.get_chat(chat.id)
        work.open.set()
        assert (await engine.wait(chat.id)).state == "waiting"
        assert len(work.runs) == 1
        assert "lease_expired" not in [record.trigger for record in await engine.audit(chat.id)]


async def test_a_claim_that_fails_half_way_claims_nothing_and_is_made_again(open_engine: Any, database: Any) -> None:
    class Refusing(Delegate):
        refused = 0

        async def claim(self, plan: Any, *, runs: Any, limit: int) -> Any:
            if self.refused < 2:
                self.refused += 1

                def halfway(facts: Any, at: Any) -> Any:
                    plan(facts, at)
                    raise StoreError("planted")

                assert await self._store.claim(halfway, runs=runs, limit=limit) == []
                raise StoreError("planted")
            return await self._store.claim(plan, runs=runs, limit=limit)

    waiting = await filled(open_engine, 3)
    model = Counting()
    store = Refusing(stored_at(database))
    settings = Settings(max_running=2, poll_interval=0.01, coalesce=0)
    async with open_engine(model, store=store, settings=settings) as engine:
        for chat_id in waiting:
            assert (await engine.wait(chat_id)).state == "waiting"
    assert store.refused == 2
    assert model.most <= 2


class Reading(Delegate):
    """A store that counts how often it is asked what the model sees."""

    asked = 0

    async def prompt(self, chat_id: str) -> Any:
        self.asked += 1
        return await self._store.prompt(chat_id)


async def test_what_a_worker_knows_of_a_history_it_does_not_read(
    open_engine: Any, strict_model: Any, database: Any
) -> None:
    store = Reading(SQLiteStore(database))
    async with open_engine(strict_model(["one", "two", "three"]), store=store) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "first")
        await engine.ask(chat.id, "second")
        assert store.asked == 0
        await engine.rename(chat.id, "no message")
        first = (await engine.messages(chat.id))[0]
        await engine.edit_message(chat.id, first.id, "else")
        await engine.wait(chat.id)
        assert store.asked == 1, "an edit has cut what it knew"


async def test_a_worker_whose_rounds_fail_says_so_once_and_again_after_it_had_recovered(
    open_engine: Any, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = list[str]()

    class Failing(Unwatched):
        fault: Exception | None = None

        async def renew(self, worker: str, seconds: float) -> Any:
            rounds.append(str(self.fault))
            if self.fault is not None:
                raise self.fault
            return await self._store.renew(worker, seconds)

    async def live(fault: Exception | None) -> list[str]:
        """Let the worker make five rounds; return what it says of them."""
        store.fault = fault
        caplog.clear()
        rounds.clear()
        while len(rounds) < 5:
            await clock.advance(2)
        return [record.getMessage() for record in caplog.records if record.name == "turnwise"]

    clock = ManualClock()
    store = Failing(stored_at(database, clock))
    settings = Settings(renew_every=1, poll_interval=1)
    with caplog.at_level(logging.WARNING):
        async with open_engine(ScriptedModel("fine"), store=store, clock=clock, settings=settings) as engine:
            for fault in (StoreError("out of reach"), RuntimeError("a fault of our own")):
                for _ in range(2):
                    (told,) = await live(fault)
                    assert "tick_failed" in told
                    assert await live(fault) == []
                    assert await live(None) == []
            for fault in (StoreError("out of reach"), StoreError("read-only")):
                (told,) = await live(fault)
                assert str(fault) in told
            store.fault = None
            chat = await engine.create_chat()
            assert (await engine.ask(chat.id, "hi")).text == "fine"


@pytest.mark.parametrize("job", ["stream_step", "run_tools", "compact"])
async def test_a_job_that_fails_unexpectedly_ends_alone_and_its_chat_can_go_on(
    open_engine: Any, strict_model: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    """A fault of turnwise's own: it is told once, the neighbour notices nothing, the chat stands where one resumes."""
    faults = [RuntimeError("planted")]
    real = JOBS[Job(job)]

    async def failing(hold: Any) -> None:
        if hold.chat_id == broken.id and faults:
            await held.pass_through()
            raise faults.pop()
        if hold.chat_id == sound.id:
            await held.pass_through()
        await real(hold)

    held, model = Latch(), ScriptedModel(_with_a_tool)
    monkeypatch.setitem(JOBS, Job(job), failing)
    with caplog.at_level(logging.ERROR):
        async with open_engine(model, tools=[_look]) as engine:
            broken, sound = await engine.create_chat(), await engine.create_chat()
            for chat in (broken, sound):
                if job == "compact":
                    held.open()
                    await engine.ask(chat.id, "go")
                    await engine.request_compaction(chat.id)
                else:
                    await engine.send_message(chat.id, "go")
            held.open()
            failed = await engine.wait(broken.id)
            assert (failed.state, failed.open_calls) == ("error", [])
            assert "planted" in str(failed.last_error)
            assert (await engine.wait(sound.id)).state == "waiting"
            await (engine.request_compaction if job == "compact" else engine.resume)(broken.id)
            assert (await engine.wait(broken.id)).state == "waiting"
            assert (await engine.ask(broken.id, "go")).text == "done"
            assert (await engine.ask(sound.id, "go")).text == "done"
    told = [record.getMessage() for record in caplog.records if record.exc_info]
    assert len(told) == 1
    assert "job_failed" in told[0]


# Its rounds


def next_round(clock: ManualClock) -> float:
    """Return the seconds until the worker's next round."""
    return 0 if clock.next_timer is None else (clock.next_timer - clock.now()).total_seconds()


async def test_a_worker_claims_ten_chats_at_a_time_and_none_without_room(open_engine: Any, database: Any) -> None:
    limits: list[int] = []

    class Noting(Unwatched):
        async def claim(self, plan: Any, *, runs: Any, limit: int) -> Any:
            limits.append(limit)
            return await self._store.claim(plan, runs=runs, limit=limit)

    waiting = await filled(open_engine, 25)
    clock, model = ManualClock(), Counting(together=23)
    settings = Settings(max_running=23, coalesce=0, idle_timeout=None)
    async with open_engine(model, store=Noting(stored_at(database, clock)), clock=clock, settings=settings) as engine:
        for chat_id in waiting:
            await engine.wait(chat_id)
    assert limits[:3] == [10, 10, 3]
    assert max(limits) <= 10
    assert min(limits) >= 1


async def test_a_worker_renews_and_sweeps_at_once_and_then_exactly_as_often_as_it_should(
    open_engine: Any, database: Any
) -> None:
    clock = ManualClock()
    told: dict[str, list[float]] = {"renew": [], "overdue": []}

    class Timed(Unwatched):
        async def renew(self, worker: str, seconds: float) -> Any:
            told["renew"].append(clock.monotonic())
            return await self._store.renew(worker, seconds)

        async def overdue(self, *, limit: int) -> Any:
            told["overdue"].append(clock.monotonic())
            return await self._store.overdue(limit=limit)

    settings = Settings(renew_every=10, poll_interval=4, keep_parts=None)
    async with open_engine(ScriptedModel([]), store=Timed(stored_at(database, clock)), clock=clock, settings=settings):
        while len(told["renew"]) < 5 or len(told["overdue"]) < 11:
            await clock.advance(next_round(clock))
    assert told["renew"][:5] == pytest.approx([0, 10, 20, 30, 40], abs=1e-3)
    assert told["overdue"][:11] == pytest.approx([*range(0, 41, 4)], abs=1e-3)


@pytest.mark.parametrize(("keep", "poll", "pause"), [(2400, 1, 100), (24, 5, 5)])
async def test_a_worker_deletes_old_parts_bit_by_bit_and_looks_again_now_and_then(
    open_engine: Any, database: Any, keep: float, poll: float, pause: float
) -> None:
    clock, ends = ManualClock(), ["c1", "c2", None, "c1", None]
    asked: list[tuple[float, dict[str, Any]]] = []

    class Told(Unwatched):
        async def prune(self, **options: Any) -> Pruned:
            asked.append((clock.monotonic(), options))
            return Pruned(0, ends[len(asked) - 1] if len(asked) <= len(ends) else None)

    settings = Settings(keep_parts=keep, poll_interval=poll)
    store = Told(stored_at(database, clock))
    async with open_engine(ScriptedModel([]), store=store, clock=clock, settings=settings):
        while len(asked) < 6:
            await clock.advance(next_round(clock))
    moments = [0, 0.1, 0.2, 0.2 + pause, 0.3 + pause, 0.3 + 2 * pause]
    assert [moment for moment, _ in asked[:6]] == pytest.approx(moments, abs=1e-3)
    assert [options["after"] for _, options in asked[:6]] == ["", "c1", "c2", "", "c1", ""]
    assert {(options["keep"], options["limit"]) for _, options in asked} == {(keep, 200)}


async def test_a_sweep_that_fails_keeps_no_chat_from_being_claimed(open_engine: Any, database: Any) -> None:
    class Failing(Unwatched):
        async def overdue(self, *, limit: int) -> Any:
            raise StoreError("planted")

    (waiting,) = await filled(open_engine, 1)
    clock = ManualClock()
    async with open_engine(ScriptedModel("hello"), store=Failing(stored_at(database, clock)), clock=clock) as engine:
        with anyio.fail_after(60):
            assert (await engine.wait(waiting)).state == "waiting"


# Chats that want a worker


@pytest.mark.parametrize("passed_on", ["as others end", "during a claim"])
async def test_what_found_no_room_is_run_as_soon_as_there_is_some_though_no_time_passes(
    open_engine: Any, database: Any, passed_on: str
) -> None:
    claiming, claimed = anyio.Event(), anyio.Event()

    class Held(Unwatched):
        """Its first claim, which finds nothing, takes until the test lets it go."""

        async def claim(self, plan: Any, *, runs: Any, limit: int) -> Any:
            found = await self._store.claim(plan, runs=runs, limit=limit)
            if not claiming.is_set():
                claiming.set()
                await claimed.wait()
            return found

    held, clock = Latch(), ManualClock()
    model = ScriptedModel(lambda _: Reply("done", first_delay=1), sleep=held.pass_through)
    settings = Settings(max_running=1, coalesce=0)
    async with open_engine(model, store=Held(stored_at(database, clock)), clock=clock, settings=settings) as engine:
        chats = [(await engine.create_chat()).id for _ in range(3)]
        await claiming.wait()
        if passed_on == "as others end":
            claimed.set()
            await engine.send_message(chats[0], "hi")
            await held.entered.wait()
        for chat_id in chats if passed_on == "during a claim" else chats[1:]:
            assert (await engine.send_message(chat_id, "hi")).chat.state == "pending"
        claimed.set()
        held.open()
        with anyio.fail_after(60):
            for chat_id in chats:
                assert (await engine.wait(chat_id)).state == "waiting"


STANDS: dict[str, tuple[Any, bool]] = {
    "waits": (life.waiting, False),
    "pending": (life.pending, True),
    "held": (life.streaming, False),
    "asks": (life.asking, False),
    "stopped by others": (life.unsettled, False),
    "stopped, its holder gone": (lambda: _let_go(life.unsettled()), True),
    "settled": (life.interrupted, False),
    "failed": (life.failed, False),
}


def _let_go(stopped: life.Life) -> life.Life:
    stopped.held(Trigger.lease_expired)
    return stopped


@pytest.mark.parametrize("stands", STANDS)
async def test_a_worker_looks_for_chats_at_once_if_one_wants_a_worker_and_nobody_has_it(
    database: Any, stands: str
) -> None:
    clock, looks = ManualClock(), [0]

    class Counted(Delegate):
        async def claim(self, plan: Any, *, runs: Any, limit: int) -> Any:
            looks[0] += 1
            return []

    store = Counted(stored_at(database, clock))
    await store.open()
    worker = Worker(runtime_of(store, clock))
    builds, wants = STANDS[stands]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            while clock.next_timer is None:
                await clock.advance(0)
        before = looks[0]
        worker.observe(builds().facts)
        await clock.advance(0)
        if wants:
            with anyio.fail_after(60):
                while looks[0] == before:
                    await clock.advance(0)
        assert looks[0] == before + wants
        tasks.cancel_scope.cancel()
    await store.close()


class Hinted(Delegate):
    """A store whose hints come from the test, and that tells of the worker's first claim."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.hints: asyncio.Queue[str | None] = asyncio.Queue()
        self.claimed = anyio.Event()

    async def claim(self, plan: Any, *, runs: Any, limit: int) -> Any:
        try:
            return await self._store.claim(plan, runs=runs, limit=limit)
        finally:
            self.claimed.set()

    async def watch(self) -> AsyncIterator[str | None]:
        while True:
            yield await self.hints.get()


@pytest.mark.parametrize("hints", ["its own", "another", "any"])
@pytest.mark.parametrize("through", ["this engine", "another process"])
async def test_an_interrupt_ends_what_runs_and_a_message_is_taken_though_no_time_passes(
    open_engine: Any, database: Any, through: str, hints: str
) -> None:
    """The last place is filled in the commit of the message; what comes from elsewhere is told by a hint."""
    held, clock = Latch(), ManualClock()
    model = ScriptedModel(lambda _: Reply("done", first_delay=1), sleep=held.pass_through)
    store, settings = Hinted(stored_at(database, clock)), Settings(max_running=1, coalesce=0)
    async with (
        open_engine(model, store=store, clock=clock, settings=settings) as engine,
        open_engine(model, store=stored_at(database, clock), settings=Settings(run_worker=False)) as elsewhere,
    ):
        by = engine if through == "this engine" else elsewhere
        await store.claimed.wait()  # the places are kept for what it may find
        chat, other = await engine.create_chat(), await engine.create_chat()
        assert (await engine.send_message(chat.id, "hi")).chat.state == "streaming"
        await held.entered.wait()
        await by.interrupt(chat.id)
        if by is elsewhere:
            store.hints.put_nowait(chat.id if hints != "any" else None)
        with anyio.fail_after(60):
            assert (await engine.wait(chat.id)).settled
            held.open()
            await by.send_message(other.id, "hi")
            if by is elsewhere:
                store.hints.put_nowait({"its own": other.id, "another": chat.id, "any": None}[hints])
            assert (await engine.wait(other.id)).state == "waiting"


class Late(Hinted):
    """A store whose first commit that brings a chat is answered when the test says so."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.stored, self.go_on = anyio.Event(), anyio.Event()

    async def claim(self, plan: Any, *, runs: Any, limit: int) -> Any:
        claimed = await super().claim(plan, runs=runs, limit=limit)
        return await self._late(claimed) if claimed else claimed

    async def change(self, chat_id: str, plan: Any, **options: Any) -> Any:
        return await self._late(await self._store.change(chat_id, plan, **options))

    async def _late(self, answer: Any) -> Any:
        if not self.stored.is_set():
            self.stored.set()
            await self.go_on.wait()
        return answer


@pytest.mark.parametrize("through", ["this engine", "another process", "another process, which names no chat"])
@pytest.mark.parametrize("brought_by", ["a claim", "the message"])
async def test_an_interrupt_that_is_heard_of_before_the_commit_that_brought_its_chat_keeps_the_model_from_being_asked(
    open_engine: Any, database: Any, brought_by: str, through: str
) -> None:
    held, clock = Latch(), ManualClock()
    model = ScriptedModel(lambda _: Reply("done", first_delay=1), sleep=held.pass_through)
    store = Late(stored_at(database, clock))
    async with (
        open_engine(model, store=store, clock=clock) as engine,
        open_engine(model, store=stored_at(database, clock), settings=Settings(run_worker=False)) as elsewhere,
        anyio.create_task_group() as tasks,
    ):
        chat = await elsewhere.create_chat()
        tasks.start_soon((engine if brought_by == "the message" else elsewhere).send_message, chat.id, "hi")
        store.hints.put_nowait(None)
        with anyio.fail_after(60):
            while not store.stored.is_set():
                if (await elsewhere.get_chat(chat.id)).state == "pending":
                    store.hints.put_nowait(chat.id)
                await clock.advance(0)
            await (engine if through == "this engine" else elsewhere).interrupt(chat.id)
            if through != "this engine":
                store.hints.put_nowait(chat.id if through == "another process" else None)
            while not store.hints.empty():
                await clock.advance(0)
            await clock.advance(0)
            store.go_on.set()
            assert (await engine.wait(chat.id)).settled
    assert model.requests == []


# Stopping


async def test_who_stops_while_a_commit_is_under_way_waits_for_it_without_keeping_the_event_loop_busy(
    database: Any,
) -> None:
    """It is the loop that the commit needs."""
    held = Latch()

    class Slow(Unwatched):
        async def change(self, *given: Any, **options: Any) -> Any:
            await held.pass_through()
            return await self._store.change(*given, **options)

    engine = Engine(Slow(stored_at(database)), model=ScriptedModel([]), clock=ManualClock())
    await engine.__aenter__()
    chat = await engine.create_chat()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.rename, chat.id, "other")
        await held.entered.wait()
        tasks.start_soon(engine.__aexit__, None, None, None)
        try:
            with anyio.fail_after(60):
                await anyio.wait_all_tasks_blocked()
        finally:
            held.open()


async def test_who_stops_claims_nothing_more(open_engine: Any, database: Any) -> None:
    """The running chat gets its grace; the one that waits for its place is another worker's."""
    held, clock = Latch(), ManualClock()
    model = ScriptedModel(lambda _: Reply("done", first_delay=1), sleep=held.pass_through)
    settings = Settings(max_running=1, coalesce=0, shutdown_grace=60)
    engine = Engine(Unwatched(stored_at(database, clock)), model=model, clock=clock, settings=settings)
    await engine.__aenter__()
    runs, waits = (await engine.create_chat()).id, (await engine.create_chat()).id
    await engine.send_message(runs, "hi")
    await held.entered.wait()
    await engine.send_message(waits, "hi")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.__aexit__, None, None, None)
        await clock.advance(0)
        held.open()
    async with open_engine(ScriptedModel([]), settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.get_chat(runs)).state == "waiting"
        assert (await onlooker.get_chat(waits)).state == "pending"
        assert "claimed" not in [record.trigger for record in await onlooker.audit(waits)]


async def test_who_stops_while_a_claim_is_under_way_gives_back_what_it_brings(open_engine: Any, database: Any) -> None:
    claiming, go_on = anyio.Event(), anyio.Event()

    class Slow(Unwatched):
        async def claim(self, plan: Any, *, runs: Any, limit: int) -> Any:
            found = await self._store.claim(plan, runs=runs, limit=limit)
            claiming.set()
            await go_on.wait()
            return found

    (waiting,) = await filled(open_engine, 1)
    clock, held = ManualClock(), Latch()
    model = ScriptedModel(lambda _: Reply("done", first_delay=1), sleep=held.pass_through)
    settings = Settings(coalesce=0, shutdown_grace=0)
    engine = Engine(Slow(stored_at(database, clock)), model=model, clock=clock, settings=settings)
    await engine.__aenter__()
    await claiming.wait()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.__aexit__, None, None, None)
        await clock.advance(0)
        go_on.set()
    async with open_engine(ScriptedModel([]), settings=Settings(run_worker=False)) as onlooker:
        explained = await onlooker.explain(waiting)
        assert (explained.state, explained.lease_worker) == ("pending", None)


# What it holds, and what it keeps


async def test_a_chat_whose_commit_is_still_on_its_way_back_is_not_taken_for_one_that_was_given_up(
    open_engine: Any, database: Any
) -> None:
    """It is renewed with the others, and nobody runs it yet."""
    committed, go_on, clock = anyio.Event(), anyio.Event(), ManualClock()
    store = Rounds(stored_at(database, clock))

    class Slow(Delegate):
        async def change(self, chat_id: str, plan: Any, **options: Any) -> Any:
            done = await self._store.change(chat_id, plan, **options)
            if not committed.is_set():
                committed.set()
                await go_on.wait()
            return done

    async with open_engine(ScriptedModel("hello"), store=Slow(store), clock=clock) as engine:
        chat = await engine.create_chat()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.send_message, chat.id, "hi")
            await committed.wait()
            renewals = store.renewals
            while store.renewals < renewals + 2:
                await clock.advance(next_round(clock))
            for _ in range(10):
                await engine.get_chat(chat.id)
            go_on.set()
        assert (await engine.wait(chat.id)).state == "waiting"
        triggers = [record.trigger for record in await engine.audit(chat.id)]
        assert "released" not in triggers
        assert triggers.count("claimed") == 1


async def test_a_chat_that_was_put_off_goes_on_though_a_commit_of_another_chat_is_always_under_way(
    open_engine: Any, database: Any
) -> None:
    """Its lease is renewed with the others: nobody else may take it."""
    clock, other = ManualClock(), Latch()

    class Away(Unwatched):
        """It is away when it is asked what the model sees, once."""

        asked = 0

        async def prompt(self, chat_id: str) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise StoreError("away", passing=True)
            return await self._store.prompt(chat_id)

        async def change(self, chat_id: str, plan: Any, **options: Any) -> Any:
            if chat_id == busy.id:
                await other.pass_through()
            return await self._store.change(chat_id, plan, **options)

    async with open_engine(ScriptedModel("one")) as engine:
        chat, busy = await engine.create_chat(), await engine.create_chat()
        await engine.ask(chat.id, "first")
    store = Away(stored_at(database, clock))
    settings = Settings(lease=3600, renew_every=10)
    async with (
        open_engine(ScriptedModel("two"), store=store, clock=clock, settings=settings) as engine,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(engine.rename, busy.id, "other")
        await other.entered.wait()
        await engine.send_message(chat.id, "second")
        try:
            with anyio.fail_after(60):
                while (await engine.get_chat(chat.id)).state != "waiting":
                    await clock.advance(1)
        finally:
            other.open()
    assert store.asked == 2


async def test_a_worker_keeps_what_it_knows_of_the_chats_that_rested_last(
    open_engine: Any, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.engine.worker.worker.VIEWS_KEPT", 2)
    store = Reading(stored_at(database))
    async with open_engine(ScriptedModel(lambda _: "fine"), store=store) as engine:
        chats = [(await engine.create_chat()).id for _ in range(3)]
        for chat_id in chats:
            await engine.ask(chat_id, "hi")
        for chat_id, reads in ((chats[1], 0), (chats[2], 0), (chats[0], 1), (chats[2], 1), (chats[1], 2)):
            await engine.ask(chat_id, "and")
            assert store.asked == reads


@tool(name="look")
async def _look() -> str:
    """Look."""
    return "seen"


def _with_a_tool(request: Any) -> Reply:
    return Reply("done") if request.messages[-1].role == "tool" else Reply(calls=[Call("look", {})])


async def test_all_chats_are_looked_after_as_often_as_is_set_and_files_once_a_minute() -> None:
    clock = ManualClock()
    looks: list[float] = []
    sweeps = [0]

    class Noted(Delegate):
        async def let_go(self, **given: Any) -> Any:
            looks.append(clock.monotonic())
            return await self._store.let_go(**given)

        async def overdue(self, **given: Any) -> Any:
            sweeps[0] += 1
            return await self._store.overdue(**given)

    store = Noted(stored_at(None, clock))
    await store.open()
    tasks, began = Tasks(), clock.monotonic()
    worker = Worker(runtime_of(store, clock, settings=Settings(poll_interval=1), tasks=tasks))
    async with tasks.running():
        for _ in range(300):
            await worker._tick()
            clock.advance(0.7)
    await store.close()
    assert sweeps == [150], "with every other tick"
    assert [round(at - began, 1) for at in looks] == [60.2, 120.4, 180.6]


async def test_a_time_that_is_set_forward_takes_no_file_that_waits_and_no_part_for_an_hour() -> None:
    """Both are gone for good, also if the clock is put right a minute later."""
    clock = ManualClock()
    did: list[tuple[str, float]] = []

    class Noted(Delegate):
        async def let_go(self, **given: Any) -> Any:
            did.append(("files", clock.monotonic()))
            return await self._store.let_go(**given)

        async def prune(self, **given: Any) -> Any:
            did.append(("parts", clock.monotonic()))
            return await self._store.prune(**given)

    store = Noted(stored_at(None, clock))
    await store.open()
    tasks = Tasks()
    worker = Worker(runtime_of(store, clock, settings=Settings(poll_interval=1, keep_parts=60), tasks=tasks))
    async with tasks.running():
        await worker._tick()
        did.clear()
        clock.step(30 * 86400)
        set_at = clock.monotonic()
        for _ in range(3660):
            await worker._tick()
            assert worker._prune_at > clock.monotonic(), "or it would never sleep"
            clock.advance(1)
    await store.close()
    assert {what for what, _ in did} == {"files", "parts"}
    assert set_at + 3600 <= min(at for _, at in did) <= set_at + 3602


async def test_files_that_are_out_of_reach_hold_up_neither_renewals_nor_claims(
    open_engine: Any, database: Any, tmp_path: Any
) -> None:
    """A bucket is asked for minutes before it is given up. Most chats have no files."""
    asked, clock = anyio.Event(), ManualClock()

    class Away(FolderFiles):
        async def tidy(self, seconds: float) -> None:
            asked.set()
            await anyio.sleep_forever()

    store, files, alone = Rounds(stored_at(database, clock)), tmp_path / "files", Settings(run_worker=False)
    model = ScriptedModel("hello")
    async with (
        open_engine(model, store=store, clock=clock, files=Away(files)),
        open_engine(model, store=stored_at(database, clock), files=FolderFiles(files), settings=alone) as other,
    ):
        with anyio.fail_after(60):
            while not asked.is_set():
                await clock.advance(next_round(clock))
            renewals = store.renewals
            while store.renewals < renewals + 2:
                await clock.advance(next_round(clock))
            chat = await other.create_chat()
            await other.send_message(chat.id, "hi")
            while (await other.get_chat(chat.id)).state != "waiting":
                await clock.advance(next_round(clock))
