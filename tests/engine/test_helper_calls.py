"""Calls that helpers answer: whatever a helper says, and whatever is left of it, each call gets a result."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
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
from turnwise.engine.family import awaited_by
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
async def test_whatever_a_helper_says_is_told_to_its_parent(
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
async def test_whatever_a_model_takes_for_a_helper_is_none_and_holds_no_other_call_up(
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


async def test_a_chat_that_waits_for_what_cannot_be_an_id_is_explained(
    open_engine: OpenEngine, at: Mapping[str, Any]
) -> None:
    plain = Agent("plain", ScriptedModel(lambda _: "plain"))
    calls = [spelled("wait_for_helpers", helpers=["c1\0"])]
    above = Agent("lead", lead(calls), tools=[delegate(plain, background=True)])
    async with open_engine(None, agents=[above, plain], settings=Settings(poll_interval=600), **at) as engine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HelperCalls, "answer", _nothing)
            chat = await engine.create_chat(agent="lead")
            await engine.send_message(chat.id, "go")
            await engine.wait(chat.id, until=["requires_action"], timeout=60)
            assert awaited_by(await engine._store.facts(chat.id)) == frozenset()
            assert (await engine.explain(chat.id)).state == "requires_action"
        await engine.interrupt(chat.id)


async def _nothing(_look: HelperCalls) -> None:
    """Stand for a look that answers nothing."""


@pytest.mark.parametrize("name", [None, 7, "a\0b", "\ud800"])
def test_what_no_database_finds_is_the_id_of_no_chat(name: object) -> None:
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
async def test_a_call_that_fails_is_answered_so_and_those_beside_it_are_answered(
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


async def test_what_a_store_cannot_tell_now_holds_nothing_else_up_and_is_asked_again(
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
            while len((await engine.get_chat(chat.id)).open_calls) > 1:  # noqa: ASYNC110 - no event tells
                await anyio.sleep(0.01)
            away.clear()
            await engine.wait(chat.id)
        assert await outputs(engine, chat.id) == ["plain"] * 3


async def test_a_helper_is_heard_although_its_own_helper_was_deleted(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that one used is not known, which is said."""
    leaf = Agent("leaf", ScriptedModel(lambda _: Reply("leaf", usage=(100, 1))))
    middle = lead([Call("ask_leaf", {"task": "dig"})])
    plain = Agent("plain", middle, tools=[delegate(leaf)])
    calls = [[Call("start_plain", {"task": "dig"})], [Call("wait_for_helpers", {})]]
    above = Agent("lead", lead(*calls), tools=[delegate(plain, background=True)])
    async with open_engine(None, agents=[above, plain, leaf]) as engine:
        last_words = HelperCalls._last_words

        async def deletes_leaf_first(look: HelperCalls, helper: Facts) -> Any:
            if helper.profile.agent == "plain":
                for one in await engine.helpers(helper.chat_id):
                    await engine.delete_chat(one.id)
            return await last_words(look, helper)

        monkeypatch.setattr(HelperCalls, "_last_words", deletes_leaf_first)
        chat = await engine.create_chat(agent="lead")
        answer = await engine.ask(chat.id, "go", timeout=60)
        (started, (heard,)) = await outputs(engine, chat.id)
        assert heard == {**started, "answer": "done"}
        assert answer.chat.helpers_usage.partial
        verdict = await engine.verify(chat.id, family=True)
        assert verdict.ok, verdict


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
async def test_a_helper_whose_rows_are_damaged_is_an_error_and_holds_up_no_other(
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


@tool(stop_after=True)
async def save() -> str:
    """Save, which ends the turn."""
    return "saved"


@tool
async def final_answer(draft: str) -> str:
    """Judge a draft."""
    return f"{draft} is too short"


def ending(*replies: Reply, native: bool = False, **options: Any) -> Callable[[], Agent]:
    """Return what makes an agent that says this."""
    return lambda: Agent("h", ScriptedModel(replies, takes_answer_schema="always" if native else None), **options)


PREAMBLE: Final = Reply("I look it up.", calls=[Call("look", {})], usage=(100, 1))
NO_ANSWER: Final = "The helper ended without an answer: "
ENDS: Final = {
    "said": (ending(PREAMBLE, Reply("42"), tools=[look]), "42", False),
    "said nothing": (ending(Reply("")), f"{NO_ANSWER}end_turn.", True),
    "said nothing at last": (
        ending(PREAMBLE, Reply(""), tools=[look]),
        f"{NO_ANSWER}end_turn. Its last words: I look it up.",
        True,
    ),
    "as meant": (ending(Reply("I save 42.", calls=[Call("save", {})]), tools=[save]), "I save 42.", False),
    "steps": (
        ending(PREAMBLE, tools=[look], settings=Settings(max_steps=1)),
        f"{NO_ANSWER}max_steps. Its last words: I look it up.",
        True,
    ),
    "tokens": (
        ending(PREAMBLE, tools=[look], settings=Settings(turn_tokens=50)),
        f"{NO_ANSWER}token_budget. Its last words: I look it up.",
        True,
    ),
    "cut": (ending(Reply("4", stop_reason="length")), f"{NO_ANSWER}max_tokens. Its last words: 4", True),
    "refused": (
        ending(Reply("I can't", stop_reason="refusal")),
        f"{NO_ANSWER}content_filter. Its last words: I can't",
        True,
    ),
    "its own final_answer": (
        ending(Reply(calls=[Call("final_answer", {"draft": "4"})]), Reply("42"), tools=[final_answer]),
        "42",
        False,
    ),
    "form": (ending(Reply(calls=[Call("final_answer", {"answer": 42})]), output=int), {"answer": 42}, False),
    "form without anything": (
        ending(Reply(calls=[Call("final_answer", {})]), output={"type": "object"}),
        {},
        False,
    ),
    "native form": (ending(Reply('{"answer": 42}'), native=True, output=int), {"answer": 42}, False),
    "form, steps": (
        ending(Reply("42?"), output=int, settings=Settings(max_steps=1)),
        f"{NO_ANSWER}max_steps. Its last words: 42?",
        True,
    ),
    "form, as meant": (
        ending(Reply("I save 42.", calls=[Call("save", {})]), output=int, tools=[save]),
        f"{NO_ANSWER}stop_after_tool. Its last words: I save 42.",
        True,
    ),
    "form, cut": (
        ending(Reply('{"answer": 42', stop_reason="length"), native=True, output=int),
        f'{NO_ANSWER}max_tokens. Its last words: {{"answer": 42',
        True,
    ),
    "form, refused": (
        ending(Reply('{"answer": 42}', stop_reason="refusal"), native=True, output=int),
        f'{NO_ANSWER}content_filter. Its last words: {{"answer": 42}}',
        True,
    ),
}
"""How helpers end, what their parent hears, and whether it is an error."""


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("end", ENDS)
async def test_only_that_with_which_a_helper_ends_its_turn_is_its_answer(
    open_engine: OpenEngine, end: str, *, background: bool
) -> None:
    """A sentence beside a tool call, or an answer that was cut, would be taken for what was found out."""
    make, words, is_error = ENDS[end]
    ends = make()
    batches = [[Call("start_h", {"task": "t"})], [Call("wait_for_helpers", {})]]
    above = Agent(
        "lead",
        lead(*(batches if background else [[Call("ask_h", {"task": "t"})]])),
        tools=[delegate(ends, background=background)],
    )
    async with open_engine(None, agents=[above, ends]) as engine:
        chat = await engine.create_chat(agent="lead")
        answer = await engine.ask(chat.id, "go", timeout=60)
        result = [message.result for message in answer.messages if message.result is not None][-1]
        if background:
            assert result.output[0]["error" if is_error else "answer"] == words
        else:
            assert (result.output, result.is_error) == (words, is_error)


async def test_a_worker_that_lacks_the_agent_of_a_chat_leaves_its_helpers_to_one_that_has_it(
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
            while not research.busy:  # noqa: ASYNC110 - a model tells nobody
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
