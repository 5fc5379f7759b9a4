"""Calls that helpers answer: whatever a helper says, and whatever is left of it, each call gets a result."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, cast

import anyio
import pytest

from support.engines import OpenEngine
from support.gated_model import GatedModel
from support.processes.postgres_server import Server
from turnwise import Agent, Engine, ModelError, ModelPart, ModelRequest, Settings, delegate, tool
from turnwise.engine.chat_ids import may_be_one
from turnwise.engine.worker.helper_calls import HelperCalls
from turnwise.engine.worker.worker import Worker
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import StoreError
from turnwise.states.facts import Facts

QUICK: Final = Settings(poll_interval=0.05)


def nested(levels: int) -> Any:
    """Return JSON that is so many levels deep."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


class Verbatim(ScriptedModel):
    """A model that says a text as it is, unchecked."""

    def __init__(self, text: str) -> None:
        super().__init__(())
        self._text = text

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the text."""
        yield ModelPart("text_delta", text=self._text)
        yield ModelPart("finish", stop_reason="stop")


def answering(name: str, arguments: str | dict[str, Any]) -> Agent:
    """Return an agent that gives an answer in the form of any object."""
    model = ScriptedModel(lambda _: Reply(calls=[Call("final_answer", arguments)]))
    return Agent(name, model, output={"type": "object"}, output_mode="tool")


def failing(_: ModelRequest) -> Reply:
    """Raise an error whose text no client may say."""
    return Reply(error=ModelError("bad_request", message="odd \0 byte"))


ODD: Final = (
    (Agent("nul", Verbatim("a\0b")), "a\0b"),
    (answering("inside", '{"a\\u0000": ["\\u0000"]}'), {"a\0": ["\0"]}),
    (answering("big", '{"a": 123456789012345678901234567890}'), {"a": 123456789012345678901234567890}),
    (answering("small", '{"a": -123456789012345678901234567890}'), {"a": -123456789012345678901234567890}),
    (answering("deep", nested(100)), nested(100)),
    (Agent("fails", ScriptedModel(failing)), "The helper could not finish its task: odd \0 byte"),
    (Agent("plain", ScriptedModel(lambda _: "plain")), "plain"),
)
"""Agents, and what a chat hears of them."""


def spelled(name: str, **arguments: Any) -> Call:
    """Return a call as a model spells it, who may say what no script may."""
    return Call(name, json.dumps(arguments))


def lead(*batches: list[Call]) -> ScriptedModel:
    """Return a model that makes each of these batches of calls, and then says that it is done."""
    taken = iter(batches)
    return ScriptedModel(lambda _: Reply(calls=batch) if (batch := next(taken, None)) else Reply("done"))


async def outputs(engine: Engine, chat_id: str) -> list[Any]:
    """Return what the model of a chat was answered, in the order of its calls."""
    messages = await engine.messages(chat_id)
    results = {message.result.call_id: message.result.output for message in messages if message.result is not None}
    return [results[call.call_id] for message in messages for call in message.calls]


@pytest.fixture(params=["sqlite", "postgres"])
def at(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Return where an engine's chats are: in a file, then in PostgreSQL."""
    if request.param == "sqlite":
        return {}
    server: Server = request.getfixturevalue("postgres")
    return {"store": server.new_url("helper_calls")}


@pytest.mark.parametrize("background", [False, True])
async def test_odd_answers_of_subagents_reach_the_parent(
    open_engine: OpenEngine, at: Mapping[str, Any], *, background: bool
) -> None:
    """What clients may not give for an answer, models do: the parent would wait for it until somebody interrupts."""
    word = "start" if background else "ask"
    batches = [[Call(f"{word}_{agent.name}", {"task": "say it"}) for agent, _ in ODD]]
    batches += [[Call("wait_for_helpers", {})]] if background else []
    helpers = [agent for agent, _ in ODD]
    above = Agent("lead", lead(*batches), tools=[delegate(agent, background=background) for agent in helpers])
    async with open_engine(None, agents=[above, *helpers], **at) as engine:
        chat = await engine.create_chat(agent="lead")
        assert (await engine.ask(chat.id, "go", timeout=60)).text == "done"
        said = await outputs(engine, chat.id)
        if background:
            started, heard = said[:-1], said[-1]
            assert [one["helper"] for one in heard] == [one["helper"] for one in started]
            said = [one.get("answer", one.get("error")) for one in heard]
        assert said == [answer for _, answer in ODD]
        verdict = await engine.verify(chat.id, family=True)
        assert verdict.ok, verdict


