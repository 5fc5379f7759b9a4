"""Crash tests find what a product loses or doubles when its process is killed, and report nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.processes.postgres_server import Server
from turnwise import (
    Agent,
    ChatStore,
    ClientTool,
    Engine,
    InvalidArgument,
    Reconciled,
    ToolContext,
    ToolResult,
    delegate,
    tool,
)
from turnwise.engine.jobs import run_tools
from turnwise.persistence.protocol import Committed
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.names import CallStatus
from turnwise.testing import Call, CrashTestFailed, ManualClock, NotTested, Reply, by_step, crash_everywhere
from turnwise.testing.crash.store import MortalStore

CALLS = [Call("pay", {"cents": 5}, id="pay"), Call("note", {"what": "paid"}, id="note")]
SCRIPT = by_step([Reply("On it.", calls=CALLS), "Done."])


class Shop:
    def __init__(self) -> None:
        self.payments: list[str] = []
        self.notes: list[str] = []
        self.locked = False

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]

    async def pay(self, cents: int, context: ToolContext[Any]) -> str:
        """Pay."""
        self.payments.append(context.key)
        await asyncio.sleep(0)
        return f"paid {cents}"

    async def note(self, what: str, context: ToolContext[Any]) -> str:
        """Write something down, once under one key."""
        await asyncio.sleep(0)
        if context.key not in self.notes:
            self.notes.append(context.key)
        return f"noted {what}"

    def engine(self, store: ChatStore, clock: ManualClock) -> Engine:
        tools = [self.pay, tool(crash="at_least_once")(self.note)]
        return Engine(store, model=ScriptedModel(SCRIPT), tools=tools, clock=clock)

    async def check(self, engine: Engine) -> None:
        (chat,) = (await engine.list_chats()).items
        assert (chat.state, len(self.notes)) == ("waiting", 1)
        assert len(self.payments) <= 1, f"{len(self.payments)} payments"


async def order(engine: Engine) -> None:
    """Order something, as a client that retries."""
    await engine.create_chat(message="Pay, please.", client_id="order")


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_sound_product_survives_every_crash(shop: Shop) -> None:
    report = await crash_everywhere(shop.engine, order, check=shop.check, reset=shop.reset)
    assert report.missed == ()
    assert {
        "before the commit of create, send_message, claimed in chat 1",
        "after the commit of create, send_message, claimed in chat 1",
        "after the commit of step_finished in chat 1",
        "at await 1 of model step in chat 1",
        "before tool pay in chat 1",
        "at await 1 of tool pay in chat 1",
        "after tool note in chat 1",
        "before model step in chat 1, time 2",
        "after the commit of step_finished in chat 1, time 2",
    } <= {*report.points}
    assert len(report.points) > 25


async def test_commit_confirmed_late_is_still_a_point(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chat is read at rest before the engine hears of the commit that ended its turn."""
    change = SQLiteStore.change

    async def change_and_confirm_late(store: SQLiteStore, *args: Any, **options: Any) -> Committed:
        committed = await change(store, *args, **options)
        await asyncio.sleep(0.01)
        return committed

    async def order_and_look(engine: Engine) -> None:
        chat = await engine.create_chat(message="Pay, please.", client_id="order")
        while (await engine.get_chat(chat.id)).state != "waiting":
            pass

    monkeypatch.setattr(SQLiteStore, "change", change_and_confirm_late)
    last = "after the commit of step_finished in chat 1, time 2"
    report = await crash_everywhere(shop.engine, order_and_look, check=shop.check, reset=shop.reset, only=last)
    assert report.points == (last,)


@pytest.mark.deep
async def test_sound_product_survives_every_crash_on_postgres(shop: Shop, postgres: Server) -> None:
    report = await crash_everywhere(
        shop.engine, order, check=shop.check, reset=shop.reset, store=postgres.address, only="the commit of"
    )
    assert len(report.points) >= 10
    assert "crash" not in postgres.sql("SELECT string_agg(nspname, ' ') FROM pg_namespace")


async def found(make_engine: Any, shop: Shop, scenario: Any = order, **options: Any) -> dict[str, str]:
    """Return the findings of a crash test: the problem by point."""
    with pytest.raises(CrashTestFailed) as failed:
        await crash_everywhere(make_engine, scenario, check=shop.check, reset=shop.reset, **options)
    assert all(f"  {one.point}: {one.problem}" in str(failed.value) for one in failed.value.failures)
    return {one.point: one.problem for one in failed.value.failures}


