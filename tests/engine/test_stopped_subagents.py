"""Subagents end with the turn that started them, for every end of the turn and every crash."""

from typing import Any, Final

import pytest
from msgspec.structs import replace
from pydantic import BaseModel
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
from support.life import BLANK, NOW, text_parts
from turnwise import Agent, Chat, ChatState, Engine, FatalToolError, Settings, ToolResult, delegate, tool
from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.answer_format import ANSWER_TOOL
from turnwise.engine.commands.interrupt import Interrupter
from turnwise.engine.prompt.views import erased
from turnwise.engine.subagents import subagents
from turnwise.engine.subagents.answer import result_of
from turnwise.engine.subagents.family import STOPPED
from turnwise.providers.scripted import Call, ScriptedModel
from turnwise.states.errors import ConflictingReplay, IllegalTransition
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts
from turnwise.states.messages import Message, ToolCallPart, ToolResultPart
from turnwise.states.names import Audience, CallStatus, Executor, StopReason

IDLE: Final = Settings(run_worker=False)


async def end_turn(engine: Engine, chat_id: str, how: str) -> Chat:
    """Interrupt a chat, edit its message, or send an interrupting message."""
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
    """Those declared with `on_interrupt="leave"` finish, and their chat is not affected."""
    research = Research(held=True)
    model = lead(starts("one", "two"), waits) if background else lead(asks("one", "two"))
    agents = family(model, research, background=background, on_interrupt="leave" if leave else "stop")
    async with open_engine(None, agents=agents) as engine:
        chat = await sent(engine)
        await research.working(2)
        await end_turn(engine, chat.id, how)
        resting = await engine.wait(chat.id, timeout=60)
        assert resting.state is (ChatState.interrupted if how == "interrupt" else ChatState.waiting)
        assert resting.open_calls == []
        if leave:
            research.gate.set()
        for subagent in await engine.subagents(chat.id):
            ended = await engine.wait(subagent.id, timeout=60)
            assert (ended.state, ended.settled) == ("waiting" if leave else "interrupted", True)
        assert await engine.get_chat(chat.id) == resting


@pytest.mark.parametrize("how", ["edit", "message"])
async def test_only_an_edit_of_a_chat_at_rest_stops_its_subagents(open_engine: OpenEngine, how: str) -> None:
    research = Research(held=True)
    agents = family(lead(starts("one"), lambda _: "I go on"), research, background=True)
    async with open_engine(None, agents=agents) as engine:
        chat = await asked(engine)
        (subagent,) = await engine.subagents(chat.id)
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
        await until_awaits(engine, chat.id, "subagents")
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
        subagent = next(one.id for one in await inbox_of(engine, 2) if one.parent_call is not None)
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
        await until_awaits(engine, chat.id, "subagents")
        (subagent,) = await inbox_of(engine)
        with monkeypatch.context() as patch:
            patch.setattr(Interrupter, "stop_subagents", _die_before)
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
        (subagent,) = await engine.subagents(chat.id)
    async with open_engine(None, agents=agents, settings=IDLE) as engine:
        monkeypatch.setattr(Interrupter, "stop_subagents", _die_before)
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
    """Of all generations; otherwise their calls would stay open in an inbox. Chats without a parent stay."""
    monkeypatch.setattr(subagents, "SWEPT", 1)
    bottom = Agent("buyer", buyer().model, tools=buyer().tools)
    middle = Agent("research", lead(calls("ask_buyer", task="buy")), tools=[delegate(bottom)])
    agents = [*family(lead(starts("one"), lambda _: "I go on"), middle, background=True), bottom]
    async with open_engine(None, agents=agents, settings=Settings(lease=1, renew_every=0.2)) as engine:
        other = await engine.create_chat(agent="buyer")
        await engine.ask(other.id, "go", timeout=60)
        chat = await asked(engine)
        await inbox_of(engine, 2)
        (subagent,) = await engine.subagents(chat.id)
        (below,) = await engine.subagents(subagent.id)
        await engine.wait(subagent.id, until=["requires_action"], timeout=60)
        await engine.delete_chat(chat.id)
        for one in (subagent, below):
            await engine.wait(one.id, until=["interrupted"], timeout=60)
        assert [one.id for one in (await engine.list_chats(state="requires_action")).items] == [other.id]
        (stopped,) = [record for record in await engine.audit(subagent.id) if record.trigger == "interrupt"]
        assert stopped.actor == f"chat:{chat.id}"


# Results that a parent gets


class Form(BaseModel):
    """What one of the agents answers with."""

    n: int


class Loose(BaseModel):
    """What another answers with, in which nothing has to be said."""

    n: int = 1


AGENTS = Agents(
    [
        Agent("free", ScriptedModel([])),
        Agent("formal", ScriptedModel([]), output=Form),
        Agent("loose", ScriptedModel([]), output=Loose),
    ],
    Settings(),
)
ENDED, CUT, STEPS, AFTER_TOOL = (
    StopReason.end_turn,
    StopReason.max_tokens,
    StopReason.max_steps,
    StopReason.stop_after_tool,
)
FORM = {"n": 1}


