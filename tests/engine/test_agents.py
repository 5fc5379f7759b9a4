"""Agents: model, tools, parameters and prompt of each chat."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import fields
from dataclasses import replace as replaced
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio.lowlevel
import pytest
from msgspec.structs import replace
from pydantic import JsonValue

from support.clock import pass_time
from support.engines import OpenChat, OpenEngine
from support.latches import Gate
from support.life import BLANK, NOW, local
from turnwise import Agent, Chat, ClientTool, Engine, Message, ProviderDefinition, TextPart, ToolResult, tool
from turnwise.engine.agents import models
from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.system_prompts import SystemPrompts
from turnwise.engine.config.settings import CompactionPolicy, RetryPolicy, Settings
from turnwise.engine.isolation.user_code import UserCalls
from turnwise.engine.prompt.hooks import Hooks
from turnwise.engine.tools.context import ToolContext
from turnwise.providers.failures import CannotAsk
from turnwise.providers.protocol import Model
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import QueueFull, SettingsError
from turnwise.states.facts import Facts, Profile
from turnwise.states.names import ChatState
from turnwise.states.step_calls import StepCalls
from turnwise.testing import ManualClock


@tool
async def refund(order: str) -> str:
    """Pay an order back."""
    return f"paid {order} back"


@tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"nothing at {place}"


@tool(policy="ask")
async def pay(order: str) -> str:
    """Pay an order back, if somebody allows it."""
    return f"paid {order} back"


def shop(**models: ScriptedModel) -> list[Agent]:
    support = Agent(
        "support",
        models.get("support", ScriptedModel([], name="gentle")),
        system="You help customers.",
        tools=[refund],
        version="2026-11-22",
    )
    research = Agent("research", models.get("research", ScriptedModel([], name="keen")), tools=[look])
    return [support, research]


async def test_each_agent_answers_its_own_chats(tmp_path: Path) -> None:
    support = ScriptedModel([Reply(calls=[Call("refund", {"order": "7"})]), "Done."], name="gentle")
    research = ScriptedModel(["Found."], name="keen")
    async with Engine(f"sqlite:///{tmp_path}/a.db", agents=shop(support=support, research=research)) as engine:
        one = await engine.create_chat(agent="support")
        two = await engine.create_chat(agent="research", system="Be keen.")
        assert (one.agent, two.agent) == ("support", "research")
        assert (await engine.ask(one.id, "My parcel is broken")).text == "Done."
        assert (await engine.ask(two.id, "Where is it?")).text == "Found."
        answered = (await engine.messages(one.id))[-1]
        verdict = await engine.verify(one.id)
    assert verdict.ok, verdict
    assert [request.system for request in support.requests] == ["You help customers."] * 2
    assert [[spec.name for spec in request.tools] for request in support.requests] == [["refund"]] * 2
    assert [(request.system, [spec.name for spec in request.tools]) for request in research.requests] == [
        ("Be keen.", ["look"])
    ]
    assert (answered.agent, answered.agent_version, answered.model) == ("support", "2026-11-22", "gentle")


def test_engine_refuses_invalid_agents() -> None:
    support, _ = shop()
    wrong: dict[str, dict[str, object]] = {
        "two agents are named 'support'": {"agents": [support, support]},
        "two agents are named 'default'": {"model": "demo", "agents": [Agent("default", "demo")]},
        "agent 'bare': needs a model": {"agents": [Agent("bare")]},
        "agent 'default': needs a model": {},
        "two tools are named 'refund'": {"agents": [Agent("twice", "demo", tools=[refund, refund])]},
        "agent 'odd', output: .*schema": {"agents": [Agent("odd", "demo", output={"type": "object", "required": 3})]},
        "no JSON schema can be made of its output": {"agents": [Agent("odd", "demo", output=ScriptedModel)]},
        "must begin with": {"agents": [Agent("odd", "demo", output={"type": "array", "items": {"$ref": "#"}})]},
        "needs the extra|names no model": {"agents": [Agent("odd", "nothing")]},
    }
    for problem, options in wrong.items():
        with pytest.raises(SettingsError, match=problem):
            Engine("sqlite://", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [one.name for one in fields(Settings) if one.init])
def test_each_setting_has_one_scope(name: str) -> None:
    """An agent refuses the engine's settings, even with their defaults; its unset settings take the engine's values."""
    usual = getattr(Settings(), name)
    own = Settings(**{name: usual})
    if Settings.scope(name) == "engine":
        with pytest.raises(SettingsError, match=f"settings.{name} belongs to the engine"):
            Agent("support", "demo", settings=own)
        return
    engines = Settings(**{name: UNUSUAL.get(name, 7)})
    copied = replaced(engines, answer_retries=9)
    found = [getattr(each.over(engines), name) for each in (Settings(), own, copied)]
    assert found == [getattr(engines, name), usual, getattr(copied, name)]
    stored = [pickle.loads(pickle.dumps(each)).over(engines) for each in (Settings(), own, copied)]  # noqa: S301
    assert stored == [each.over(engines) for each in (Settings(), own, copied)]


async def test_agent_keeps_settings_of_its_engine(open_engine: OpenEngine) -> None:
    engines = Settings(title="first_line", queue_limit=1, max_steps=3, run_worker=False)
    agent = Agent("support", ScriptedModel([]), settings=Settings(max_steps=50))
    async with open_engine(None, agents=[agent], settings=engines) as engine:
        chat = await engine.create_chat()
        for _ in range(2):
            await engine.send_message(chat.id, "Hello?")
        with pytest.raises(QueueFull):
            await engine.send_message(chat.id, "Hello?")


UNUSUAL: dict[str, Any] = {
    "tools_parallel": "all",
    "describe_error": str,
    "retry": RetryPolicy.interactive(),
    "compaction": CompactionPolicy(threshold_percent=50),
    "promote_after_interrupt": True,
    "continue_prompt": "Go on.",
    "parameters": {"top_k": 1},
    "title": "first_line",
    "active_tools": [],
    "fair_by": "owner",
}
"""Values that are no numbers."""


async def test_invalid_configuration_is_refused(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db", agents=shop()) as engine:
        with pytest.raises(SettingsError, match="agent: must be one of 'research', 'support': this engine has several"):
            await engine.create_chat()
        own: dict[str, Any] = {"model": "demo", "parameters": {"temperature": 0.5}, "active_tools": ("refund",)}
        chat = await engine.create_chat(agent="support", **own)
        assert {name: getattr(chat, name) for name in own} == own
        with pytest.raises(SettingsError, match="needs one of agent, model, parameters, active_tools, system"):
            await engine.configure(chat.id)
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"agent": "nobody"}, "agent: must be one of 'research', 'support'; it was 'nobody'"),
            ({"agent": "support", "model": "nothing"}, "names no model"),
            ({"agent": "support", "parameters": {"heat": 1}}, "parameters"),
            ({"agent": "support", "active_tools": ["look"]}, "have no tool 'look'; tools: refund"),
            ({"agent": "research", "active_tools": ["refund"]}, "have no tool 'refund'"),
        ]
        for options, problem in wrong:
            with pytest.raises(SettingsError, match=problem):
                await engine.create_chat(**options)
            with pytest.raises(SettingsError, match=problem):
                await engine.configure(chat.id, **options)
        assert (await engine.list_chats()).items == [chat]


async def test_chat_overrides_its_agents_configuration(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _request: Reply("ok"))
    agent = Agent("support", model, tools=[refund, look], settings=Settings(parameters={"top_k": 5, "top_p": 1.0}))
    own: list[dict[str, Any]] = [
        {"parameters": {"top_p": 0.1}},
        {"parameters": {"top_p": 0.2}},
        {"active_tools": ["look"]},
        {"active_tools": ["refund"]},
        {"parameters": {"top_p": 0.1}, "active_tools": ["look"]},
        {},
    ]
    async with Engine(f"sqlite:///{tmp_path}/a.db", agents=[agent]) as engine:
        for one in own:
            await engine.ask((await engine.create_chat(**one)).id, "hi")
    for one, request in zip(own, model.requests, strict=True):
        assert request.parameters == {"top_k": 5, "top_p": 1.0} | one.get("parameters", {})
        assert [spec.name for spec in request.tools] == one.get("active_tools", ["refund", "look"])


async def test_configure_applies_from_the_next_step(tmp_path: Path) -> None:
    support = ScriptedModel(["One."], name="gentle")
    research = ScriptedModel([Reply(calls=[Call("look", {"place": "x"})]), "Two.", "Three."], name="keen")
    async with Engine(f"sqlite:///{tmp_path}/a.db", agents=shop(support=support, research=research)) as engine:
        chat = await engine.create_chat(agent="support", parameters={"top_k": 3}, system="Be brief.")
        await engine.ask(chat.id, "hi")
        moved = await engine.acting("user:ann").configure(chat.id, agent="research")
        assert (moved.agent, moved.parameters) == ("research", None)
        assert (await engine.ask(chat.id, "go on")).text == "Two."
        assert (await engine.configure(chat.id, system="Be long.")).agent == "research"
        await engine.ask(chat.id, "and on")
        unchanged = await engine.configure(chat.id, system="Be long.", agent="research")
        records = await engine.audit(chat.id)
        verdict = await engine.verify(chat.id)
    assert verdict.ok, verdict
    assert [request.system for request in research.requests] == [None, None, "Be long."]
    configured = [record for record in records if record.trigger == "configured"]
    assert [record.actor for record in configured] == ["user:ann", "client"]
    assert unchanged.version == records[-1].version


async def test_client_tool_never_shadows_a_local_one(tmp_path: Path) -> None:
    """Otherwise the client would answer calls of a tool that needs an approval, of another agent or version."""
    asks = ScriptedModel([Reply(calls=[Call("pay", {"order": "7"})])])
    own, url = ClientTool("pay", "Pay.", {"type": "object"}), f"sqlite:///{tmp_path}/a.db"
    plain, paying = Agent("plain", asks, tools=[look]), Agent("paying", asks, tools=[pay])
    async with Engine(url, agents=[plain, paying]) as engine:
        chat = await engine.create_chat(agent="plain", client_tools=[own])
        taken = "^client tool 'pay': needs a name of its own; agent 'paying' has another tool of this name"
        with pytest.raises(SettingsError, match=taken):
            await engine.create_chat(agent="paying", client_tools=[own])
        with pytest.raises(SettingsError, match=taken):
            await engine.configure(chat.id, agent="paying")
        assert await engine.get_chat(chat.id) == chat
    async with Engine(url, agents=[Agent("plain", asks, tools=[look, pay])]) as engine:
        asked = (await engine.ask(chat.id, "hi")).open_calls
        assert [(call.approval, call.agent) for call in asked] == [("asked", "plain")]
        assert (await engine.configure(chat.id, parameters={"top_k": 1})).parameters == {"top_k": 1}


async def test_approved_call_runs_in_the_agent_that_made_it(tmp_path: Path) -> None:
    """A worker without that agent leaves the chat alone, even if the chat has moved to another agent."""
    answer: JsonValue = {"approved": True, "arguments": {"order": "8"}}
    there, elsewhere = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    support = Agent("support", ScriptedModel([Reply(calls=[Call("pay", {"order": "7"}, id="p")])]), tools=[pay])
    model = ScriptedModel(["Found."])
    research = Agent("research", model, tools=[look])
    async with Engine(there, agents=[support, research]) as engine:
        chat = await engine.create_chat(agent="support", active_tools=["pay"])
        await engine.ask(chat.id, "hi")
        moved = await engine.configure(chat.id, agent="research")
        assert (moved.agent, moved.open_calls[0].agent) == ("research", "support")
    async with Engine(there, agents=[support, research], settings=Settings(run_worker=False)) as engine:
        await engine.submit_tool_results(chat.id, [ToolResult("p", answer)])
        explained = await engine.explain(chat.id)
        assert (explained.agent, explained.tools_needed, explained.unreadable) == ("support", ("pay",), ())
        assert "runs agent 'support' with tool 'pay'" in explained.reason
        assert [found async for found in engine.diagnose()] == []
        lines = [line async for line in engine.export_chat(chat.id)]
    async with Engine(elsewhere, agents=[research]) as engine:
        await engine.import_chat(lines)
        assert (await engine.get_chat(chat.id)).state == "pending"
    async with Engine(elsewhere, agents=[research, support]) as engine:
        assert (await engine.wait(chat.id, timeout=60)).state == "waiting"
        history = await engine.messages(chat.id)
        assert (await engine.verify(chat.id)).ok
    assert [message.result.output for message in history if message.result] == ["paid 8 back"]
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["look"]]


def _hidden(messages: list[Message]) -> list[Message]:
    return [replace(message, parts=(TextPart(text="***"),)) for message in messages]


async def test_agents_inherit_the_hooks_of_the_engine(open_engine: OpenEngine) -> None:
    """Content that an engine hides from providers stays hidden when an agent is added or takes over."""
    models = [ScriptedModel(lambda _request: "ok") for _ in range(3)]
    agents = [
        Agent("bare", models[1]),
        Agent("own", models[2], prepare_messages=lambda _: None, reminders=[lambda _: "mine"]),
    ]
    options: dict[str, Any] = {"prepare_messages": _hidden, "reminders": [lambda _: "the engine's"]}
    async with open_engine(models[0], agents=agents, **options) as engine:
        chat = await engine.create_chat(agent="default")
        for agent in ("default", "bare", "own"):
            await engine.configure(chat.id, agent=agent)
            await engine.ask(chat.id, "secret")
    texts = [[message.text for message in model.requests[-1].messages] for model in models]
    assert texts[0] == ["***", "<reminder>the engine's</reminder>"]
    assert texts[1] == ["***", "***", "***", "<reminder>the engine's</reminder>"]
    assert texts[2] == ["secret", "ok", "secret", "ok", "secret", "<reminder>mine</reminder>"]


def test_unknown_agent_gets_the_engines_configuration() -> None:
    """The engine's own settings settle an interrupt of such a chat."""
    own = Agent(
        "support",
        ScriptedModel([], context_limit=500),
        system="You help.",
        tools=[refund],
        version="1",
        output=int,
        output_mode="tool",
        reminders=[lambda _chat: "Mind."],
        prepare_messages=lambda messages, _chat: messages,
        settings=Settings(max_steps=7),
    )
    settings = Settings(max_steps=3)
    agents = Agents([own], settings, hooks=Hooks(prepare_messages=_hidden))
    gone = Profile(created_at=NOW, agent="gone", active_tools=("refund",))
    facts = Facts(chat_id="c", profile=gone)
    found = agents.configuration(gone)
    assert (found.agent, found.version, found.system) == ("gone", None, None)
    assert (found.answer, found.output_mode, found.hooks) == (None, None, Hooks(prepare_messages=_hidden))
    assert (found.settings, found.limits) == (settings, settings.limits(None))
    assert found.toolbox.list_offered(()) == agents.toolbox(gone).list_offered(()) == ()
    assert (agents.answer(gone.agent), agents.limits(facts)) == (None, settings.limits(None))