async def test_payment_made_twice_is_found_where_it_happens(shop: Shop) -> None:
    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        tools = [tool(crash="at_least_once")(shop.pay), shop.note]
        return Engine(store, model=ScriptedModel(SCRIPT), tools=tools, clock=clock)

    shop.check = _pays_once(shop)  # type: ignore[method-assign]
    problems = await found(engine, shop, only="tool pay")
    assert problems.keys() == {"at await 1 of tool pay in chat 1", "after tool pay in chat 1"}
    assert all("2 payments" in problem for problem in problems.values())


def _pays_once(shop: Shop) -> Callable[[Engine], Any]:
    async def check(_engine: Engine) -> None:
        assert len(shop.payments) <= 1, f"{len(shop.payments)} payments"

    return check


async def test_product_with_state_in_memory_is_found(shop: Shop) -> None:
    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        basket: list[int] = []

        @tool
        async def pay(cents: int) -> str:
            """Put into the basket."""
            basket.append(cents)
            return "kept"

        @tool(crash="at_least_once")
        async def note(what: str, context: ToolContext[Any]) -> str:
            """Note what is in the basket."""
            shop.notes[:] = map(str, basket)
            return what

        return Engine(store, model=ScriptedModel(SCRIPT), tools=[pay, note], clock=clock)

    problems = await found(engine, shop, only="the commit of call_finished, call_started")
    assert "after the commit of call_finished, call_started in chat 1" in problems


async def test_scenario_that_is_not_idempotent_is_found(shop: Shop) -> None:
    async def careless(engine: Engine) -> None:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Pay, please.", client_id="please")

    problems = await found(shop.engine, shop, careless, only="after the commit of create")
    assert "there are 2 chats, and 1 without a crash" in str(problems)

    async def forgetful(engine: Engine) -> None:
        chat = await engine.create_chat(client_id="order")
        await engine.send_message(chat.id, "Pay, please.")

    problems = await found(shop.engine, shop, forgetful, only="after the commit of send_message")
    assert "send each message under a client_id" in str(problems)


