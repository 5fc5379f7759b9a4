"""What is handed out is the taker's own: what he changes in it nobody else sees, the engine above all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from support.engines import MakeModel, OpenEngine
from turnwise import (
    Engine,
    Event,
    Tool,
    ToolResult,
    tool,
)
from turnwise.providers.scripted import Call, Reply

ARGUMENTS = {"cents": 100, "to": {"iban": "DE1"}}
METADATA = {"cart": {"n": 1}, "items": ["milk"]}


def spoil(value: Any) -> None:
    """Change every dict and every list in a value, at every depth."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            spoil(getattr(value, name))
    elif isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
        value.update(cents=7, iban="***", spoilt=True)
    elif isinstance(value, list | tuple):
        for inner in value:
            spoil(inner)
        if isinstance(value, list):
            value.append("spoilt")


def payments(**options: Any) -> tuple[list[Any], Tool]:
    paid: list[Any] = []

    @tool(name="pay", description="Pay.", schema={"type": "object"}, **options)
    async def pay(**arguments: Any) -> dict[str, Any]:
        paid.append(msgspec.json.decode(msgspec.json.encode(arguments)))
        spoil(arguments)
        return {"paid": {"cents": arguments["cents"] and 100}}

    return paid, pay


async def assert_unspoilt(engine: Engine, chat_id: str) -> None:
    """Nothing was changed, in what is stored, what is read of it, or what the next commit writes."""
    await engine.rename(chat_id, "Another title")
    assert (await engine.get_chat(chat_id)).metadata == METADATA
    messages = await engine.messages(chat_id)
    assert [call.arguments for message in messages for call in message.calls] == [ARGUMENTS]
    assert [message.result.output for message in messages if message.result] == [{"paid": {"cents": 100}}]
    assert "spoilt" not in await engine.export_audit(chat_id)
    assert (await engine.verify(chat_id)).ok


Take = Callable[[Engine, str], Any]
TAKEN: dict[str, Take] = {
    "get_chat": lambda engine, chat_id: engine.get_chat(chat_id),
    "rename": lambda engine, chat_id: engine.rename(chat_id, "t"),
    "configure": lambda engine, chat_id: engine.configure(chat_id, parameters={"temperature": 0.5}),
    "list_chats": lambda engine, _: engine.list_chats(),
    "send_message": lambda engine, chat_id: engine.send_message(chat_id, "And?"),
    "transcript": lambda engine, chat_id: engine.transcript(chat_id),
    "explain": lambda engine, chat_id: engine.explain(chat_id),
    "messages": lambda engine, chat_id: engine.messages(chat_id, view="raw"),
}


@pytest.mark.parametrize("what", TAKEN)
async def test_changing_returned_values_changes_nothing_stored(
    open_engine: OpenEngine, strict_model: MakeModel, what: str
) -> None:
    paid, pay = payments(policy="ask")
    model = strict_model([Reply(calls=[Call("pay", ARGUMENTS, id="p")]), "Done.", "Yes."])
    async with open_engine(model, tools=[pay]) as engine:
        made = await engine.create_chat(metadata=METADATA)
        spoil(made)
        asked = await engine.ask(made.id, "Pay!")
        spoil([asked.chat, asked.open_calls, asked.messages])
        taken = await TAKEN[what](engine, made.id)
        spoil(getattr(taken, "items", taken))
        spoil(getattr(taken, "chat", None))
        spoil(getattr(taken, "open_calls", None))
        spoil(getattr(taken, "messages", None))
        await engine.submit_tool_results(made.id, [ToolResult("p", {"approved": True})])
        await engine.wait(made.id)
        assert paid == [ARGUMENTS]
        await assert_unspoilt(engine, made.id)


async def test_changing_events_changes_nothing_stored(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    paid, pay = payments()
    model = strict_model([Reply(calls=[Call("pay", ARGUMENTS)]), "Done.", "Yes."])
    async with open_engine(model, tools=[pay]) as engine:
        chat = await engine.create_chat(metadata=METADATA)
        read: list[Event] = []

        async def mask() -> None:
            async for event in engine.events(chat.id):
                spoil(event)
                if event.kind == "turn_finished":
                    return

        async def note() -> None:
            async for event in engine.events(chat.id):
                read.append(event)
                if event.kind == "turn_finished":
                    return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mask)
            tasks.start_soon(note)
            await anyio.wait_all_tasks_blocked()
            await engine.send_message(chat.id, "Pay!")
        assert paid == [ARGUMENTS]
        assert read == [event async for event in engine.events(chat.id, follow=False)]
        await engine.ask(chat.id, "Was it paid?")
        assert "spoilt" not in str(model.requests)
        await assert_unspoilt(engine, chat.id)
