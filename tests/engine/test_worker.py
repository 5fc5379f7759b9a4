"""The worker: its slots, its claims, and rounds that no clock delays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.engine.chats import contents

from support.events import events_of
from support.latches import Gate, Latch
from support.stores import Delegate, Unwatched, stored_at
from turnwise import RESTING, Engine, Settings, tool
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.protocol import ModelPart
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.triggers import LeaseExpired
from turnwise.testing import ManualClock
from turnwise.testing.conformance import plans


class Counting(ScriptedModel):
    """A model that counts its concurrent replies and their peak. The first ones wait until `together` are in flight."""

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
    async with open_engine(ScriptedModel([]), settings=Settings(run_worker=False)) as engine:
        waiting = [(await engine.create_chat()).id for _ in range(chats)]
        for chat_id in waiting:
            await engine.send_message(chat_id, "hi")
    return waiting


@pytest.mark.parametrize("comes", ["before", "meanwhile"])
async def test_worker_never_runs_more_chats_than_max_running(open_engine: Any, comes: str) -> None:
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


async def test_parallel_calls_run_up_to_the_cap(open_engine: Any, strict_model: Any) -> None:
    """As one call ends, the next one starts."""
    running, most, full, ended = 0, 0, anyio.Event(), list[int]()

    @tool(parallel_safe=True)
    async def look(number: int) -> str:
        """Look."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        running -= 1
        ended.append(number)
        return "seen"

    model = strict_model([Reply(calls=[Call("look", {"number": number}) for number in range(9)]), "done"])
    async with open_engine(model, tools=[look], settings=Settings(coalesce=0, parallel_cap=3)) as engine:
        assert (await engine.ask((await engine.create_chat()).id, "go")).text == "done"
    assert (most, sorted(ended)) == (3, [*range(9)])


BAD_REPLIES = {
    "NaN": [ModelPart("tool_call", id="c1", name="look", arguments={"number": float("nan")})],
    "an object": [ModelPart("tool_call", id="c1", name="look", arguments={"number": object()})],
    "half a character": [ModelPart("tool_call", id="\ud800", name="\udfff", arguments={"\ud800": "\ud800"})],
    "the text": [ModelPart("text_delta", text=7)],  # type: ignore[arg-type]
    "usage": [ModelPart("text_delta", text="hm"), ModelPart("finish", usage="much")],  # type: ignore[arg-type]
}
UNREADABLE = ("an object", "the text")


@pytest.mark.parametrize("bad", BAD_REPLIES)
async def test_malformed_reply_harms_no_other_chat(open_engine: Any, bad: str) -> None:
    """The valid part is stored; an invalid one fails the attempt, and the next attempt may succeed."""

    @tool
    async def look(number: int = 1) -> str:
        """Look."""
        return "seen"

    parts = [*BAD_REPLIES[bad], ModelPart("finish", stop_reason="end_turn")]
    model, clock = ScriptedModel([Reply(parts=parts), "fine", "fine"]), ManualClock()
    async with open_engine(model, tools=[look], clock=clock, settings=Settings(coalesce=0)) as engine:
        chat, other = await engine.create_chat(), await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        while (ended := await engine.get_chat(chat.id)).state not in RESTING:
            await clock.advance(1)
        retries = [event for event in await events_of(engine, chat.id) if event.kind == "retry" and event.delay]
        assert len(model.requests) == (1 if bad == "usage" else 2)
        assert len(retries) == (bad in UNREADABLE)
        assert (ended.state, ended.usage.partial) == ("waiting", True)
        assert (await engine.ask(other.id, "hello")).text == "fine"


async def test_worker_that_lost_its_lease_calls_no_model(open_engine: Any, strict_model: Any, database: Any) -> None:
    """It has stored the start of its attempt; before it reads the history, other workers continue the chat."""
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
            assert [text for _, text in contents(await zombie.messages(chat.id))] == ["one", "first", "two", "second"]


