"""Subagents: chats to which other chats delegate calls, and whose answers those calls get."""

import dataclasses
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import anyio
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
    outputs,
    sent,
    starts,
    waits,
)

from support.engines import OpenEngine
from support.latches import Latch
from support.processes.postgres_server import Server
from support.stores import Delegate, stored_at
from turnwise import Agent, ChatState, Engine, ModelError, ModelPart, NotResting, Settings, ToolResult, delegate, tool
from turnwise.engine.agents.delegate import subagent_id
from turnwise.engine.chat_ids import may_be_one
from turnwise.engine.subagents.calls import SubagentCalls
from turnwise.engine.subagents.subagents import Subagents
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import IllegalTransition, SettingsError, StoreError
from turnwise.states.facts import Facts


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
def at(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Return the engine's database: a file, then PostgreSQL."""
    if request.param == "sqlite":
        return {}
    server: Server = request.getfixturevalue("postgres")
    return {"store": server.new_url("subagents")}


async def test_subagent_answers_delegated_call(open_engine: OpenEngine) -> None:
    """Its title is its task in one line of 80 characters; a fork of it is no subagent."""
    titles = {"look\n  it up": "look it up", "x" * 80: "x" * 80, "x" * 81: "x" * 79 + "…"}
    async with open_engine(None, agents=family(lead(asks(*titles)), Research())) as engine:
        chat = await asked(engine, owner="ann", metadata={"tier": "gold"})
        assert await outputs(engine, chat.id) == [f"found {task}" for task in titles]
        delegated = (await engine.messages(chat.id))[1].calls
        subagents = await engine.subagents(chat.id)
        assert [call.executor for call in delegated] == ["chat"] * 3
        assert [one.id for one in subagents] == [subagent_id(chat.id, call.call_id) for call in delegated]
        assert [one.title for one in subagents] == [*titles.values()]
        assert [(one.parent, one.parent_call) for one in subagents] == [(chat.id, call.call_id) for call in delegated]
        for one in subagents:
            assert (one.agent, one.owner, one.metadata) == ("research", "ann", {"tier": "gold"})
        assert (await engine.verify(chat.id, family=True)).ok
        fork = await engine.fork(subagents[0].id, at_version=subagents[0].version)
        profiles = [(await engine._store.facts(one)).profile for one in (subagents[0].id, fork.id)]
        expected = [(False, False, 1), (True, True, 0)]
        assert [(one.parent_call is None, one.parent_version is None, one.depth) for one in profiles] == expected


async def test_chat_that_awaits_subagents_is_not_at_rest(open_engine: OpenEngine) -> None:
    research = Research(held=True)
    agents = family(lead(asks("one")), research)
    async with open_engine(None, agents=agents, settings=Settings(shutdown_grace=0)) as engine:
        chat = await sent(engine)
        await research.working()
        (subagent,) = await engine.subagents(chat.id)
        explained = await engine.explain(chat.id)
        assert explained.reason == f"Waiting for subagents: {subagent.id} (agent 'research')."
        with pytest.raises(IllegalTransition):
            await engine.archive(chat.id)
        with pytest.raises(NotResting):
            await engine.delete_chat(chat.id)
        with pytest.raises(TimeoutError):
            await engine.wait(chat.id, timeout=0.05)
        assert (await engine.wait(chat.id, until=["requires_action"], timeout=60)).awaits == "subagents"
        assert (await engine.transcript(chat.id)).open_calls == ()


async def test_subagent_that_awaits_its_client_has_not_answered(open_engine: OpenEngine) -> None:
    async with open_engine(None, agents=family(lead(asks("one")), buyer())) as engine:
        chat = await sent(engine)
        (subagent,) = await inbox_of(engine)
        assert (subagent.parent, subagent.awaits) == (chat.id, "client")
        assert (await engine.get_chat(chat.id)).awaits == "subagents"
        await engine.submit_tool_results(subagent.id, [ToolResult(subagent.open_calls[0].call_id, output=True)])
        await engine.wait(chat.id, timeout=60)
        assert await outputs(engine, chat.id) == ["done: bought one"]


async def test_subagents_nest_no_deeper_than_subagent_depth(open_engine: OpenEngine) -> None:
    """The deepest subagent keeps its other tools and may not delegate."""

    @tool
    async def work() -> str:
        """Work."""
        return "done"

    def again(seen: list[Any]) -> list[Call]:
        return [Call("ask_lead", {"task": "again"}), Call("work", {})]

    def answer(seen: list[Any]) -> str:
        return f"told: {seen[0]}" if seen[1] == "done" else "not even that"

    endless = Agent("lead", lead(again, answer), tools=[delegate("lead"), work])
    async with open_engine(None, agents=[endless], settings=Settings(subagent_depth=4)) as engine:
        chat = await asked(engine)
        text = (await engine.messages(chat.id))[-1].text
        assert text == "told: " * 5 + "Not done: subagents stand 4 deep at most. Do it yourself."
        assert len((await engine.list_chats()).items) == 5


async def test_waiting_chats_occupy_no_worker_slot(open_engine: OpenEngine) -> None:
    """One slot is enough for chats that wait for subagents that wait for subagents."""
    leaf = Agent("leaf", Research())
    middle = Agent("research", lead(calls("ask_leaf", task="dig")), tools=[delegate(leaf)])
    agents = [*family(lead(asks("one", "two", "three")), middle), leaf]
    async with open_engine(None, agents=agents, settings=Settings(max_running=1)) as engine:
        chats = [await sent(engine) for _ in range(3)]
        for chat in chats:
            assert (await engine.wait(chat.id, timeout=60)).state is ChatState.waiting
            assert await outputs(engine, chat.id) == ["done: found dig"] * 3
        assert len((await engine.list_chats(limit=1000)).items) == 3 * (1 + 3 + 3)


async def test_turn_budget_counts_subagent_usage(open_engine: OpenEngine) -> None:
    costly = ScriptedModel(lambda _: Reply("found", usage=(900, 100)))
    endless = ScriptedModel(lambda _: Reply(calls=[Call("ask_research", {"task": "more"})], usage=(10, 10)))
    agents = family(endless, costly, settings=Settings(turn_tokens=2500))
    async with open_engine(None, agents=agents) as engine:
        chat = await engine.create_chat(agent="lead")
        answer = await engine.ask(chat.id, "go", timeout=60)
        assert answer.stop_reason == "token_budget"
        assert answer.chat.subagents_usage.input_tokens == 2700
        assert answer.chat.usage.input_tokens == 30


async def test_parent_gets_the_answer_before_subagent_compacts(open_engine: OpenEngine) -> None:
    model = ScriptedModel([Reply("There are 3.", usage=(90, 5)), "Nothing is left to do."], context_limit=100)
    async with open_engine(None, agents=family(lead(asks("one")), model)) as engine:
        chat = await asked(engine)
        assert await outputs(engine, chat.id) == ["There are 3."]
    assert [request.purpose for request in model.requests] == ["step", "summary"]


def test_invalid_delegation_is_refused_when_declared() -> None:
    with pytest.raises(SettingsError, match="'nobody', which must be one of this engine's agents: 'lead'"):
        Engine("sqlite://", agents=[Agent("lead", "demo", tools=[delegate("nobody")])])
    with pytest.raises(SettingsError, match="gives tasks to agent 'a b': needs a name of 1 to 64 letters"):
        delegate("a b")
    assert delegate("a b", name="ask_ab").subagent == "a b"
    with pytest.raises(SettingsError, match="tool 'ask_nobody': is answered by subagents, which needs no approval"):
        dataclasses.replace(delegate("nobody"), policy="ask")


async def test_no_more_subagents_start_than_may_run(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second check, as by another worker, starts the same ones."""
    monkeypatch.setattr(Subagents, "_look_after", lambda _self, _chat_id: None)
    agents = family(lead(asks(*"abcde")), Research(held=True), settings=Settings(subagents_at_once=3))
    async with open_engine(None, agents=agents, settings=Settings(shutdown_grace=0)) as engine:
        chat = await sent(engine)
        await engine.wait(chat.id, until=["requires_action"], timeout=60)
        runtime = engine._handlers(changes=True)._runtime
        parent = await engine._store.facts(chat.id)
        for _ in range(2):
            await SubagentCalls(runtime, parent).answer()
            allowed = [subagent_id(chat.id, call.call_id) for call in parent.open_calls[:3]]
            assert sorted(await engine._store.children(chat.id)) == sorted(allowed)


async def test_blank_task_is_refused(open_engine: OpenEngine) -> None:
    async with open_engine(None, agents=family(lead(asks(" ", "two")), Research())) as engine:
        chat = await asked(engine)
        first, second = [one.result for one in await engine.messages(chat.id) if one.result is not None]
        assert (first.is_error, second.is_error) == (True, False)
        assert "task" in str(first.output)
        assert len(await engine.subagents(chat.id)) == 1


async def test_erased_task_is_answered_with_an_error(open_engine: OpenEngine) -> None:
    research = Research(held=True)
    agents = family(lead(asks("one", "two")), research, settings=Settings(subagents_at_once=1))
    async with open_engine(None, agents=agents) as engine:
        chat = await sent(engine)
        await research.working()
        await engine.erase_message(chat.id, "m2")
        research.gate.set()
        await engine.wait(chat.id, timeout=60)
        assert await outputs(engine, chat.id) == ["found one", "Not started: its task was erased."]


@pytest.mark.parametrize("then", ["interrupt", "erase"])
async def test_chat_changed_while_delegating_starts_no_subagent(
    open_engine: OpenEngine, database: Path, then: str
) -> None:
    """An orphan would call its model once before it is stopped; erasures do not reach subagents."""

    class Held(Delegate):
        latch = Latch()

        async def create(self, chat_id: str, plan: Any, **options: Any) -> Any:
            if options["parent"] is not None:
                await self.latch.pass_through()
            return await self._store.create(chat_id, plan, **options)

    store = Held(stored_at(database))
    async with open_engine(None, store=store, agents=family(lead(asks("one")), Research())) as engine:
        chat = await sent(engine)
        await store.latch.entered.wait()
        await (engine.interrupt(chat.id) if then == "interrupt" else engine.erase_message(chat.id, "m2"))
        store.latch.open()
        ended = await engine.wait(chat.id, timeout=60)
        assert ended.state == ("interrupted" if then == "interrupt" else "waiting")
        assert [one.id for one in (await engine.list_chats()).items] == [chat.id]


# What a subagent may answer, and what may become of it


VERBATIM: Final = [ModelPart("text_delta", text="a\0b"), ModelPart("finish", stop_reason="stop")]
ODD_OBJECT: Final = Call("final_answer", '{"a\\u0000": 123456789012345678901234567890}')
ANSWERING: Final = Agent("object", ScriptedModel(lambda _: Reply(calls=[ODD_OBJECT])), output={"type": "object"})
FAILING: Final = ScriptedModel(lambda _: Reply(error=ModelError("bad_request", message="odd \0 byte")))
ODD: Final = (
    (Agent("nul", ScriptedModel(lambda _: Reply(parts=VERBATIM))), "a\0b"),
    (ANSWERING, {"a\0": 123456789012345678901234567890}),
    (Agent("fails", FAILING), "The subagent could not finish its task: odd \0 byte"),
    (Agent("plain", ScriptedModel(lambda _: "plain")), "plain"),
)
"""Agents, and the result that a chat gets from each."""


@pytest.mark.parametrize("background", [False, True])
async def test_odd_answers_reach_the_parent(
    open_engine: OpenEngine, at: Mapping[str, Any], *, background: bool
) -> None:
    """Clients may not submit such results; models give them."""
    word = "start" if background else "ask"
    steps = [lambda _: [Call(f"{word}_{agent.name}", {"task": "say it"}) for agent, _ in ODD]]
    subagents = [agent for agent, _ in ODD]
    above = Agent(
        "lead",
        lead(*steps, *([waits] if background else [])),
        tools=[delegate(agent, background=background) for agent in subagents],
    )
    settings = Settings(describe_error=lambda error: getattr(error, "message", ""))
    async with open_engine(None, agents=[above, *subagents], settings=settings, **at) as engine:
        chat = await asked(engine)
        answers = await outputs(engine, chat.id)
        if background:
            *started, together = answers
            assert [one["subagent"] for one in together] == [one["subagent"] for one in started]
            answers = [one.get("answer", one.get("error")) for one in together]
        assert answers == [answer for _, answer in ODD]
        assert (await engine.verify(chat.id, family=True)).ok


@pytest.mark.parametrize("name", [None, 7, "a\0b", "\ud800"])
def test_text_that_no_database_takes_is_no_chat_id(name: object) -> None:
    assert not may_be_one(name)
    assert may_be_one("c")


def fail_to_read(patch: pytest.MonkeyPatch, failures: list[Exception]) -> None:
    """Raise these errors, one after another, when the answer of the subagent with the task "bad" is read."""
    last_words = SubagentCalls._last_words

    async def fails(look: SubagentCalls, subagent: Facts) -> Any:
        if subagent.profile.title == "bad" and failures:
            raise failures.pop()
        return await last_words(look, subagent)

    patch.setattr(SubagentCalls, "_last_words", fails)


@pytest.mark.parametrize("failure", [RuntimeError("a bug"), StoreError("for good")], ids=["bug", "store"])
@pytest.mark.parametrize("background", [False, True])
async def test_failed_call_does_not_affect_its_siblings(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, failure: Exception, *, background: bool
) -> None:
    fail_to_read(monkeypatch, [failure])
    steps = [starts("one", "bad", "two"), waits, waits] if background else [asks("one", "bad", "two")]
    async with open_engine(None, agents=family(lead(*steps), Research(), background=background)) as engine:
        chat = await asked(engine)
        answers = await outputs(engine, chat.id)
        if background:
            *_, together, nothing_more = answers
            assert nothing_more == []
            answers = [one.get("answer", one.get("error")) for one in together]
        assert answers == ["found one", f"This failed: {type(failure).__name__}.", "found two"]


async def test_transient_store_error_delays_one_call_only(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    away: list[Exception] = [StoreError("it is away", passing=True) for _ in range(1000)]
    fail_to_read(monkeypatch, away)
    agents = family(lead(asks("bad", "one", "two")), Research())
    async with open_engine(None, agents=agents, settings=Settings(poll_interval=0.05)) as engine:
        chat = await sent(engine)
        with anyio.fail_after(60):
            while len((await engine.get_chat(chat.id)).open_calls) > 1:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            away.clear()
            await engine.wait(chat.id)
        assert sorted(await outputs(engine, chat.id)) == ["found bad", "found one", "found two"]


DAMAGES: Final = {
    "unreadable message": ("UPDATE {}messages SET body = '{{'", "cannot be read"),
    "lost messages": ("DELETE FROM {}messages", "ended without an answer"),
    "unreadable profile": ("UPDATE {}profiles SET body = '{{'", "cannot be read"),
    "unreadable usage": ("UPDATE {}usage SET body = '{{'", None),
    "lost log": ("DELETE FROM {}audit", None),
    "deleted": (None, "was deleted"),
}
"""Damages of an answered subagent, and the error that its parent then gets."""


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_subagent_is_an_error_result(
    at: Mapping[str, Any], request: pytest.FixtureRequest, database: Path, damage: str
) -> None:
    """Whether the parent waits for it, stops it or lists it; other subagents are not affected."""
    url = at.get("store", f"sqlite:///{database}")
    sql, problem = DAMAGES[damage]
    plain = Agent("research", Research())
    async with Engine(url, agents=family(lead(starts("one", "bad")), plain, background=True)) as engine:
        chat = await asked(engine)
        good, bad = [one.id for one in await engine.subagents(chat.id)]
        for one in (good, bad):
            await engine.wait(one, until=["waiting"], timeout=60)
        if sql is None:
            await engine.delete_chat(bad)
    if sql is not None:
        _damage(url, sql, bad, request)

    def reads(_seen: list[Any]) -> list[Call]:
        return [Call("stop_subagent", {"subagent": bad}), *waits([]), Call("list_subagents", {})]

    async with Engine(url, agents=family(lead(reads), plain, background=True)) as engine:
        await engine.ask(chat.id, "read them", timeout=60)
        *_, stopped, (answer, damaged), listed = await outputs(engine, chat.id)
        assert (await engine.verify(chat.id)).ok
    assert answer == {"subagent": good, "answer": "found one"}
    assert damaged.get("answer") == ("found bad" if problem is None else None)
    assert (problem or "") in damaged.get("error", "")
    assert len(listed) == (1 if damage in ("unreadable profile", "deleted") else 2)
    assert stopped == {"subagent": bad, "state": "waiting"} or (problem or "?") in str(stopped)


def _damage(url: str, sql: str, chat_id: str, request: pytest.FixtureRequest) -> None:
    """Change rows of a chat while no engine has the store open."""
    _, is_postgres, schema = url.partition("&schema=")
    number = f"SELECT number FROM {schema + '.' if is_postgres else ''}chats WHERE id = '{chat_id}'"  # noqa: S608 - ours
    statement = f"{sql.format(f'{schema}.' if is_postgres else '')} WHERE chat = ({number})"
    if is_postgres:
        request.getfixturevalue("postgres").sql(statement)
    else:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as on, on:
            assert on.execute(statement).rowcount > 0
