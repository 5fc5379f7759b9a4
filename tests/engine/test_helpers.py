"""Helpers: chats to which others delegate calls."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.engines import OpenEngine
from support.gated_model import GatedModel
from support.latches import Latch
from support.stores import Delegate, stored_at
from turnwise import (
    Agent,
    Chat,
    ChatNotFound,
    ChatState,
    ClientTool,
    ConflictingReplay,
    Engine,
    FatalToolError,
    IllegalTransition,
    ImportRefused,
    ModelRequest,
    NotResting,
    Settings,
    SettingsError,
    StoreError,
    ToolResult,
    ToolResultMismatch,
    delegate,
    tool,
)
from turnwise.engine.agents.delegate import helper_id
from turnwise.engine.commands import Commands
from turnwise.engine.family import STOPPED
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.facts import Profile
from turnwise.states.triggers import Create

Answer = Callable[[ModelRequest], Reply]
IMPATIENT = Settings(shutdown_grace=0)
SIGN = ClientTool("sign", "Sign.", {"type": "object"})


def asks(*tasks: str, also: tuple[Call, ...] = (), then: str = "done") -> Answer:
    """Return a model that gives these tasks to researchers, and tells what came of them."""

    def reply(request: ModelRequest) -> Reply:
        results = [message.result for message in request.messages if message.result is not None]
        if not results:
            return Reply(calls=[*(Call("ask_research", {"task": task}) for task in tasks), *also])
        return Reply(f"{then}: " + "; ".join(str(result.output) for result in results))

    return reply


def echo(request: ModelRequest) -> Reply:
    """Answer with what was asked."""
    return Reply(f"found {request.messages[0].text}")


def family(lead: Any, research: Any = echo, **options: Any) -> list[Agent]:
    """Return an agent that delegates to another."""
    helper = Agent("research", research if isinstance(research, ScriptedModel) else ScriptedModel(research))
    own = [delegate(helper), *options.pop("tools", ())]
    return [Agent("lead", ScriptedModel(lead), tools=own, **options), helper]


async def test_subagent_answers_delegated_call(open_engine: OpenEngine) -> None:
    async with open_engine(None, agents=family(asks("one", "two"))) as engine:
        chat = await engine.create_chat(agent="lead", owner="ann", metadata={"tier": "gold"})
        with anyio.fail_after(60):
            answer = await engine.ask(chat.id, "go")
        assert answer.text == "done: found one; found two"
        calls = (await engine.messages(chat.id))[1].calls
        assert [call.executor for call in calls] == ["chat", "chat"]
        for call, task in zip(calls, ("one", "two"), strict=True):
            helper = await engine.get_chat(helper_id(chat.id, call.call_id))
            assert (helper.agent, helper.owner, helper.metadata) == ("research", "ann", {"tier": "gold"})
            assert (helper.parent, helper.helps, helper.title) == (chat.id, call.call_id, task)
            assert (await engine.verify(helper.id)).ok
        verdict = await engine.verify(chat.id)
        assert verdict.ok, verdict


async def test_subagent_title_is_its_task_cut_to_80_characters(open_engine: OpenEngine) -> None:
    titles = {"look\n  it up": "look it up", "x" * 80: "x" * 80, "x" * 81: "x" * 79 + "…"}
    async with open_engine(None, agents=family(asks(*titles))) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            await engine.ask(chat.id, "go")
        assert [helper.title for helper in await engine.helpers(chat.id)] == [*titles.values()]


async def test_chat_awaits_client_and_subagents_together(open_engine: OpenEngine) -> None:
    model, research = asks("one", also=(Call("sign", {}),)), GatedModel(echo)
    async with open_engine(None, agents=family(model, research)) as engine:
        for client_first in (True, False):
            research.gate = anyio.Event()
            chat = await engine.create_chat(agent="lead", client_tools=[SIGN])
            result = await engine.ask(chat.id, "go")
            assert (result.chat.state, result.chat.awaits) == (ChatState.requires_action, "both")
            (signing,) = result.open_calls
            delegated = next(call for call in result.chat.open_calls if call.is_delegated)
            assert {one.id for one in (await engine.list_chats(awaiting="client")).items} == {chat.id}
            for wrong in (
                [],
                [ToolResult(delegated.call_id, "mine")],
                [ToolResult(signing.call_id, 1), ToolResult(delegated.call_id, 1)],
            ):
                with pytest.raises(ToolResultMismatch):
                    await engine.submit_tool_results(chat.id, wrong)
            if not client_first:
                research.gate.set()
                await until(engine, chat.id, "client")
            receipt = await engine.submit_tool_results(chat.id, [ToolResult(signing.call_id, "signed")])
            if client_first:
                assert (receipt.chat.state, receipt.chat.awaits) == (ChatState.requires_action, "helpers")
                assert (await engine.list_chats(awaiting="client")).items == []
                assert [one.id for one in (await engine.list_chats(awaiting="helpers")).items] == [chat.id]
                research.gate.set()
            with anyio.fail_after(60):
                await engine.wait(chat.id)
            last = (await engine.messages(chat.id))[-1].text
            assert sorted(last.removeprefix("done: ").split("; ")) == ["found one", "signed"]
            replayed = await engine.submit_tool_results(chat.id, [ToolResult(signing.call_id, "signed")])
            assert (replayed.replayed, replayed.receipt_id) == (True, receipt.receipt_id)
            verdict = await engine.verify(chat.id)
            assert verdict.ok, verdict


async def until(engine: Engine, chat_id: str, awaits: str | None) -> None:
    """Wait until a chat waits for someone else."""
    with anyio.fail_after(60):
        while (await engine.get_chat(chat_id)).awaits != awaits:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def helper_of(engine: Engine, chat_id: str) -> str:
    """Return the id of a chat's first helper, once that works."""
    await until(engine, chat_id, "helpers")
    call = (await engine.get_chat(chat_id)).open_calls[0]
    name = helper_id(chat_id, call.call_id)
    with anyio.fail_after(60):
        while name not in await engine.chat_ids(name) or (await engine.get_chat(name)).state != "streaming":  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return name