@pytest.mark.parametrize("name", ["c1\0", "", "x" * 10_000])
async def test_invalid_subagent_id_is_answered_with_an_error(
    open_engine: OpenEngine, at: Mapping[str, Any], name: str
) -> None:
    """A database may refuse to look for such an id: PostgreSQL does."""
    calls = [
        spelled("stop_helper", helper=f"-{name}"),
        spelled("message_helper", helper=f"-{name}", message="more"),
        spelled("wait_for_helpers", helpers=[name]),
        spelled("ask_plain", task="say\0it"),
        spelled("list_helpers"),
    ]
    plain = Agent("plain", ScriptedModel(lambda _: "plain"))
    above = Agent("lead", lead(calls), tools=[delegate(plain, background=True), delegate(plain)])
    async with open_engine(None, agents=[above, plain], **at) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.ask(chat.id, "go", timeout=60)
        *refused, heard, asked, listed = await outputs(engine, chat.id)
        assert all(one.startswith("You have no helper '-") for one in refused)
        assert heard[0]["error"].startswith("You have no helper '")
        assert asked == "plain"
        assert [one["task"] for one in listed] == ["say\0it"]


@pytest.mark.parametrize("name", [None, 7, "a\0b", "\ud800"])
def test_text_that_no_database_takes_is_no_chat_id(name: object) -> None:
    assert not may_be_one(name)
    assert may_be_one("c")


def fail_to_hear(patch: pytest.MonkeyPatch, failures: list[Exception]) -> None:
    """Let these go wrong as a helper with the task "bad" is heard, one after another."""
    last_words = HelperCalls._last_words

    async def fails(look: HelperCalls, helper: Facts) -> Any:
        if helper.profile.title == "bad" and failures:
            raise failures.pop()
        return await last_words(look, helper)

    patch.setattr(HelperCalls, "_last_words", fails)


ODD_FAILURES: Final = (
    RuntimeError("nobody thought of it"),
    StoreError("it says so each time"),
    AssertionError(),
    RecursionError("too deep"),
)


@pytest.mark.parametrize("failure", ODD_FAILURES, ids=repr)
@pytest.mark.parametrize("background", [False, True])
async def test_failed_call_does_not_affect_its_siblings(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, failure: Exception, *, background: bool
) -> None:
    fail_to_hear(monkeypatch, [failure])
    plain = Agent("plain", Verbatim("plain"))
    word = "start" if background else "ask"
    batches = [[Call(f"{word}_plain", {"task": task}) for task in ("one", "bad", "two")]]
    batches += (
        [[Call("wait_for_helpers", {}), Call("list_helpers", {})], [Call("wait_for_helpers", {})]] if background else []
    )
    above = Agent("lead", lead(*batches), tools=[delegate(plain, background=background)])
    async with open_engine(None, agents=[above, plain]) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.ask(chat.id, "go", timeout=60)
        said = await outputs(engine, chat.id)
        if background:
            *_, heard, listed, nothing_more = said
            assert (len(listed), nothing_more) == (3, [])
            said = [one.get("answer", one.get("error")) for one in heard]
        assert said == ["plain", f"This failed: {type(failure).__name__}.", "plain"]


