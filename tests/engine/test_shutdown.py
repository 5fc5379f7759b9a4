"""Shutdown: another engine on the same database continues interrupted work, and reports its outcome."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.chats import contents

from support.engines import MakeModel, OpenEngine
from support.events import assert_told_right, events_of, shown
from support.latches import Gate
from turnwise import ChatState, Settings
from turnwise.providers.scripted import Call, Reply
from turnwise.states.events import AttemptDiscardedEvent, StatusEvent

AT_ONCE = Settings(coalesce=0, shutdown_grace=0)


def never_rested(states: list[ChatState]) -> bool:
    """Return whether the chat worked from its first message to its last state."""
    return not set(states[1:-1]) & {ChatState.interrupted, ChatState.waiting, ChatState.error}


async def states_of(engine: Any, chat_id: str) -> list[ChatState]:
    return [event.state for event in await events_of(engine, chat_id) if isinstance(event, StatusEvent)]


async def cut_off(open_engine: OpenEngine, model: Any, work: Gate, **options: Any) -> str:
    """Shut an engine down while its chat runs the tool; return the chat."""
    async with open_engine(model, settings=AT_ONCE, tools=[work.tool], **options) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await work.entered.wait()
    work.open.set()
    return str(chat.id)


@pytest.mark.parametrize(
    ("crash", "runs", "output"), [("at_least_once", 2, "work done"), ("at_most_once", 1, "Outcome unknown")]
)
async def test_cancelled_tool_ends_as_its_crash_class_says(
    open_engine: OpenEngine, strict_model: MakeModel, crash: str, runs: int, output: str
) -> None:
    work = Gate(crash=crash)
    model = strict_model([Reply("", calls=[Call("work", {})]), "done"])
    chat_id = await cut_off(open_engine, model, work)
    assert work.cancelled == 1
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.get_chat(chat_id)).state == "pending"
    async with open_engine(model, settings=AT_ONCE, tools=[work.tool]) as engine:
        assert (await engine.wait(chat_id)).state == "waiting"
        assert len(work.runs) == runs
        assert len({context.idempotency_key for context in work.runs}) == 1
        history = contents(await engine.messages(chat_id))
        assert str(history[2][1]).startswith(output)
        assert history[3] == ("assistant", "done")
        assert never_rested(await states_of(engine, chat_id))
        await assert_told_right(engine, chat_id)


async def test_reply_cut_off_by_shutdown_is_made_again(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model([Reply("Hello", chunks=["Hel", "lo"], stall_after=1), "Hello"])
    async with open_engine(model, settings=AT_ONCE) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await shown(engine, chat.id, "Hel")
    async with open_engine(model, settings=AT_ONCE) as engine:
        assert (await engine.wait(chat.id)).state == "waiting"
        assert contents(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]
        events = await events_of(engine, chat.id)
        assert [event.attempt for event in events if isinstance(event, AttemptDiscardedEvent)] == [1]
        assert never_rested(await states_of(engine, chat.id))
        await assert_told_right(engine, chat.id)