@pytest.mark.parametrize("how", ["interrupt", "edit", "message"])
async def test_stopping_a_chat_stops_its_subagents(open_engine: OpenEngine, how: str) -> None:
    def answers(request: ModelRequest) -> Reply:
        return asks("one")(request) if request.messages[-1].text == "go" else Reply("as you like")

    async with open_engine(None, agents=family(answers, GatedModel(echo))) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        helper = await helper_of(engine, chat.id)
        match how:
            case "interrupt":
                await engine.interrupt(chat.id)
            case "edit":
                await engine.edit_message(chat.id, "m1", "stay")
            case "message":
                await engine.send_message(chat.id, "stay", when_busy="interrupt")
        with anyio.fail_after(60):
            stopped = await engine.wait(helper)
            rested = await engine.wait(chat.id)
        assert (stopped.state, stopped.settled) == (ChatState.interrupted, True)
        assert rested.state is (ChatState.interrupted if how == "interrupt" else ChatState.waiting)
        assert rested.open_calls == []
        for one in (helper, chat.id):
            verdict = await engine.verify(one)
            assert verdict.ok, verdict


@pytest.mark.parametrize("how", ["interrupt", "message"])
@pytest.mark.parametrize("workers", ["none runs", "all are full"])
async def test_stop_settles_chat_and_subagents_without_a_worker(
    open_engine: OpenEngine, workers: str, how: str
) -> None:
    """Nothing else of it may wait for a place of a worker."""
    agents = [*family_that_buys(), Agent("busy", GatedModel(echo))]
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        (helper,) = await inbox_of(engine)
        await until(engine, chat.id, "helpers")
    full = Settings(run_worker=workers == "all are full", max_running=1, shutdown_grace=0)
    async with open_engine(None, agents=agents, settings=full) as engine:
        other = await engine.create_chat(agent="busy")
        await engine.send_message(other.id, "think")
        await engine.wait(other.id, until=["streaming" if full.run_worker else "pending"], timeout=60)
        if how == "interrupt":
            stopped = await engine.interrupt(chat.id)
            assert (stopped.state, stopped.settled, stopped.open_calls) == (ChatState.interrupted, True, [])
        else:
            sent = await engine.send_message(chat.id, "stay", when_busy="interrupt")
            assert (sent.chat.state, sent.queued) == (ChatState.pending, False)
        helper = await engine.get_chat(helper.id)
        assert (helper.state, helper.settled, helper.open_calls) == (ChatState.interrupted, True, [])