async def test_late_renewal_keeps_the_chats(open_engine: Any, strict_model: Any, database: Any) -> None:
    """All of its leases expired while the machine slept, and no other worker claimed the chats."""
    clock, work = ManualClock(), Gate(timeout=10_000)
    model, store = strict_model([Reply(calls=[Call("work", {})]), "done"]), Unwatched(stored_at(database, clock))
    async with open_engine(model, store=store, clock=clock, tools=[work.tool], settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await work.entered.wait()
        await clock.advance(300)
        for _ in range(50):
            await engine.get_chat(chat.id)
        work.open.set()
        assert (await engine.wait(chat.id)).state == "waiting"
        assert len(work.runs) == 1
        assert "lease_expired" not in [record.trigger for record in await engine.audit(chat.id)]


async def test_renewal_notices_a_lost_lease(open_engine: Any, strict_model: Any, database: Any) -> None:
    """Without a notification, the next renewal shows that another worker holds the chat."""
    clock, work = ManualClock(), Gate(timeout=10_000)
    model, store = strict_model([Reply(calls=[Call("work", {})])]), Unwatched(stored_at(database, clock))
    async with open_engine(model, store=store, clock=clock, tools=[work.tool], settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await work.entered.wait()
        elsewhere = stored_at(database, clock)
        await elsewhere.open()
        await elsewhere.change(chat.id, plans.plan(plans.move(LeaseExpired(token=1)), plans.claim("v")))
        await elsewhere.close()
        await clock.advance(10)
        with anyio.fail_after(120):
            while not work.cancelled:
                await engine.get_chat(chat.id)


class Reading(Delegate):
    """A store that counts reads of the model's view."""

    asked = 0

    async def prompt(self, chat_id: str) -> Any:
        self.asked += 1
        return await self._store.prompt(chat_id)


async def test_cached_history_is_not_read_again(open_engine: Any, strict_model: Any, database: Any) -> None:
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


# Its rounds


async def test_worker_claims_ten_chats_at_a_time(open_engine: Any, database: Any) -> None:
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


async def test_worker_renews_and_sweeps_on_schedule(open_engine: Any, database: Any) -> None:
    clock = ManualClock()
    rounds: dict[str, list[float]] = {"renew": [], "overdue": []}

    class Timed(Unwatched):
        async def renew(self, worker: str, seconds: float) -> Any:
            rounds["renew"].append(clock.monotonic())
            return await self._store.renew(worker, seconds)

        async def overdue(self, *, limit: int) -> Any:
            rounds["overdue"].append(clock.monotonic())
            return await self._store.overdue(limit=limit)

    settings = Settings(renew_every=10, poll_interval=4, keep_parts=None)
    async with open_engine(ScriptedModel([]), store=Timed(stored_at(database, clock)), clock=clock, settings=settings):
        with anyio.fail_after(60):
            for passed in range(0, 42, 2):
                while (len(rounds["renew"]), len(rounds["overdue"])) < (1 + passed // 10, 1 + passed // 4):
                    await anyio.lowlevel.checkpoint()
                await clock.advance(2.00001)
    assert rounds["renew"][:5] == pytest.approx([0, 10, 20, 30, 40], abs=1e-3)
    assert rounds["overdue"][:11] == pytest.approx([*range(0, 41, 4)], abs=1e-3)


# Chats that want a worker


async def test_waiting_chat_runs_as_soon_as_there_is_room(open_engine: Any, database: Any) -> None:
    """No time passes, so no poll finds it."""
    held, clock = Latch(), ManualClock()
    model = ScriptedModel(lambda _: Reply("done", first_delay=1), sleep=held.pass_through)
    store, settings = Unwatched(stored_at(database, clock)), Settings(max_running=1, coalesce=0)
    async with open_engine(model, store=store, clock=clock, settings=settings) as engine:
        chats = [(await engine.create_chat()).id for _ in range(3)]
        await engine.send_message(chats[0], "hi")
        await held.entered.wait()
        for chat_id in chats[1:]:
            assert (await engine.send_message(chat_id, "hi")).chat.state == "pending"
        held.open()
        with anyio.fail_after(60):
            for chat_id in chats:
                assert (await engine.wait(chat_id)).state == "waiting"


class Hinted(Delegate):
    """A store whose notifications come from the test, and that signals the worker's first claim."""

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
async def test_hint_of_another_process_needs_no_poll(open_engine: Any, database: Any, through: str, hints: str) -> None:
    """The commit of a message fills the last slot; a notification announces chats of other processes."""
    held, clock = Latch(), ManualClock()
    model = ScriptedModel(lambda _: Reply("done", first_delay=1), sleep=held.pass_through)
    store, settings = Hinted(stored_at(database, clock)), Settings(max_running=1, coalesce=0)
    async with (
        open_engine(model, store=store, clock=clock, settings=settings) as engine,
        open_engine(model, store=stored_at(database, clock), settings=Settings(run_worker=False)) as elsewhere,
    ):
        by = engine if through == "this engine" else elsewhere
        await store.claimed.wait()  # its slots stay reserved for found chats
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


# Stopping


async def test_stopping_worker_claims_nothing(open_engine: Any, database: Any) -> None:
    """The running chat gets its grace; the waiting one is left to another worker."""
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