@pytest.mark.parametrize(
    ("agent", "asks", "needs", "can"),
    [
        ("support", "support", None, True),
        ("gone", "gone", None, False),
        ("support", "support", "refund", True),
        ("support", "support", "look", False),
        ("research", "support", "refund", True),
        ("gone", "support", "refund", True),
        ("support", "gone", "refund", False),
    ],
)
def test_worker_needs_the_agent_and_tools_of_open_calls(agent: str, asks: str, needs: str | None, *, can: bool) -> None:
    """Any worker settles an interrupt."""
    agents = Agents(shop(), Settings())
    calls = () if needs is None else (replace(local("a"), name=needs, agent=asks),)
    chat = replace(BLANK, profile=replace(BLANK.profile, agent=agent), calls=StepCalls(calls))
    for state in (ChatState.pending, ChatState.executing_tools):
        assert agents.can_run(replace(chat, state=state)) is can
    assert agents.can_run(replace(chat, state=ChatState.interrupted))


# Deps


@tool
async def uses(ctx: ToolContext[str]) -> str:
    """Use the deps."""
    return f"{ctx.deps}, {ctx.chat.owner}, {ctx.chat.agent}, {ctx.key == ctx.idempotency_key}"


async def test_deps_open_once_per_lease_and_close_with_it(open_chat: OpenChat) -> None:
    events, closed = list[str](), anyio.Event()

    @asynccontextmanager
    async def deps(chat: Chat) -> AsyncIterator[str]:
        events.append("open")
        yield f"deps of {chat.owner}"
        events.append("close")
        closed.set()

    asks = Reply(calls=[Call("uses", {}), Call("uses", {})])
    model = ScriptedModel([asks, asks, "done", "no tools", asks, "done"])
    async with open_chat(model, tools=[uses], deps=deps, owner="ann") as (engine, chat, _):
        turn = await engine.ask(chat.id, "hi")
        results = {message.result.output for message in turn.messages if message.result}
        assert results == {"deps of ann, ann, default, True"}
        await engine.ask(chat.id, "hi")
        with anyio.fail_after(60):
            await closed.wait()
        await engine.ask(chat.id, "hi")
    assert events == ["open", "close"] * 2


