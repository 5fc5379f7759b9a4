"""Subagents end with the turn that wanted them, whoever ends it and whichever process dies meanwhile."""

from __future__ import annotations

from typing import Final

import pytest
from tests.engine.subagents import (
    Research,
    asked,
    asks,
    buyer,
    calls,
    family,
    inbox_of,
    lead,
    sent,
    starts,
    until_awaits,
    waits,
)

from support.engines import OpenEngine
from turnwise import (
    Agent,
    Chat,
    ChatState,
    ConflictingReplay,
    Engine,
    FatalToolError,
    IllegalTransition,
    Settings,
    ToolResult,
    delegate,
    tool,
)
from turnwise.engine.commands import Commands
from turnwise.engine.family import STOPPED
from turnwise.engine.worker import helpers
from turnwise.providers.scripted import Call

IDLE: Final = Settings(run_worker=False)


async def end_turn(engine: Engine, chat_id: str, how: str) -> Chat:
    """Interrupt a chat, edit its message or send another that interrupts it."""
    if how == "interrupt":
        return await engine.interrupt(chat_id)
    if how == "edit":
        return await engine.edit_message(chat_id, "m1", "stay")
    return (await engine.send_message(chat_id, "stay", when_busy="interrupt")).chat


@pytest.mark.parametrize("how", ["interrupt", "edit", "message"])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("leave", [False, pytest.param(True, marks=pytest.mark.deep)])
async def test_ending_a_turn_stops_its_subagents(
    open_engine: OpenEngine, how: str, *, background: bool, leave: bool
) -> None:
    """Those that are declared with `on_interrupt="leave"` finish, and their chat is not affected."""
    research = Research(held=True)
    model = lead(starts("one", "two"), waits) if background else lead(asks("one", "two"))
    agents = family(model, research, background=background, on_interrupt="leave" if leave else "stop")
    async with open_engine(None, agents=agents) as engine:
        chat = await sent(engine)
        await research.working(2)
        await end_turn(engine, chat.id, how)
        rested = await engine.wait(chat.id, timeout=60)
        assert rested.state is (ChatState.interrupted if how == "interrupt" else ChatState.waiting)
        assert rested.open_calls == []
        if leave:
            research.gate.set()
        for subagent in await engine.helpers(chat.id):
            ended = await engine.wait(subagent.id, timeout=60)
            assert (ended.state, ended.settled) == ("waiting" if leave else "interrupted", True)
        assert await engine.get_chat(chat.id) == rested


@pytest.mark.parametrize("how", ["edit", "message"])
async def test_only_an_edit_of_a_chat_at_rest_stops_its_subagents(open_engine: OpenEngine, how: str) -> None:
    research = Research(held=True)
    agents = family(lead(starts("one"), lambda _: "I go on"), research, background=True)
    async with open_engine(None, agents=agents) as engine:
        chat = await asked(engine)
        (subagent,) = await engine.helpers(chat.id)
        await research.working()
        await end_turn(engine, chat.id, how)
        if how == "message":
            await engine.wait(chat.id, timeout=60)
            research.gate.set()
        ended = await engine.wait(subagent.id, timeout=60)
        assert ended.state == ("interrupted" if how == "edit" else "waiting")
        await engine.wait(chat.id, timeout=60)


@pytest.mark.parametrize("how", ["interrupt", "edit", "message"])
@pytest.mark.parametrize("workers", ["none run", pytest.param("all are busy", marks=pytest.mark.deep)])
async def test_stop_settles_chat_and_subagents_without_a_worker(
    open_engine: OpenEngine, workers: str, how: str
) -> None:
    busy = Research(held=True)
    agents = [*family(lead(asks("one")), buyer()), Agent("busy", busy)]
    async with open_engine(None, agents=agents) as engine:
        chat = await sent(engine)
        (subagent,) = await inbox_of(engine)
        await until_awaits(engine, chat.id, "helpers")
    full = Settings(run_worker=workers == "all are busy", max_running=1, shutdown_grace=0)
    async with open_engine(None, agents=agents, settings=full) as engine:
        if full.run_worker:
            await engine.send_message((await engine.create_chat(agent="busy")).id, "think")
            await busy.working()
        stopped = await end_turn(engine, chat.id, how)
        if how == "interrupt":
            assert (stopped.state, stopped.settled, stopped.open_calls) == (ChatState.interrupted, True, [])
        else:
            assert stopped.state is ChatState.pending
        ended = await engine.get_chat(subagent.id)
        assert (ended.state, ended.settled, ended.open_calls) == (ChatState.interrupted, True, [])


