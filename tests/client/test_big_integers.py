"""Whole numbers of any size stay exact in all JSON, as in Python."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from support.served import served
from turnwise import Chat, ClientTool, Engine, InvalidContent, ToolResult, tool
from turnwise.client import Client
from turnwise.providers.scripted import Call, Reply, ScriptedModel

NUMBERS = [2**53 + 1, 2**64 + 1, -(10**30) - 7, 10**4299 + 1]
OBJECT = {"type": "object", "properties": {}}


def script(numbers: Mapping[str, Any]) -> ScriptedModel:
    calls = [Call("double", json.dumps(numbers)), Call("ask", numbers), Call("pay", {"numbers": [1]})]
    return ScriptedModel([Reply(calls=calls), Reply("Done.")])


@tool
async def double(numbers: list[int]) -> dict[str, list[int]]:
    """Double numbers."""
    return {"doubled": [2 * number for number in numbers]}


@tool(policy="ask")
async def pay(numbers: list[int]) -> list[int]:
    """Pay amounts."""
    return numbers


async def lived(chats: Engine | Client) -> Chat:
    """Send numbers through metadata, calls, results, edits, and an export that is imported again."""
    asked = ClientTool("ask", "Ask.", OBJECT)
    chat = await chats.create_chat(metadata={"numbers": NUMBERS}, client_tools=[asked])
    await chats.send_message(chat.id, "Go.")
    chat = await chats.wait(chat.id, until=["requires_action"], timeout=120)
    edit = {"approved": True, "arguments": {"numbers": NUMBERS}}
    answers = {"ask": {"numbers": NUMBERS}, "pay": edit}
    for call in chat.open_calls:
        assert call.name != "ask" or call.arguments == {"numbers": NUMBERS}
    results = [ToolResult(call.call_id, answers[call.name]) for call in chat.open_calls]
    await chats.submit_tool_results(chat.id, results)
    assert (await chats.submit_tool_results(chat.id, results)).replayed
    return await chats.wait(chat.id, until=["waiting"], timeout=120)


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgresql", marks=pytest.mark.deep)])
@pytest.mark.parametrize("remote", [False, True])
async def test_whole_numbers_of_any_size_round_trip(
    store: str, remote: bool, new_store: Callable[[str, str], str]
) -> None:
    here = Engine(new_store(store, "here"), model=script({"numbers": NUMBERS}), tools=[double, pay])
    async with served(here) as service, Client(service.url, token="operator-token") as client:
        chats = client if remote else here
        chat = await lived(chats)
        with pytest.raises(InvalidContent):
            await chats.create_chat(metadata={"number": 10**4300})
        async with Engine(new_store(store, "there"), model="demo") as there:
            moved = await there.import_chat(chats.export_chat(chat.id))
            assert moved.metadata == chat.metadata == {"numbers": NUMBERS}
            assert (await there.verify(moved.id)).ok
            for place in (chats, there):
                outputs = [one.result.output for one in await place.messages(chat.id) if one.result]
                assert outputs == [{"doubled": [2 * number for number in NUMBERS]}, {"numbers": NUMBERS}, NUMBERS]
                calls = [call.arguments for one in await place.messages(chat.id) for call in one.calls]
                assert calls == [{"numbers": NUMBERS}, {"numbers": NUMBERS}, {"numbers": [1]}]
        result = here.transcript if not remote else client.transcript
        assert [one.result.edited_arguments for one in (await result(chat.id)).messages if one.result][2] == {
            "numbers": NUMBERS
        }