async def test_each_agent_of_a_turn_has_its_own_deps(open_engine: OpenEngine) -> None:
    """Deps may be credentials."""
    wait, asks = Gate("wait"), Reply(calls=[Call("uses", {})])

    @asynccontextmanager
    async def deps(chat: Chat) -> AsyncIterator[str]:
        yield f"deps of {chat.agent}"

    agents = [
        Agent("support", ScriptedModel([asks, Reply(calls=[Call("wait", {})])]), tools=[uses, wait.tool]),
        Agent("research", ScriptedModel([asks, "done"]), tools=[uses]),
    ]
    async with open_engine(None, agents=agents, deps=deps) as engine:
        chat = await engine.create_chat(agent="support")
        await engine.send_message(chat.id, "hi")
        await wait.entered.wait()
        await engine.configure(chat.id, agent="research")
        wait.open.set()
        await engine.wait(chat.id, timeout=60)
        used = [message.result.output for message in await engine.messages(chat.id) if message.result]
    assert [output.partition(",")[0] for output in used] == ["deps of support", "wait done", "deps of research"]


@asynccontextmanager
async def _refuses(chat: Chat) -> AsyncIterator[str]:
    raise ConnectionError("no db")
    yield "never"


@pytest.mark.parametrize("deps", [_refuses, lambda chat: "no context manager", lambda: "no chat"])
async def test_deps_that_fail_to_open_end_in_error(open_engine: OpenEngine, deps: Any) -> None:
    model = ScriptedModel([Reply(calls=[Call("uses", {}), Call("look", {"place": "x"})]), "done"])
    async with open_engine(model, tools=[uses, look], deps=deps) as engine:
        result = await engine.ask((await engine.create_chat()).id, "hi")
        assert result.chat.state == "error"
        assert (result.chat.last_error.kind, result.open_calls) == ("deps", [])
        explained = (await engine.explain(result.chat.id)).last_error
        assert "deps of the chat could not be opened" in explained.detail
        closed = [message.result.outcome for message in result.messages if message.result]
        assert closed == ["cancelled"] * 2, "no tool had started"