async def test_parent_error_stops_subagent_that_awaits_its_client(open_engine: OpenEngine) -> None:
    @tool(policy="ask")
    async def close_up() -> str:
        """Close up."""
        raise FatalToolError("closed for good")

    agents = family(lead(asks("one", also=[Call("close_up", {})])), buyer(), tools=[close_up])
    async with open_engine(None, agents=agents) as engine:
        chat = await sent(engine)
        await until_awaits(engine, chat.id, "both")
        subagent = next(one.id for one in await inbox_of(engine, 2) if one.helps is not None)
        (approval,) = [call for call in (await engine.get_chat(chat.id)).open_calls if call.is_client]
        await engine.submit_tool_results(chat.id, [ToolResult(approval.call_id, output=True)])
        assert (await engine.wait(chat.id, timeout=60)).state is ChatState.error
        assert (await engine.wait(subagent, until=["interrupted"], timeout=60)).settled
        assert (await engine.list_chats(awaiting="client")).items == []


async def _die_before(*_: object) -> None:
    """Stand for a process that was killed here."""


async def test_approval_in_an_orphaned_subagent_runs_nothing(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that edited the parent died before it could stop the subagent."""
    bought: list[str] = []

    @tool(policy="ask")
    async def buy(book: str) -> str:
        """Buy a book."""
        bought.append(book)
        return f"bought {book}"

    async with open_engine(None, agents=family(lead(asks("one")), buyer([buy]))) as engine:
        chat = await sent(engine)
        await until_awaits(engine, chat.id, "helpers")
        (subagent,) = await inbox_of(engine)
        with monkeypatch.context() as patch:
            patch.setattr(Commands, "_stop_helpers", _die_before)
            await engine.edit_message(chat.id, "m1", "stay")
        with pytest.raises((IllegalTransition, ConflictingReplay)):
            await engine.submit_tool_results(subagent.id, [ToolResult(subagent.open_calls[0].call_id, output=True)])
        stopped = await engine.wait(subagent.id, timeout=60)
        assert (stopped.state, bought) == (ChatState.interrupted, [])
        stops = [record.actor for record in await engine.audit(subagent.id) if record.trigger == "interrupt"]
        assert stops == [f"chat:{chat.id}"], "the person who approves does not stop it"


async def test_worker_stops_an_orphaned_subagent(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that edited the parent died before it could stop the subagent."""
    research = Research(held=True)
    agents = family(lead(asks("one")), research)
    async with open_engine(None, agents=agents, settings=Settings(shutdown_grace=0)) as engine:
        chat = await sent(engine)
        await research.working()
        (subagent,) = await engine.helpers(chat.id)
    async with open_engine(None, agents=agents, settings=IDLE) as engine:
        monkeypatch.setattr(Commands, "_stop_helpers", _die_before)
        await engine.edit_message(chat.id, "m1", "stay")
        assert (await engine.get_chat(subagent.id)).state is ChatState.pending
    async with open_engine(None, agents=agents) as engine:
        stopped = await engine.wait(subagent.id, timeout=60)
        assert (stopped.state, stopped.settled) == (ChatState.interrupted, True)
        record = next(record for record in await engine.audit(subagent.id) if record.trigger == "interrupt")
        assert (record.actor, record.reason) == (f"chat:{chat.id}", STOPPED)


async def test_deleting_a_chat_stops_subagents_that_await_clients(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all generations; their calls would stay open in an inbox for ever. Chats without a parent stay."""
    monkeypatch.setattr(helpers, "SWEPT", 1)
    bottom = Agent("buyer", buyer().model, tools=buyer().tools)
    middle = Agent("research", lead(calls("ask_buyer", task="buy")), tools=[delegate(bottom)])
    agents = [*family(lead(starts("one"), lambda _: "I go on"), middle, background=True), bottom]
    async with open_engine(None, agents=agents, settings=Settings(lease=1, renew_every=0.2)) as engine:
        other = await engine.create_chat(agent="buyer")
        await engine.ask(other.id, "go", timeout=60)
        chat = await asked(engine)
        await inbox_of(engine, 2)
        (subagent,) = await engine.helpers(chat.id)
        (below,) = await engine.helpers(subagent.id)
        await engine.wait(subagent.id, until=["requires_action"], timeout=60)
        await engine.delete_chat(chat.id)
        for one in (subagent, below):
            await engine.wait(one.id, until=["interrupted"], timeout=60)
        assert [one.id for one in (await engine.list_chats(state="requires_action")).items] == [other.id]
        (stopped,) = [record for record in await engine.audit(subagent.id) if record.trigger == "interrupt"]
        assert stopped.actor == f"chat:{chat.id}"
