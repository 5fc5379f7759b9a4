"""Histories of other libraries become histories that chats begin with."""

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, messages_to_dict
from pydantic_ai import messages as theirs

from turnwise import Engine, InvalidArgument
from turnwise.importers import ImportedChat, from_langchain, from_openai_agents, from_pydantic_ai
from turnwise.testing import StrictModel

CALL: Any = {"name": "price", "args": {"to": "Lyon"}, "id": "c1", "type": "tool_call"}
LANGCHAIN = [
    SystemMessage("You sell parcels."),
    HumanMessage([{"type": "text", "text": "A parcel to Lyon?"}]),
    AIMessage([{"type": "text", "text": "Let me see."}, {"type": "tool_use", "id": "c1"}], tool_calls=[CALL]),
    ToolMessage("450", tool_call_id="c1", name="price"),
    AIMessage("4.50 euros."),
]
OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "You sell parcels."},
    {"role": "user", "content": [{"type": "input_text", "text": "A parcel to Lyon?"}]},
    {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "..."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
    {"type": "function_call", "call_id": "c1", "name": "price", "arguments": '{"to": "Lyon"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "450"},
    {"role": "assistant", "content": "4.50 euros."},
]
PYDANTIC_AI: list[theirs.ModelMessage] = [
    theirs.ModelRequest([theirs.SystemPromptPart("You sell parcels."), theirs.UserPromptPart("A parcel to Lyon?")]),
    theirs.ModelResponse([theirs.TextPart("Let me see."), theirs.ToolCallPart("price", '{"to": "Lyon"}', "c1")]),
    theirs.ModelRequest([theirs.ToolReturnPart("price", "450", "c1")]),
    theirs.ModelResponse([theirs.TextPart("4.50 euros.")]),
]
IMPORTED = {
    "langchain": from_langchain(LANGCHAIN),
    "langchain's JSON": from_langchain(json.loads(json.dumps(messages_to_dict(LANGCHAIN)))),
    "openai-agents": from_openai_agents(OPENAI),
    "pydantic-ai": from_pydantic_ai(PYDANTIC_AI),
    "pydantic-ai's JSON": from_pydantic_ai(theirs.ModelMessagesTypeAdapter.dump_json(PYDANTIC_AI)),
}


@pytest.mark.parametrize("imported", IMPORTED.values(), ids=IMPORTED.keys())
async def test_chat_goes_on_from_an_imported_history(imported: ImportedChat) -> None:
    model = StrictModel(["9 euros."])
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat(system=imported.system, history=imported.history)
        await engine.ask(chat.id, "And two?")
        messages = await engine.messages(chat.id)
    assert [(one.role, one.text) for one in messages] == [
        ("user", "A parcel to Lyon?"),
        ("assistant", "Let me see."),
        ("tool", ""),
        ("assistant", "4.50 euros."),
        ("user", "And two?"),
        ("assistant", "9 euros."),
    ]
    (call,), result = messages[1].calls, messages[2].result
    assert (call.call_id, call.name, call.arguments) == ("c1", "price", {"to": "Lyon"})
    assert result is not None
    assert (result.call_id, result.name, result.output) == ("c1", "price", "450")
    assert model.requests[0].system == "You sell parcels."


async def test_call_without_a_result_gets_one_that_says_so() -> None:
    imported = from_openai_agents(OPENAI[:5])
    async with Engine("sqlite://", model=StrictModel(["It failed."])) as engine:
        chat = await engine.create_chat(history=imported.history)
        *_, last = await engine.messages(chat.id)
    assert last.result is not None
    assert (last.result.outcome, last.result.output) == ("cancelled", "No result of this call was imported.")


@pytest.mark.parametrize(
    ("convert", "given"),
    [
        (from_langchain, [{"type": "video", "data": {"type": "video"}}]),
        (from_langchain, [HumanMessage([{"type": "video", "url": "x"}])]),
        (from_openai_agents, [{"type": "image_generation_call"}]),
        (from_pydantic_ai, [{"kind": "request", "parts": [{"part_kind": "film"}]}]),
    ],
)
def test_what_cannot_be_imported_is_named(convert: Any, given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^(messages|items)\[0\]: .*(video|image_generation_call|film)"):
        convert(given)
