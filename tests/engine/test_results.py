"""What callers get of a chat: copies of their own, and what can be read of a damaged one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from support.engines import MakeModel, OpenEngine
from support.life import ERROR, NOW, asking, queued, waiting
from turnwise import (
    Engine,
    Tool,
    ToolResult,
    tool,
)
from turnwise.engine.results import chat_of
from turnwise.persistence.stored_chat import Flaw, Salvaged
from turnwise.providers.scripted import Call, Reply
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState

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
        answered = await engine.ask(made.id, "Pay!")
        spoil([answered.chat, answered.open_calls, answered.messages])
        taken = await TAKEN[what](engine, made.id)
        spoil(getattr(taken, "items", taken))
        spoil(getattr(taken, "chat", None))
        spoil(getattr(taken, "open_calls", None))
        spoil(getattr(taken, "messages", None))
        await engine.submit_tool_results(made.id, [ToolResult("p", {"approved": True})])
        await engine.wait(made.id)
        assert paid == [ARGUMENTS]
        await assert_unspoilt(engine, made.id)


# Chats


def facts(**fields: Any) -> Facts:
    known = waiting().facts
    profile = replace(known.profile, owner="ann", title="A title", metadata={"a": 1}, parent="p", system="secret")
    return replace(known, profile=profile, **fields)


def test_open_calls_have_no_salt() -> None:
    life = queued(asking(), "one", "two")
    salted = tuple(replace(call, salt="secret") for call in life.facts.calls)
    chat = chat_of(replace(life.facts, calls=salted))
    assert [call.call_id for call in chat.open_calls] == [call.call_id for call in salted] != []
    assert [call.salt for call in chat.open_calls] == [""] * len(salted)
    assert chat.queued == 2


@pytest.mark.parametrize("has_error", [True, False])
def test_damaged_chat_is_unreadable_without_open_calls(has_error: bool) -> None:  # noqa: FBT001
    known = replace(asking().facts, last_error=ERROR if has_error else None)
    chat = chat_of(Salvaged(known, (Flaw("chats.turn", "is no JSON"),)))
    assert "chats.turn" in (chat.unreadable or "")
    assert chat.open_calls == []
    assert chat.last_error is not None
    assert (chat.last_error == ERROR) == has_error
    assert has_error or chat.last_error.kind == "unreadable"
    assert (chat.id, chat.state) == ("c", ChatState.requires_action)


def test_unknown_state_is_a_flaw() -> None:
    chat = chat_of(facts(stored_state="odd" * 50))
    assert "chats.state" in (chat.unreadable or "")
    assert "odd" * 30 not in (chat.unreadable or "")
    assert chat_of(facts(updated_at=None)).updated_at == NOW
    assert chat_of(facts()).unreadable is None
