"""What callers get of a chat: copies of their own, and what can be read of a damaged one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.engines import MakeModel, OpenEngine
from support.life import ERROR, NOW, asking, queued, waiting
from turnwise import ToolResult, tool
from turnwise.engine.results import chat_of
from turnwise.persistence.stored_chat import Flaw, Salvaged
from turnwise.providers.scripted import Call, Reply
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState

METADATA = {"cart": {"n": 1}, "items": ["milk"]}
ARGUMENTS = {"cents": 100, "to": {"iban": "DE1"}}


async def test_returned_values_are_copies(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """What callers change in them is neither stored nor run."""
    paid: list[Any] = []

    @tool(schema={"type": "object"}, policy="ask")
    async def pay(**arguments: Any) -> str:
        """Pay."""
        paid.append(arguments)
        return "paid"

    model = strict_model([Reply(calls=[Call("pay", ARGUMENTS, id="p")]), "Done."])
    async with open_engine(model, tools=[pay]) as engine:
        chat = await engine.create_chat(metadata=METADATA)
        result = await engine.ask(chat.id, "Pay!")
        for read in (chat, result.chat, await engine.get_chat(chat.id), (await engine.list_chats()).items[0]):
            read.metadata["cart"]["n"] = 2
            read.metadata["items"].append("eggs")
            for call in (*read.open_calls, *result.open_calls, *result.messages[-1].calls):
                call.arguments["to"]["iban"] = "***"
        await engine.submit_tool_results(chat.id, [ToolResult("p", {"approved": True})])
        await engine.wait(chat.id)
        assert (await engine.get_chat(chat.id)).metadata == METADATA
        assert [call.arguments for call in (await engine.messages(chat.id))[1].calls] == paid == [ARGUMENTS]


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
def test_damaged_chat_is_unreadable_without_open_calls(has_error: bool) -> None:
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
