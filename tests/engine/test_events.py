"""Events: one gapless sequence that tells the same whenever one joins, and never what is not for the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from msgspec.json import encode

from support.chats import said
from support.engines import MakeModel, OpenEngine
from support.eventful_life import look, rich_life, rich_script
from support.events import assert_told_right, events_of, seen
from support.latches import Gate
from turnwise import (
    ChatState,
    ModelPart,
    Settings,
    ToolContext,
    fold,
    tool,
)
from turnwise.providers.scripted import Call, Reply
from turnwise.states.events import MessageEvent, StatusEvent
from turnwise.testing.clock import ManualClock

QUICK = Settings(coalesce=0)


@tool
async def report(context: ToolContext) -> str:
    """Report a lot, and go on when all of it is stored."""
    for number in range(1200):
        context.report(number)
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    return "reported"


async def test_joining_at_any_event_gives_same_transcript(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model(rich_script(), context_limit=100)
    async with open_engine(model, settings=QUICK, tools=[look], clock=clock) as engine:
        chat_id = await rich_life(engine, clock)
        await assert_told_right(engine, chat_id)
        whole = await events_of(engine, chat_id)
    assert {event.kind for event in whole} == {
        "status",
        "message",
        "part",
        "tool_result",
        "tool_progress",
        "queue",
        "action_required",
        "retry",
        "attempt_discarded",
        "compaction",
        "history_reset",
        "turn_finished",
    }
    async with open_engine(model, settings=Settings(run_worker=False)) as elsewhere:
        for known in range(len(whole) + 1):
            rest = await events_of(elsewhere, chat_id, after=known)
            assert rest == whole[known:]
            assert fold(rest, fold(whole[:known])) == fold(whole)


async def test_live_reader_sees_what_is_stored(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model(["x" * 200, Reply("y" * 300, chunks=1)])
    async with open_engine(model, settings=QUICK) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        start = len(await events_of(engine, chat.id))
        told: dict[int, list[Any]] = {}

        async def read(after: int) -> None:
            told[after] = []
            async for event in engine.events(chat.id, after=after):
                told[after].append(event)
                if event.kind == "turn_finished" and event.turn == 2:
                    return

        async with anyio.create_task_group() as tasks:
            for after in range(0, start + 1, 3):
                tasks.start_soon(read, after)
            await engine.send_message(chat.id, "go on")
            await seen(engine, chat.id, "part", step=2)
            tasks.start_soon(read, start + 2)
        stored = await events_of(engine, chat.id)
        for after, events in told.items():
            assert events == stored[after:]


async def test_slow_reader_misses_nothing(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model([Reply("", calls=[Call("report", {})]), "done"])
    async with open_engine(model, settings=QUICK, tools=[report]) as engine:
        chat = await engine.create_chat()
        reader = engine.events(chat.id)
        await engine.send_message(chat.id, "hello")
        first = await anext(reader)
        assert (await engine.wait(chat.id)).state == "waiting"
        stored = await events_of(engine, chat.id)
        late = [first]
        async for event in reader:
            late.append(event)
            if event.seq == stored[-1].seq:
                break
        await reader.aclose()  # type: ignore[attr-defined]
        assert len(late) > 1000
        assert late == stored


async def test_provider_metadata_and_prompts_are_never_shown(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    hidden = {"secret": "do-not-show"}
    parts = [
        ModelPart("reasoning_delta", text="think", signature="sig", metadata=hidden),
        ModelPart("text_delta", text="searching", metadata=hidden),
        ModelPart("tool_call", id="p", name="search", arguments={}, executor="provider", metadata=hidden),
        ModelPart("provider_result", call_id="p", output="found", metadata=hidden),
        ModelPart("source", url="https://example.org", metadata=hidden),
        ModelPart("tool_call", id="l", name="look", arguments={}, metadata=hidden),
        ModelPart("finish", usage=Reply(usage=(80, 1)).usage, metadata=hidden),  # type: ignore[arg-type]
    ]
    parts[-1] = ModelPart("finish", context_limit=10, metadata=hidden)
    model = strict_model([Reply(parts=parts), "done"], summary="the summary in confidence")
    async with open_engine(model, settings=QUICK, tools=[look]) as engine:
        chat = await engine.create_chat(system="a system prompt in confidence")
        await engine.ask(chat.id, "hello, " * 20)
        shown = "".join(encode(event).decode() for event in await events_of(engine, chat.id))
        shown += "".join(encode(message).decode() for message in await engine.messages(chat.id))
        assert "searching" in shown
        assert "found" in shown
        assert "do-not-show" not in shown
        assert "in confidence" not in shown
        await assert_told_right(engine, chat.id)


async def test_provider_metadata_returns_to_provider(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    parts = [ModelPart("text_delta", text="hi", metadata={"id": "abc"}), ModelPart("finish")]
    model = strict_model([Reply(parts=parts), "done"])
    async with open_engine(model, settings=QUICK) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        await engine.ask(chat.id, "again")
        assert model.requests[1].messages[1].parts[0].metadata == {"id": "abc"}


async def test_status_follows_the_messages_it_implies(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model(rich_script(), context_limit=100)
    async with open_engine(model, settings=QUICK, tools=[look], clock=clock) as engine:
        chat_id = await rich_life(engine, clock)
        last: str | None = None
        for event in await events_of(engine, chat_id):
            if isinstance(event, MessageEvent):
                last = event.message.role
            elif isinstance(event, StatusEvent):
                expected = {
                    ChatState.pending: {"user", "tool"},
                    ChatState.executing_tools: {"assistant"},
                    ChatState.requires_action: {"system"},  # the marker of the compaction before
                    ChatState.waiting: {None, "assistant", "system"},
                }
                assert last in expected.get(event.state, {last})


async def test_reader_in_another_process_follows(
    open_engine: OpenEngine, strict_model: MakeModel, database: Path
) -> None:
    work = Gate()
    model = strict_model([Reply("", calls=[Call("work", {})]), "done"])
    async with (
        open_engine(model, settings=QUICK, tools=[work.tool]) as engine,
        open_engine(model, settings=Settings(run_worker=False)) as elsewhere,
    ):
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await seen(elsewhere, chat.id, "status", state=ChatState.executing_tools)
        await work.entered.wait()
        work.open.set()
        await seen(elsewhere, chat.id, "turn_finished")
        assert (await elsewhere.wait(chat.id)).state == "waiting"
        assert said(await elsewhere.messages(chat.id))[-1] == ("assistant", "done")