async def without_decorator(_chat: Chat) -> AsyncIterator[str]:
    yield "deps"


async def returning(_chat: Chat) -> str:
    return "deps"


@pytest.mark.parametrize("deps", [without_decorator, returning, partial(without_decorator)])
def test_engine_refuses_deps_without_their_decorator(deps: Any) -> None:
    with pytest.raises(SettingsError, match="deps: a function must return an async context manager"):
        Engine("sqlite://", model=ScriptedModel([]), deps=deps)


async def test_deps_have_the_tool_timeout_to_open(open_engine: OpenEngine) -> None:
    clock, opening, cancelled = ManualClock(), anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def open_once(chat: Chat) -> AsyncIterator[str]:
        if not opening.is_set():
            opening.set()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()
        yield "deps"

    asks = Reply(calls=[Call("uses", {}), Call("uses", {})])
    settings = Settings(tool_timeout=7, poll_interval=10_000, lease=100_000, renew_every=10_000)
    async with open_engine(
        ScriptedModel([asks, asks, "done"]), tools=[uses], deps=open_once, clock=clock, settings=settings
    ) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await opening.wait()
        assert "Tools run as soon as the chat's deps are open: uses, uses" in (await engine.explain(chat.id)).reason
        await pass_time(clock, 7)
        await cancelled.wait()
        resting = await engine.wait(chat.id, timeout=60)
        assert resting.last_error.kind == "deps"
        assert "they were not open within 7 s" in (await engine.explain(chat.id)).last_error.detail
        results = [message.result for message in await engine.messages(chat.id) if message.result]
        assert [result.outcome for result in results] == ["cancelled"] * 2
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id, timeout=60)).state == "waiting"