async def test_tool_that_an_engine_begins_twice_is_found(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cannot_tell(_context: ToolContext[Any]) -> None:
        return None

    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        tools = [tool(reconcile=cannot_tell)(shop.pay), tool(crash="at_least_once")(shop.note)]
        return Engine(store, model=ScriptedModel(SCRIPT), tools=tools, clock=clock)

    report = await crash_everywhere(engine, order, check=shop.check, reset=shop.reset, only="at await 1 of tool pay")
    assert report.points == ("at await 1 of tool pay in chat 1",)
    start = run_tools.ToolJob._start

    async def start_again(job: Any, call: Any, running: Any) -> None:
        if call.status is CallStatus.started:
            run_tools.ToolTask(job._leased, running, call).start()
        else:
            await start(job, call, running)

    monkeypatch.setattr(run_tools.ToolJob, "_start", start_again)
    problems = await found(engine, shop, only="at await 1 of tool pay")
    assert "of pay, at most once, began 2 times" in str(problems)


async def test_call_that_was_not_done_may_begin_again(shop: Shop) -> None:
    """An at-most-once call's tool may say so after a crash; the second start then breaks no promise."""

    async def was_not_done(_context: ToolContext[Any]) -> Reconciled:
        return Reconciled.not_done()

    async def pay_later(cents: int, context: ToolContext[Any]) -> str:
        """Pay."""
        await asyncio.sleep(0)
        return await shop.pay(cents, context)

    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        tools = [tool(name="pay", reconcile=was_not_done)(pay_later), tool(crash="at_least_once")(shop.note)]
        return Engine(store, model=ScriptedModel(SCRIPT), tools=tools, clock=clock)

    report = await crash_everywhere(engine, order, check=shop.check, reset=shop.reset, only="at await 1 of tool pay")
    assert report.points == ("at await 1 of tool pay in chat 1",)


async def test_acknowledged_commit_that_is_lost_is_found(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store acknowledges one transition without storing it."""
    passed = MortalStore._pass

    async def pass_and_lose(store: MortalStore, committed: Committed) -> None:
        await passed(store, committed)
        store.acknowledged.append((committed.facts.chat_id, 99, "send_message"))

    monkeypatch.setattr(MortalStore, "_pass", pass_and_lose)
    problems = await found(shop.engine, shop)
    assert [*problems] == ["without a crash"]
    assert "send_message was acknowledged as version 99, and is lost" in problems["without a crash"]


async def test_killed_process_does_nothing_more(shop: Shop) -> None:
    """A kill is no cancellation: it runs no `finally`, and no concurrent tool."""
    survivors: list[str] = []

    @tool(parallel_safe=True, crash="at_least_once")
    async def pay(cents: int) -> str:
        """Pay under a lock."""
        locked = shop.locked
        shop.locked = True
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            shop.locked = False
        return f"{cents}, locked before: {locked}"

    @tool(parallel_safe=True, crash="at_least_once")
    async def note(what: str) -> str:
        """Note slowly."""
        for _ in range(40):
            await asyncio.sleep(0)
        survivors.append(what)
        return what

    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        return Engine(store, model=ScriptedModel(SCRIPT), tools=[pay, note], clock=clock)

    async def check(engine: Engine) -> None:
        (chat,) = (await engine.list_chats()).items
        results = [message.result for message in await engine.messages(chat.id) if message.result is not None]
        assert "locked before: False" in str(results[0].output)
        assert len(survivors) == 1

    def reset() -> None:
        shop.reset()
        survivors.clear()

    with pytest.raises(CrashTestFailed) as failed:
        await crash_everywhere(engine, order, check=check, reset=reset, only="await 2 of tool pay")
    assert "locked before: True" in str(failed.value)
    report = await crash_everywhere(engine, order, check=_noop, reset=reset, only="at await 3 of tool note")
    assert report.points == ("at await 3 of tool note in chat 1",)


async def _noop(_engine: Engine) -> None:
    pass


async def test_hooks_and_reconcile_are_points_too(shop: Shop) -> None:
    async def remind(_state: Any) -> str:
        await asyncio.sleep(0)
        return "Be brief."

    async def recall(context: ToolContext[Any]) -> str | None:
        return "paid before" if context.key in shop.payments else None

    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        tools = [tool(reconcile=recall)(shop.pay), tool(crash="at_least_once")(shop.note)]
        return Engine(store, model=ScriptedModel(SCRIPT), tools=tools, reminders=[remind], clock=clock)

    report = await crash_everywhere(engine, order, check=shop.check, reset=shop.reset, only="remind")
    assert report.points


async def test_clients_that_answer_calls_survive_crashes() -> None:
    script = by_step([Reply(calls=[Call("ask", {}, id="ask")]), "Thank you."])

    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        return Engine(store, model=ScriptedModel(script), clock=clock)

    async def scenario(engine: Engine) -> None:
        ask = ClientTool("ask", "Ask the user.", {"type": "object"})
        chat = await engine.create_chat(client_id="one", client_tools=[ask])
        await engine.send_message(chat.id, "Ask me.", client_id="first")
        if (await engine.wait(chat.id)).open_calls:
            await engine.submit_tool_results(chat.id, [ToolResult("ask", "yes")])

    report = await crash_everywhere(engine, scenario, only="the commit of")
    assert "after the commit of submit_tool_results, claimed in chat 1" in report.points


async def test_subagents_are_claimed_again_after_a_crash() -> None:
    """A claim skips chats whose plan raises, which must not hide the kill."""
    script = by_step([Reply(calls=[Call("ask_subagent", {"task": "Look."}, id="look")]), "Thank you."])

    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        boss = Agent("default", ScriptedModel(script), tools=[delegate("subagent")])
        return Engine(store, agents=[boss, Agent("subagent", ScriptedModel("I looked."))], clock=clock)

    report = await crash_everywhere(engine, order, only="claimed in chat 2")
    assert [point.split()[0] for point in report.points] == ["before", "after"]


async def test_crash_test_without_a_point_fails(shop: Shop) -> None:
    with pytest.raises(NotTested, match="no point was met"):
        await crash_everywhere(shop.engine, _noop)
    with pytest.raises(NotTested, match="has 'tool fly' in its name"):
        await crash_everywhere(shop.engine, order, reset=shop.reset, only="tool fly")


async def test_product_that_fails_without_a_crash_is_reported(shop: Shop) -> None:
    async def fail(_engine: Engine) -> None:
        raise KeyError("no such customer")

    assert await found(shop.engine, shop, fail) == {"without a crash": "KeyError: 'no such customer'"}


async def test_engine_on_another_store_or_clock_is_refused(shop: Shop) -> None:
    def elsewhere(_store: ChatStore, clock: ManualClock) -> Engine:
        return Engine("sqlite://", model=ScriptedModel("Hi."), clock=clock)

    with pytest.raises(InvalidArgument, match="must give the engine the store"):
        await crash_everywhere(elsewhere, order)
    with pytest.raises(InvalidArgument, match="must return an Engine"):
        await crash_everywhere(lambda *_: None, order)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgument, match="must be 'sqlite' or the URL of a PostgreSQL database"):
        await crash_everywhere(shop.engine, order, store="mysql://")

    def timeless(store: ChatStore, _clock: ManualClock) -> Engine:
        slow = ScriptedModel(Reply("Hi.", first_delay=3600))
        return Engine(store, model=slow, clock=ManualClock())

    problems = await found(timeless, shop, timeout=0.2)
    assert "does make_engine pass on its clock" in problems["without a crash"]