async def test_transient_store_error_delays_one_call_only(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    away: list[Exception] = [StoreError("it is away", passing=True) for _ in range(1000)]
    fail_to_hear(monkeypatch, away)
    plain = Agent("plain", Verbatim("plain"))
    calls = [Call("ask_plain", {"task": task}) for task in ("bad", "one", "two")]
    above = Agent("lead", lead(calls), tools=[delegate(plain)])
    async with open_engine(None, agents=[above, plain], settings=QUICK) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        with anyio.fail_after(60):
            while len((await engine.get_chat(chat.id)).open_calls) > 1:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            away.clear()
            await engine.wait(chat.id)
        assert await outputs(engine, chat.id) == ["plain"] * 3


DAMAGES: Final = {
    "UPDATE {messages} SET body = '{{'": "cannot be read",
    "UPDATE {messages} SET format = 99": "cannot be read",
    "DELETE FROM {messages}": "ended without an answer",
    "UPDATE {profiles} SET body = '{{'": "cannot be read",
    "DELETE FROM {profiles}": "cannot be read",
    "UPDATE {usage} SET body = '{{'": None,
    "DELETE FROM {usage}": None,
    "UPDATE {audit} SET body = '{{'": None,
    "DELETE FROM {audit}": None,
}
"""What may become of the rows of a helper that has answered, and the error that its parent then hears."""


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_subagent_is_an_error_result(
    at: Mapping[str, Any], request: pytest.FixtureRequest, database: Path, damage: str
) -> None:
    url = at.get("store", f"sqlite:///{database}")
    plain = Agent("plain", ScriptedModel(lambda _: "plain"))
    tools = [delegate(plain, background=True), delegate(plain)]
    starts = [Call("start_plain", {"task": task}) for task in ("one", "bad", "two")]
    async with Engine(url, agents=[Agent("lead", lead(starts), tools=tools), plain]) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.ask(chat.id, "go", timeout=60)
        helpers = await engine.helpers(chat.id)
        for helper in helpers:
            await engine.wait(helper.id, until=["waiting"], timeout=60)
    bad = next(helper.id for helper in helpers if helper.title == "bad")
    _damage(url, damage, bad, request)
    hears = [
        Call("stop_helper", {"helper": bad}),
        Call("wait_for_helpers", {}),
        Call("list_helpers", {}),
        Call("ask_plain", {"task": "another"}),
        Call("wait_for_helpers", {"helpers": [bad]}),
    ]
    async with Engine(url, agents=[Agent("lead", lead(hears), tools=tools), plain]) as engine:
        await engine.ask(chat.id, "hear them", timeout=60)
        *_, stopped, heard, listed, another, again = await outputs(engine, chat.id)
        assert (await engine.verify(chat.id)).ok
    problem, by_helper = DAMAGES[damage], {one["helper"]: one for one in heard}
    assert [by_helper[helper.id].get("answer") for helper in helpers if helper.id != bad] == ["plain"] * 2
    assert by_helper[bad].get("answer") == ("plain" if problem is None else None)
    assert (problem or "") in by_helper[bad].get("error", "")
    assert len(listed) == (2 if "{profiles}" in damage else 3)
    assert another == "plain"
    assert ("cannot be read" in str(stopped)) or stopped == {"helper": bad, "state": "waiting"}
    assert again[0]["helper"] == bad


def _damage(url: str, damage: str, chat_id: str, request: pytest.FixtureRequest) -> None:
    """Change rows of a chat behind the backs of all who have the store open."""
    _, is_postgres, schema = url.partition("&schema=")
    tables = {name: f"{schema}.{name}" if is_postgres else name for name in ("messages", "profiles", "usage", "audit")}
    sql = f"{damage.format(**tables)} WHERE chat_id = '{chat_id}'"
    if is_postgres:
        server: Server = request.getfixturevalue("postgres")
        server.sql(sql)
    else:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as on, on:
            assert on.execute(sql).rowcount > 0


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def final_answer(draft: str) -> str:
    """Judge a draft."""
    return f"{draft} is too short"


async def test_worker_without_the_parents_agent_starts_no_subagent(
    open_engine: OpenEngine,
) -> None:
    """It would begin more of them than may work, by settings that are not the agent's."""
    research = GatedModel(lambda _: Reply("x" * 200_000))
    plain, settings = Agent("plain", research), Settings(helpers_at_once=1, output_limit_bytes=1_000_000)
    model = lead([Call("ask_plain", {"task": task}) for task in ("one", "two")])
    above = Agent("lead", model, tools=[delegate(plain)], settings=settings)
    async with open_engine(None, agents=[above, plain], settings=Settings(shutdown_grace=0)) as engine:
        chat = await engine.create_chat(agent="lead")
        await engine.send_message(chat.id, "go")
        with anyio.fail_after(60):
            while not research.busy:  # noqa: ASYNC110
                await anyio.sleep(0.01)
    research.gate.set()
    async with open_engine(None, agents=[plain]) as engine:
        (helper,) = await engine.helpers(chat.id)
        await engine.wait(helper.id, until=["waiting"], timeout=60)
        helpers = cast("Worker", engine._worker)._helpers
        await helpers.sweep()
        await helpers.done()
        assert len((await engine.get_chat(chat.id)).open_calls) == 2
        assert len(await engine.helpers(chat.id)) == 1
    async with open_engine(None, agents=[above, plain]) as engine:
        await engine.wait(chat.id, until=["waiting"], timeout=60)
        assert await outputs(engine, chat.id) == ["x" * 200_000] * 2