async def test_ask_refuses_another_agent_than_the_chats(tmp_path: Path) -> None:
    agent = Agent("support", ScriptedModel([]))
    other = Agent("other", ScriptedModel([]))
    async with Engine(f"sqlite:///{tmp_path}/a.db", agents=[agent, other]) as engine:
        chat = await engine.create_chat(agent="other")
        with pytest.raises(SettingsError, match="'support' does not answer in this chat: its agent is 'other'"):
            await engine.ask(chat.id, "hi", agent=agent)
        assert await engine.get_chat(chat.id) == chat


async def test_chat_whose_model_is_unavailable_ends_in_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process could create the model; here a library or a key is missing."""
    url = f"sqlite:///{tmp_path}/a.db"
    agent = Agent("support", ScriptedModel(["fine", "better"]))
    async with Engine(url, agents=[agent], settings=Settings(run_worker=False)) as engine:
        chats = [await engine.create_chat(model="demo:x"), await engine.create_chat()]
        for chat in chats:
            await engine.send_message(chat.id, "hi")

    def unmade(name: str) -> Any:
        raise SettingsError("model", f"{name} needs a key")

    monkeypatch.setattr(models, "model_named", unmade)
    async with Engine(url, agents=[agent]) as engine:
        broken, sound = [await engine.wait(chat.id, timeout=30) for chat in chats]
        assert (broken.state, sound.state) == ("error", "waiting")
        assert broken.last_error is not None
        explained = (await engine.explain(broken.id)).last_error
        assert (explained.kind, explained.detail) == ("authentication", "demo:x needs a key")
        assert (await engine.verify(broken.id)).ok
        await engine.configure(broken.id, model=None)
        await engine.resume(broken.id)
        assert (await engine.wait(broken.id, timeout=30)).state == "waiting"


# System prompts


AGENTS = Agents(
    [
        Agent("plain", ScriptedModel([]), system="as it is"),
        Agent("none", ScriptedModel([])),
        Agent("numbers", ScriptedModel([]), system=lambda chat: chat.id),
        Agent("wrong", ScriptedModel([]), system=lambda _chat: 7),  # type: ignore[arg-type, return-value]
    ],
    Settings(),
)


def chat(agent: str, *, chat_id: str = "c", turn: int = 1, system: str | None = None) -> Facts:
    profile = replace(BLANK.profile, agent=agent, system=system)
    return replace(BLANK, chat_id=chat_id, profile=profile, turn=replace(BLANK.turn, number=turn))


class Maker:
    """A function of an agent that makes a different prompt at each call."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, chat: Chat) -> str:
        self.count += 1
        return f"{self.count}: {chat.id}"