@pytest.mark.parametrize("by", ["a worker", "whoever interrupts it again"])
async def test_interrupt_cut_off_midway_is_finished_later(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The interrupt stands, whatever cuts off or refuses what follows."""
    async with open_engine(None, agents=family_that_buys()) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        (helper,) = await inbox_of(engine)
        await until(engine, chat.id, "helpers")
    async with open_engine(None, agents=family_that_buys(), settings=Settings(run_worker=False)) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(Commands, "_stop_helpers", _refused)
            stopped = await engine.interrupt(chat.id)
        assert (stopped.state, stopped.settled) == (ChatState.interrupted, False)
        assert "waits to be settled by a worker" in (await engine.explain(chat.id)).reason
        assert (await engine.get_chat(helper.id)).state is ChatState.requires_action
        if by == "whoever interrupts it again":
            assert (await engine.interrupt(chat.id)).settled
            assert (await engine.get_chat(helper.id)).settled
            assert (await engine.get_chat(helper.id)).state is ChatState.interrupted
            return
    async with open_engine(None, agents=family_that_buys()) as engine:
        with anyio.fail_after(60):
            assert (await engine.wait(chat.id, until=["interrupted"])).settled
            await engine.wait(helper.id, until=["interrupted"])


async def _refused(*_: object) -> None:
    raise StoreError("it is away", passing=True)


async def test_subagents_nest_no_deeper_than_helper_depth(open_engine: OpenEngine) -> None:
    """The last one may do everything but delegate."""

    @tool
    async def work() -> str:
        """Work."""
        return "done"

    def again(request: ModelRequest) -> Reply:
        results = [message.result.output for message in request.messages if message.result is not None]
        if not results:
            return Reply(calls=[Call("ask_lead", {"task": "again"}), Call("work", {})])
        return Reply(f"told: {results[0]}" if results[1] == "done" else "not even that")

    endless = Agent("lead", ScriptedModel(again), tools=[delegate("lead"), work])
    async with open_engine(None, agents=[endless], settings=Settings(helper_depth=4)) as engine:
        chat = await engine.create_chat()
        with anyio.fail_after(60):
            answer = await engine.ask(chat.id, "go")
        assert answer.text == "told: " * 5 + "Not done: helpers stand 4 deep at most. Do it yourself."
        assert len((await engine.list_chats()).items) == 5


async def test_waiting_chats_occupy_no_worker_slot(open_engine: OpenEngine) -> None:
    """One slot is enough for chats that wait for helpers that wait for helpers."""

    def middle(request: ModelRequest) -> Reply:
        results = [message.result for message in request.messages if message.result is not None]
        return Reply(f"heard {results[0].output}") if results else Reply(calls=[Call("ask_leaf", {"task": "dig"})])

    leaf = Agent("leaf", ScriptedModel(echo))
    research = Agent("research", ScriptedModel(middle), tools=[delegate(leaf)])
    lead = Agent("lead", ScriptedModel(asks("one", "two", "three")), tools=[delegate(research)])
    async with open_engine(None, agents=[lead, research, leaf], settings=Settings(max_running=1)) as engine:
        chats = [await engine.create_chat(agent="lead") for _ in range(3)]
        for chat in chats:
            await engine.send_message(chat.id, "go")
        with anyio.fail_after(60):
            for chat in chats:
                rested = await engine.wait(chat.id)
                assert rested.state is ChatState.waiting
                text = (await engine.messages(chat.id))[-1].text
                assert text == "done: heard found dig; heard found dig; heard found dig"
                assert (await engine.verify(chat.id)).ok
        assert len((await engine.list_chats(limit=1000)).items) == 3 * (1 + 3 + 3)


async def test_turn_budget_counts_subagent_usage(open_engine: OpenEngine) -> None:
    def costly(_: ModelRequest) -> Reply:
        return Reply("found", usage=(900, 100))

    def lead(request: ModelRequest) -> Reply:
        return Reply(calls=[Call("ask_research", {"task": "more"})], usage=(10, 10))

    agents = family(lead, costly, settings=Settings(turn_tokens=2500))
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            answer = await engine.ask(chat.id, "go")
        assert answer.stop_reason == "token_budget"
        assert answer.chat.helpers_usage.input_tokens == 2700
        assert answer.chat.usage.input_tokens == 30


async def test_parent_gets_the_answer_before_subagent_compacts(open_engine: OpenEngine) -> None:
    model = ScriptedModel([Reply("There are 3.", usage=(90, 5)), "Nothing is left to do."], context_limit=100)
    helper = Agent("research", model)
    lead = Agent("lead", ScriptedModel(asks("one")), tools=[delegate(helper)])
    async with open_engine(None, agents=[lead, helper]) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            assert (await engine.ask(chat.id, "go")).text == "done: There are 3."
    assert [request.purpose for request in model.requests] == ["step", "summary"]


async def test_chat_that_awaits_subagents_is_not_at_rest(open_engine: OpenEngine) -> None:
    async with open_engine(None, agents=family(asks("one"), GatedModel(echo)), settings=IMPATIENT) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        helper = await helper_of(engine, chat.id)
        explained = await engine.explain(chat.id)
        assert explained.reason == f"Waiting for helpers: {helper} (agent 'research')."
        assert (await engine.get_chat(chat.id)).awaits == "helpers"
        with pytest.raises(IllegalTransition):
            await engine.archive(chat.id)
        with pytest.raises(NotResting):
            await engine.delete_chat(chat.id)
        with pytest.raises(TimeoutError):
            await engine.wait(chat.id, timeout=0.05)
        waits = await engine.wait(chat.id, until=["requires_action"], timeout=60)
        assert waits.awaits == "helpers"
        assert (await engine.transcript(chat.id)).open_calls == ()


def test_invalid_delegation_is_refused_when_declared() -> None:
    lead = Agent("lead", "demo", tools=[delegate("nobody")])
    with pytest.raises(SettingsError, match="'nobody', which must be one of this engine's agents: 'lead'"):
        Engine("sqlite://", agents=[lead])
    with pytest.raises(SettingsError, match="gives tasks to agent 'a b': needs a name of 1 to 64 letters"):
        delegate("a b")
    assert delegate("a b", name="ask_ab").helper == "a b"
    with pytest.raises(SettingsError, match="tool 'ask_nobody': is answered by helpers, which needs no approval"):
        dataclasses.replace(delegate("nobody"), policy="ask")


@tool(policy="ask")
async def buy(book: str) -> str:
    """Buy a book."""
    return f"bought {book}"


def family_that_buys(*, buys: Any = buy, also: tuple[Call, ...] = (), tools: Any = ()) -> list[Agent]:
    """Return an agent that delegates to one that asks its client before it buys; told to stay, it does nothing."""

    def research(request: ModelRequest) -> Reply:
        results = [message.result for message in request.messages if message.result is not None]
        return Reply(str(results[0].output)) if results else Reply(calls=[Call("buy", {"book": "one"})])

    def lead(request: ModelRequest) -> Reply:
        return Reply("as you like") if request.messages[0].text == "stay" else asks("one", also=also)(request)

    helper = Agent("research", ScriptedModel(research), tools=[buys])
    return [Agent("lead", ScriptedModel(lead), tools=[delegate(helper), *tools]), helper]


async def inbox_of(engine: Engine) -> list[Chat]:
    """Return the chats that wait for a client, once there are some."""
    with anyio.fail_after(60):
        while not (inbox := (await engine.list_chats(awaiting="client")).items):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return inbox


async def test_shutdown_delivers_a_finished_answer_to_the_parent(open_engine: OpenEngine, database: Path) -> None:
    """The look after it is under way: it has its grace, as what runs has."""
    parents: list[str] = []
    reading = Latch()

    class Slow(Delegate):
        async def head(self, chat_id: str) -> Any:
            if chat_id not in parents:
                await reading.pass_through()
            return await self._store.head(chat_id)

    settings = Settings(shutdown_grace=60)
    engine = Engine(Slow(stored_at(database)), agents=family(asks("one")), settings=settings)
    await engine.__aenter__()
    chat = await engine.create_chat(agent="lead")
    parents.append(chat.id)
    await engine.send_message(chat.id, "go")
    with anyio.fail_after(60):
        await reading.entered.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.__aexit__, None, None, None)
            await anyio.wait_all_tasks_blocked()
            reading.open()
    async with open_engine(None, agents=family(asks("one")), settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.explain(chat.id)).state == "pending"
        results = [message.result for message in await onlooker.messages(chat.id) if message.result is not None]
        assert [result.output for result in results] == ["found one"]


async def test_subagent_that_awaits_its_client_has_not_answered(open_engine: OpenEngine) -> None:
    async with open_engine(None, agents=family_that_buys()) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        await until(engine, chat.id, "helpers")
        inbox = await inbox_of(engine)
        assert [(one.parent, one.awaits) for one in inbox] == [(chat.id, "client")]
        await anyio.sleep(0.2)
        assert (await engine.get_chat(chat.id)).awaits == "helpers"
        (call,) = inbox[0].open_calls
        await engine.submit_tool_results(inbox[0].id, [ToolResult(call.call_id, output=True)])
        with anyio.fail_after(60):
            await engine.wait(chat.id)
        assert (await engine.messages(chat.id))[-1].text == "done: bought one"


async def test_parent_error_stops_subagent_that_awaits_its_client(
    open_engine: OpenEngine,
) -> None:
    @tool(policy="ask")
    async def close_up() -> str:
        """Close up."""
        raise FatalToolError("closed for good")

    agents = family_that_buys(also=(Call("close_up", {}),), tools=[close_up])
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        await until(engine, chat.id, "both")
        with anyio.fail_after(60):
            while len(inbox := await inbox_of(engine)) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        helper = next(one.id for one in inbox if one.helps is not None)
        (approval,) = [call for call in (await engine.get_chat(chat.id)).open_calls if call.is_client]
        await engine.submit_tool_results(chat.id, [ToolResult(approval.call_id, output=True)])
        with anyio.fail_after(60):
            assert (await engine.wait(chat.id)).state is ChatState.error
            stopped = await engine.wait(helper, until=[ChatState.interrupted])
        assert (await engine.list_chats(awaiting="client")).items == []
        assert stopped.settled


async def test_approval_in_an_orphaned_subagent_runs_nothing(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that edited the parent died before it could stop the helper."""
    bought: list[str] = []

    @tool(policy="ask")
    async def buy(book: str) -> str:
        """Buy a book."""
        bought.append(book)
        return f"bought {book}"

    async with open_engine(None, agents=family_that_buys(buys=buy)) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        await until(engine, chat.id, "helpers")
        (helper,) = await inbox_of(engine)
        with monkeypatch.context() as patched:
            patched.setattr(Commands, "_stop_helpers", _die_before)
            await engine.edit_message(chat.id, "m1", "stay")
        (call,) = helper.open_calls
        with pytest.raises((IllegalTransition, ConflictingReplay)):
            await engine.submit_tool_results(helper.id, [ToolResult(call.call_id, output=True)])
        with anyio.fail_after(60):
            stopped = await engine.wait(helper.id)
        assert (stopped.state, bought) == (ChatState.interrupted, [])
        stops = [record.actor for record in await engine.audit(helper.id) if record.trigger == "interrupt"]
        assert stops == [f"chat:{chat.id}"], "whoever answers does not stop it"


@pytest.mark.parametrize(
    ("fate", "told"), [("deleted", "The helper was deleted."), ("garbled", "The helper cannot be read: ")]
)
async def test_deleted_subagent_is_an_error_result(
    open_engine: OpenEngine, database: Path, fate: str, told: str
) -> None:
    async with open_engine(None, agents=family_that_buys()) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        (helper,) = await inbox_of(engine)
        if fate == "deleted":
            await engine.delete_chat(helper.id)
    known = _rewrite_facts(database, helper.id, "gone") if fate == "garbled" else ""
    async with open_engine(None, agents=family_that_buys()) as engine:
        with anyio.fail_after(60):
            await engine.wait(chat.id)
        (result,) = [message.result for message in await engine.messages(chat.id) if message.result is not None]
        assert result.is_error
        assert str(result.output).startswith(told)
        assert (await engine.get_chat(chat.id)).helpers_usage.partial
        _rewrite_facts(database, helper.id, known)  # all chats are verified at the end


def _rewrite_facts(database: Path, chat_id: str, facts: str) -> str:
    """Replace what a store knows of a chat, and return what it knew; a deleted chat has nothing to replace."""
    with closing(sqlite3.connect(database)) as rows, rows:
        known = rows.execute("SELECT facts FROM chats WHERE id = ?", (chat_id,)).fetchone()
        rows.execute("UPDATE chats SET facts = ? WHERE id = ?", (facts, chat_id))
    return "" if known is None else str(known[0])


async def test_worker_stops_an_orphaned_subagent(
    open_engine: OpenEngine, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that stopped the parent died before it could stop the helper."""
    async with open_engine(None, agents=family(asks("one"), GatedModel(echo)), settings=IMPATIENT) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        helper = await helper_of(engine, chat.id)
    with closing(sqlite3.connect(database)) as rows:
        assert rows.execute("SELECT state FROM chats WHERE id = ?", (helper,)).fetchone() == ("pending",)
    idle = Settings(run_worker=False)
    async with open_engine(None, agents=family(asks("one"), GatedModel(echo)), settings=idle) as engine:
        monkeypatch.setattr(Commands, "_stop_helpers", _die_before)
        await engine.edit_message(chat.id, "m1", "stay")
        assert (await engine.get_chat(helper)).state is ChatState.pending
    async with open_engine(None, agents=family(lambda _: Reply("as you like"), GatedModel(echo))) as engine:
        with anyio.fail_after(60):
            stopped = await engine.wait(helper)
        assert (stopped.state, stopped.settled) == (ChatState.interrupted, True)
        record = next(record for record in await engine.audit(helper) if record.trigger == "interrupt")
        assert (record.actor, record.reason) == (f"chat:{chat.id}", STOPPED)


async def test_subagents_may_be_imported_before_their_parent(open_engine: OpenEngine, tmp_path: Path) -> None:
    """A helper whose parent is not there yet is no helper of a chat that was deleted: somebody will wait for it."""
    async with open_engine(None, agents=family(asks("one"), GatedModel(echo)), settings=IMPATIENT) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        helper = await helper_of(engine, chat.id)
        lines = {name: [line async for line in engine.export_chat(name)] for name in (helper, chat.id)}
    research = GatedModel(echo)
    agents, store = family(asks("one"), research), stored_at(tmp_path / "there.db")
    async with open_engine(None, store=store, agents=agents, settings=Settings(lease=3, renew_every=0.1)) as engine:
        await engine.import_chat(lines[helper])
        with anyio.fail_after(60):
            while not research.busy:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await anyio.sleep(0.3)  # for its worker to look whether anybody waits for it
            assert (await engine.get_chat(helper)).state is ChatState.streaming
            await engine.import_chat(lines[chat.id])
            research.gate.set()
            await engine.wait(chat.id)
        assert (await engine.messages(chat.id))[-1].text == "done: found one"
        assert (await engine.verify(chat.id, family=True)).ok


async def _die_before(*_: object) -> None:
    """Stand for a process that was killed here."""


async def test_erased_task_is_answered_with_an_error(open_engine: OpenEngine) -> None:
    research = GatedModel(echo)
    agents = family(asks("one", "two"), research, settings=Settings(helpers_at_once=1))
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        await helper_of(engine, chat.id)
        await engine.erase_message(chat.id, "m2")
        research.gate.set()
        with anyio.fail_after(60):
            await engine.wait(chat.id)
        assert (await engine.messages(chat.id))[-1].text == "done: found one; Not begun: its task was erased."


@pytest.mark.parametrize("then", ["interrupt", "archive"])
async def test_chat_stopped_while_delegating_starts_no_subagent(
    open_engine: OpenEngine, database: Path, then: str
) -> None:
    """A helper that nobody waits for would ask its model once more before it is stopped, and that is paid for."""

    class Held(Delegate):
        latch = Latch()

        async def create(self, chat_id: str, plan: Any, **options: Any) -> Any:
            if options["parent"] is not None:
                await self.latch.pass_through()
            return await self._store.create(chat_id, plan, **options)

    store = Held(stored_at(database))
    model, research = asks("one", also=(Call("sign", {}),)), GatedModel(echo)
    async with open_engine(None, store=store, agents=family(model, research)) as engine:
        chat = await engine.create_chat(agent="lead", client_tools=[SIGN])
        await engine.send_message(chat.id, "go")
        await store.latch.entered.wait()
        with anyio.fail_after(60):
            await getattr(engine, then)(chat.id)
            await engine.wait(chat.id)
        store.latch.open()
    async with open_engine(None, agents=family(model, research)) as engine:
        assert [known.id for known in (await engine.list_chats()).items] == [chat.id]


async def test_blank_task_is_refused(open_engine: OpenEngine) -> None:
    async with open_engine(None, agents=family(asks(" ", "two"))) as engine:
        chat = await engine.create_chat(agent="lead")
        with anyio.fail_after(60):
            answer = await engine.ask(chat.id, "go")
        first, second = [message.result for message in answer.messages if message.result is not None]
        assert (first.is_error, second.is_error) == (True, False)
        assert "task" in str(first.output)
        assert len(await engine.helpers(chat.id)) == 1


class Late(Delegate):
    """A store that does not find a chat when it is first asked for it: another makes it a moment later."""

    def __init__(self, store: Any, name: str) -> None:
        super().__init__(store)
        self._late = [name]

    async def facts(self, chat_id: str) -> Any:
        if chat_id in self._late:
            self._late.remove(chat_id)
            raise ChatNotFound(chat_id)
        return await self._store.facts(chat_id)


@pytest.mark.parametrize("late", [False, True])
async def test_foreign_chat_with_a_subagent_id_answers_nothing(
    open_engine: OpenEngine, database: Path, *, late: bool
) -> None:
    idle = Settings(run_worker=False)
    model = ScriptedModel([Reply(calls=[Call("ask_research", {"task": "one"}, id="call_1")]), "Then not."])
    agents = [Agent("lead", model, tools=[delegate("research")]), Agent("research", "demo")]
    async with open_engine(None, agents=agents, settings=idle) as engine:
        chat = await engine.create_chat(agent="lead")
        stranger = await engine.create_chat(agent="research")
        lines = [line async for line in engine.export_chat(stranger.id)]
        await engine.delete_chat(stranger.id)
    name = helper_id(chat.id, "call_1")
    store = Late(stored_at(database), name if late else "")
    async with open_engine(None, agents=agents, store=store) as engine:
        with pytest.raises(ImportRefused):
            await engine.import_chat([line.replace(stranger.id, name) for line in lines])
        applier = engine._commands("someone").runtime.applier
        await applier.create(name, Create(profile=Profile(created_at=chat.created_at, agent="research")), actor="x")
        with anyio.fail_after(60):
            answer = await engine.ask(chat.id, "go")
        (result,) = [message.result for message in answer.messages if message.result is not None]
        assert (result.is_error, result.output) == (True, f"Chat {name} is not its helper.")
        assert not (await engine.verify(chat.id, family=True)).ok


@pytest.mark.parametrize("how", ["interrupt", "edit"])
async def test_on_interrupt_leave_lets_the_subagent_finish(open_engine: OpenEngine, how: str) -> None:
    def answers(request: ModelRequest) -> Reply:
        return asks("one")(request) if request.messages[-1].text == "go" else Reply("as you like")

    research = GatedModel(echo)
    helper = Agent("research", research)
    lead = Agent("lead", ScriptedModel(answers), tools=[delegate(helper, on_interrupt="leave")])
    async with open_engine(None, agents=[lead, helper], settings=Settings(lease=3, renew_every=0.2)) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        name = await helper_of(engine, chat.id)
        if how == "interrupt":
            assert (await engine.interrupt(chat.id)).settled
        else:
            await engine.edit_message(chat.id, "m1", "stay")
        with anyio.fail_after(60):
            await engine.wait(chat.id)
            await anyio.sleep(0.5)  # for its worker to look whether anybody waits for it
            before = await engine.get_chat(chat.id)
            research.gate.set()
            left = await engine.wait(name)
        assert (left.state, left.stop_reason) == ("waiting", "end_turn")
        assert await engine.get_chat(chat.id) == before
        assert (await engine.verify(chat.id, family=True)).ok
        fork = await engine.fork(name, at_version=left.version)
        kinds = [(await engine._store.facts(one)).profile for one in (name, fork.id)]
        assert [kind.stays for kind in kinds] == [True, False]
        assert (kinds[1].helps, kinds[1].helps_at) == (None, None), "a fork of a helper helps nobody"
        assert [kind.depth for kind in kinds] == [1, 0], "it stands below nobody, and may have as many helpers as any"
