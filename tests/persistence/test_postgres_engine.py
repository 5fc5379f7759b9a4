"""Whole lives of chats on PostgreSQL, through the engine that services hold."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import anyio
import asyncpg
import pytest

from turnwise import Agent, ClientTool, CompactionPolicy, Engine, Observer, Settings, ToolResult, tool, verify_export
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import StaleLease
from turnwise.states.names import ChatState
from turnwise.states.usage import Usage
from turnwise.testing import ManualClock

ASK = ClientTool("ask", "Ask the user.", {"type": "object", "properties": {}})


@tool(parallel_safe=True)
async def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


async def proven(engine: Engine, chat_id: str) -> None:
    """Check the chat's audit log, and that its events have no gap."""
    assert (await engine.verify(chat_id)).ok
    assert verify_export(await engine.export_audit(chat_id)).ok
    events = [event async for event in engine.events(chat_id, follow=False)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_a_whole_life(postgres_url: str) -> None:
    """Tools, the client's turn, a compaction, an edit and an erasure; the log of it verifies."""
    model = ScriptedModel(
        [
            Reply("I look.", calls=[Call("look", {"at": "a"}), Call("look", {"at": "b"}), Call("ask", {}, id="q")]),
            Reply("Both seen.", usage=Usage(input_tokens=90)),
            Reply("Done."),
            Reply("Edited."),
        ],
        context_limit=100,
    )
    settings = Settings(coalesce=0, compaction=CompactionPolicy(after_final_step="rest"))
    async with Engine(postgres_url, model=model, tools=[look], settings=settings) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        asked = await engine.ask(chat.id, "Look around.")
        assert [call.call_id for call in asked.open_calls] == ["q"]
        await engine.submit_tool_results(chat.id, [ToolResult("q", "yes")])
        rested = await engine.wait(chat.id, until=["waiting"])
        assert [message.text for message in await engine.messages(chat.id) if message.role == "assistant"] == [
            "I look.",
            "Both seen.",
        ]
        kinds = {event.kind async for event in engine.events(chat.id, follow=False)}
        assert {"compaction", "tool_result", "action_required", "part"} <= kinds
        assert (await engine.ask(chat.id, "And now?")).text == "Done."
        last = (await engine.messages(chat.id))[-2]
        await engine.edit_message(chat.id, last.id, "Or else?")
        rested = await engine.wait(chat.id, until=["waiting"])
        assert (await engine.messages(chat.id))[-1].text == "Edited."
        await proven(engine, chat.id)
        edited = (await engine.messages(chat.id))[-2]
        await engine.erase_message(chat.id, edited.id)
        assert (await engine.messages(chat.id))[-2].text == "[erased]"
        assert (await engine.verify(chat.id)).ok
        assert rested.usage.compaction is not None


async def test_a_deadline_passes_when_the_clock_is_moved(postgres_url: str) -> None:
    """A clock handed to the engine is the store's too."""
    clock = ManualClock()
    model = ScriptedModel([Reply(calls=[Call("ask", {}, id="q")]), Reply("No answer, then.")])
    async with Engine(postgres_url, model=model, clock=clock) as engine:
        chat = await engine.create_chat(client_tools=[ClientTool("ask", "Ask.", {"type": "object"}, deadline=60)])
        await engine.ask(chat.id, "Ask me.")
        await clock.advance(59)
        assert (await engine.get_chat(chat.id)).state == "requires_action"
        await clock.advance(2)
        rested = await engine.wait(chat.id, until=["waiting"])
        assert rested.stop_reason == "end_turn"
        assert (await engine.messages(chat.id))[-1].text == "No answer, then."
        await proven(engine, chat.id)


async def test_a_chat_moves_between_two_processes(postgres_url: str) -> None:
    """One accepts, the other works; what it streams is followed from the first."""
    front = Engine(postgres_url, model=ScriptedModel([]), settings=Settings(run_worker=False))
    back = Engine(postgres_url, model=ScriptedModel([Reply("Hello there.", chunks=3)]), settings=Settings(coalesce=0))
    async with front, back:
        chat = await front.create_chat()
        text = ""
        with anyio.fail_after(120):
            await front.send_message(chat.id, "Hello?")
            async for event in front.events(chat.id):
                if event.kind == "part" and event.part.delta:
                    text += event.part.delta
                if event.kind == "turn_finished":
                    break
        assert text == "Hello there."
        await proven(front, chat.id)


async def test_two_engines_share_the_work(postgres_url: str) -> None:
    """Every chat is answered once, by the one or the other."""
    models = [ScriptedModel("Yes.") for _ in range(2)]
    first, second = (Engine(postgres_url, model=model) for model in models)
    async with first, second:
        ids = [(await first.create_chat()).id for _ in range(20)]
        async with anyio.create_task_group() as tasks:
            for number, chat_id in enumerate(ids):
                tasks.start_soon((first, second)[number % 2].send_message, chat_id, "Well?")
        for chat_id in ids:
            await first.wait(chat_id, until=["waiting"])
            assert [message.text for message in await second.messages(chat_id)] == ["Well?", "Yes."]
            await proven(second, chat_id)
    assert sum(len(model.requests) for model in models) == 20


async def test_an_erased_secret_is_in_no_table(postgres_server: str, postgres_url: str) -> None:
    """Said, answered, asked of a tool and of the client: nothing of it is left but digests."""
    secret = "tr0ub4dor"  # noqa: S105 - it is to be found nowhere
    calls = [Call("look", {"at": secret}), Call("ask", {"p": secret}, id="q")]
    model = ScriptedModel([Reply(f"I see {secret}", calls=calls), "Fine."])
    async with Engine(postgres_url, model=model, tools=[look], settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, f"It is {secret}")
        await engine.submit_tool_results(chat.id, [ToolResult("q", f"yes, {secret}")])
        await engine.wait(chat.id, until=["waiting"])
        for message in await engine.messages(chat.id):
            await engine.erase_message(chat.id, message.id)
        assert (await engine.verify(chat.id)).ok
    schema = postgres_url.rpartition("schema=")[2]
    beside = await asyncpg.connect(postgres_server, server_settings={"search_path": schema})
    tables = await beside.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    dump = [await beside.fetch(f"SELECT * FROM {table}") for (table,) in tables]  # noqa: S608 - our own tables
    await beside.close()
    assert chat.id in str(dump)
    assert secret not in str(dump)


class Waits(Observer):
    """An observer that keeps how long chats wait."""

    def __init__(self) -> None:
        self.seconds: list[Mapping[str, float]] = []

    def waiting(self, seconds: Mapping[str, float]) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize("ahead", [-7200, 7200])
async def test_how_long_a_chat_waits_is_told_by_the_databases_clock(postgres_url: str, ahead: float) -> None:
    """An alarm is set on it, and the clocks of workers may differ."""
    async with Engine(postgres_url, model="demo", settings=Settings(run_worker=False)) as client:
        chat = await client.create_chat()
        await client.send_message(chat.id, "hi")
        clock, waits = ManualClock(datetime.now(UTC) + timedelta(seconds=ahead)), Waits()
        agents = [Agent("research", "demo")]
        async with Engine(PostgresStore(postgres_url), agents=agents, observers=[waits], clock=clock):
            with anyio.fail_after(60):
                while not waits.seconds:  # noqa: ASYNC110 - an observer tells nobody
                    await anyio.sleep(0.01)
        assert 0 < waits.seconds[0]["default"] < 3600


async def test_an_interrupt_settles_a_chat_whose_lease_has_run_out(postgres_url: str) -> None:
    """It keeps what was shown until then; the worker that let the lease run out can show no more."""
    time = datetime(2026, 1, 1, tzinfo=UTC)
    store = PostgresStore(postgres_url, now=lambda: time)
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        begun = (plans.send("hello"), plans.claim("elsewhere", lease=30), plans.start())
        for chat_id in ("live", "gone"):
            await plans.created(store, chat_id, *begun)
            await store.journal(chat_id, 1, ChatState.streaming, [part("Hel")])
        assert not (await engine.interrupt("live")).settled
        time += timedelta(seconds=30)
        assert (await engine.interrupt("gone")).settled
        assert [message.text for message in await engine.messages("gone")] == ["hello", "Hel"]
        assert (await engine.interrupt("live")).settled
        with pytest.raises(StaleLease):
            await store.journal("gone", 1, ChatState.streaming, [part("lo")])
        await proven(engine, "gone")