async def prompt_of(prompts: SystemPrompts, facts: Facts, make: Any = None) -> str | None:
    configuration = AGENTS.configuration(facts.profile)
    if make is not None:
        configuration = replace(configuration, system=make)
    return await prompts.prompt_of(facts, configuration, UserCalls(), nullcontext)


async def test_prompt_that_is_not_text_is_refused() -> None:
    prompts = SystemPrompts()
    with pytest.raises(TypeError, match="has to be text; the function returned int"):
        await prompt_of(prompts, chat("wrong"))
    assert [*prompts] == []


async def test_prompt_is_made_once_per_turn_and_agent() -> None:
    """The same holds for a resumed turn: another process stopped it, and the worker still caches the first prompt."""
    prompts, make = SystemPrompts(), Maker()
    resumed = replace(chat("numbers", chat_id="d", turn=2), turn=replace(BLANK.turn, number=2, started_at=NOW))
    for facts, expected in (
        (chat("plain"), "1: c"),
        (chat("plain"), "1: c"),
        (chat("plain", turn=2), "2: c"),
        (chat("numbers", turn=2), "3: c"),
        (chat("numbers", turn=2), "3: c"),
        (chat("numbers", chat_id="d", turn=2), "4: d"),
        (chat("numbers", turn=2), "3: c"),
        (resumed, "5: d"),
        (resumed, "5: d"),
    ):
        assert await prompt_of(prompts, facts, make) == expected
    prompts.forget("c")
    prompts.forget("never was")
    assert [*prompts] == ["d"]
    assert await prompt_of(prompts, chat("numbers", turn=2), make) == "6: c"