def subagent(agent: str, reason: StopReason | None = ENDED, **fields: Any) -> Facts:
    profile = replace(BLANK.profile, agent=agent)
    return replace(BLANK, profile=profile, state=fields.pop("state", ChatState.waiting), stop_reason=reason, **fields)


def reply(text: str = "", *calls: ToolCallPart, **fields: Any) -> Message:
    return message("assistant", *(text_parts(text) if text else ()), *calls, **fields)


def message(role: Any, *parts: Any, **fields: Any) -> Message:
    return Message(id="m", role=role, parts=parts, turn=1, step=1, created_at=NOW, position=1, **fields)


def call(name: str = ANSWER_TOOL, executor: Executor = Executor.local) -> ToolCallPart:
    return ToolCallPart(call_id="a", name=name, arguments=FORM, executor=executor)


def result(outcome: CallStatus = CallStatus.succeeded) -> Message:
    return message("tool", ToolResultPart(call_id="a", name=ANSWER_TOOL, output="taken", outcome=outcome))


@pytest.mark.parametrize(
    ("agent", "reason", "messages", "answer"),
    [
        ("free", ENDED, [reply("first"), reply("last")], "last"),
        ("free", AFTER_TOOL, [reply("look", call("look")), result()], "look"),
        ("free", ENDED, [reply("found", call("search", Executor.provider))], "found"),
        ("formal", ENDED, [reply("", call()), result()], FORM),
        ("loose", ENDED, [reply("{}")], {}),
        ("gone", ENDED, [reply("", call()), result()], FORM),
        ("gone", ENDED, [reply("as it is")], "as it is"),
        ("formal", ENDED, [reply("free then", agent="free"), reply("a summary", audience=Audience.model)], "free then"),
        ("free", ENDED, [reply('{"n": 1}', agent="formal")], FORM),
    ],
)
def test_last_reply_of_the_turn_is_the_answer(
    agent: str, reason: StopReason, messages: list[Message], answer: object
) -> None:
    assert result_of(subagent(agent, reason), messages, AGENTS) == (answer, False)


@pytest.mark.parametrize(
    ("agent", "reason", "messages", "words"),
    [
        ("free", STEPS, [reply("First"), reply("Then"), reply("", call("look"))], "max_steps. Its last words: Then"),
        ("free", ENDED, [reply("I ask", call("look")), reply()], "end_turn. Its last words: I ask"),
        ("free", ENDED, [reply("It is", call("look"))], "end_turn. Its last words: It is"),
        ("free", ENDED, [], "end_turn."),
        ("free", None, [], "it was never asked."),
        ("formal", ENDED, [reply("not sure")], "end_turn. Its last words: not sure"),
        ("formal", CUT, [reply('{"n": 1')], 'max_tokens. Its last words: {"n": 1'),
        ("free", StopReason.unknown, [reply("It is")], "unknown. Its last words: It is"),
        ("formal", ENDED, [reply("", call()), result(CallStatus.failed)], "end_turn."),
        ("formal", AFTER_TOOL, [reply("look", call("look")), result()], "stop_after_tool. Its last words: look"),
    ],
)
def test_turn_without_an_answer_is_an_error_with_a_reason(
    agent: str, reason: StopReason | None, messages: list[Message], words: str
) -> None:
    problem = f"The subagent ended without an answer: {words}"
    assert result_of(subagent(agent, reason), messages, AGENTS) == (problem, True)


@pytest.mark.parametrize("agent", ["free", "loose", "gone"])
def test_erased_reply_is_no_answer(agent: str) -> None:
    """Neither the placeholder text nor a form's defaults count as an answer."""
    for said_last in ([reply("It is seven")], [reply("", call()), result()]):
        problem = "The subagent's last message was erased."
        blank = [erased(one) for one in said_last]
        assert result_of(subagent(agent, AFTER_TOOL if said_last[1:] else ENDED), blank, AGENTS) == (problem, True)


def test_failed_or_stopped_subagent_has_no_answer() -> None:
    failed = subagent("free", state=ChatState.error, last_error=ErrorInfo(kind="internal", message="out of luck"))
    for facts, problem in (
        (failed, "The subagent could not finish its task: out of luck"),
        (replace(failed, last_error=None), "The subagent could not finish its task: an unknown error"),
        (subagent("free", state=ChatState.interrupted), "The subagent was stopped before it had finished its task."),
    ):
        assert result_of(facts, [reply("an answer")], AGENTS) == (problem, True)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (reply("Paid 30."), "Paid 30."),
        (reply("", ToolCallPart(call_id="c", name=ANSWER_TOOL, arguments={"m": 1})), '{"m": 1}'),
        (erased(reply("Paid 30.")), None),
    ],
    ids=["text", "tool", "erased"],
)
def test_answer_without_the_form_is_an_answer_with_a_note(last: Message, words: str | None) -> None:
    """The subagent may have paid; an answer without the form does not make its work a failure."""
    info = ErrorInfo(kind="invalid_answer", message="no form")
    answer_text, is_error = result_of(subagent("formal", None, state=ChatState.error, last_error=info), [last], AGENTS)
    if words is None:
        assert (answer_text, is_error) == ("The subagent could not finish its task: no form", True)
    else:
        assert (answer_text.split("\n[")[0], "Its work stands" in answer_text, is_error) == (words, True, False)