# Models


class Connected(ScriptedModel):
    """A model that shows whether its connections are open."""

    def __init__(self) -> None:
        super().__init__(["hello"])
        self.life: list[str] = []

    async def __aenter__(self) -> Self:
        self.life.append("opened")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.life.append("closed")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Connected:
    model = Connected()
    monkeypatch.setattr(models, "model_named", lambda name: model)
    return model


async def test_named_model_is_open_while_the_engine_is(named: Connected, open_engine: Any) -> None:
    async with open_engine("some:model") as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "hello"
        assert named.life == ["opened"]
    assert named.life == ["opened", "closed"]


async def test_model_of_a_chat_is_closed_with_the_engine(named: Connected, open_engine: Any) -> None:
    async with open_engine(ScriptedModel([])) as engine:
        await engine.create_chat(model="some:model")
        assert "closed" not in named.life
    assert named.life[-1] == "closed"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of models with keys, none at first; models under `some:` cannot be checked."""
    there: set[str] = set()

    def model_named(name: str) -> Model:
        if name in there:
            return ScriptedModel([f"{name} says so"], takes_answer_schema="always")
        if name.startswith("some:"):
            raise CannotAsk("model", f"{name!r} needs a key")
        raise SettingsError("model", f"{name!r} is no model")

    monkeypatch.setattr(models, "model_named", model_named)
    return there


def store_front() -> list[Agent]:
    """Return agents that check the capabilities of their models."""

    @tool(definition=ProviderDefinition("anthropic", {"type": "computer_20250124", "name": "computer"}))
    async def computer() -> str:
        """Use the screen."""
        return "done"

    judge = Agent("judge", "some:judge", output=dict[str, int], output_mode="native")
    return [Agent("sales", "some:seller", tools=[computer]), judge, Agent("support", "some:subagent")]


async def test_engine_without_a_worker_needs_no_keys(keys: set[str], open_engine: Any) -> None:
    """Only the process that calls models needs keys; processes that face the internet shall have none."""
    async with open_engine(None, agents=store_front(), settings=Settings(run_worker=False)) as engine:
        chats = [await engine.create_chat(agent=agent) for agent in ("sales", "judge", "support")]
        chosen = await engine.configure(chats[2].id, model="some:other")
        assert (chosen.model, engine.models) == ("some:other", {"some:judge", "some:seller", "some:subagent"})
        with pytest.raises(SettingsError, match="is no model"):
            await engine.configure(chats[2].id, model="smoe:other")
        await engine.send_message(chosen.id, "hi")
        keys.update(("some:judge", "some:subagent", "some:other"))
        async with open_engine(None, agents=store_front()[1:]):
            assert (await engine.wait(chosen.id)).state == "waiting"
        assert (await engine.messages(chosen.id))[-1].text == "some:other says so"


@pytest.mark.parametrize(("model", "run_worker"), [("some:model", True), ("smoe:model", False)])
def test_missing_key_or_unknown_model_is_refused(keys: set[str], model: str, *, run_worker: bool) -> None:
    assert not keys
    with pytest.raises(SettingsError, match="needs a key" if run_worker else "is no model"):
        Engine("sqlite://", model=model, settings=Settings(run_worker=run_worker))
