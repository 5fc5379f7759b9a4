"""Histories of other libraries become imported histories."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, messages_to_dict
from pydantic_ai import messages as theirs

from turnwise import Engine, InvalidArgument
from turnwise.importers import ImportedChat, from_langchain, from_openai_agents, from_pydantic_ai
from turnwise.states.messages import FilePart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus
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


def call(arguments: dict[str, Any], call_id: str = "c1") -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name="price", arguments=arguments)


def result(output: Any, outcome: CallStatus, *, is_error: bool = False, call_id: str = "c1") -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="price", output=output, outcome=outcome, is_error=is_error)


def asked(arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "price", "arguments": arguments}


def request(**part: Any) -> dict[str, Any]:
    return {"kind": "request", "parts": [part]}


HI, AT = TextPart(text="Hi"), datetime(2026, 1, 2, tzinfo=UTC)
NONE = result("No result of this call was imported.", CallStatus.cancelled)
PICTURE = theirs.BinaryContent(b"\0\0\0", media_type="image/gif")
GIF = FilePart(media_type="image/gif", data="AAAA")
LINK = FilePart(media_type="image/png", url="https://example.org/a.png")
ASK = theirs.ModelResponse([theirs.ToolCallPart("price", {}, "c1")])
EACH_KIND: list[tuple[Any, list[Any], list[tuple[Any, ...]]]] = [
    (
        from_langchain,
        [
            AIMessage(""),
            HumanMessage(
                [
                    "Hi",
                    {"type": "image_url", "image_url": {"url": "data:image/gif;base64,AAAA"}},
                    {"type": "image_url", "image_url": LINK.url},
                    {"type": "image_url", "image_url": "data:;base64,AAAA"},
                ]
            ),
            AIMessage([{"type": "text", "text": " "}, "Hi"], tool_calls=[{**CALL, "args": {}}]),
            ToolMessage("broken", tool_call_id="c1", status="error"),
            ToolMessage("of no call", tool_call_id="c9"),
            HumanMessage(""),
        ],
        [
            ("user", HI, GIF, LINK, FilePart(media_type="image/png", data="AAAA")),
            ("assistant", HI, call({})),
            ("tool", result("broken", CallStatus.failed, is_error=True)),
        ],
    ),
    (
        from_openai_agents,
        [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            *(asked(arguments, f"c{place}") for place, arguments in enumerate(("", "{", "[1]", {"to": "Lyon"}))),
            *({"type": "function_call_output", "call_id": f"c{place}", "output": place} for place in range(3)),
            {"role": "assistant", "content": "Hi"},
            asked("{}"),
            {"role": "user", "content": "Hi"},
        ],
        [
            (
                "assistant",
                TextPart(text="No."),
                call({}, "c0"),
                call({"arguments": "{"}),
                call({"arguments": [1]}, "c2"),
                call({"to": "Lyon"}, "c3"),
            ),
            *(("tool", result(place, CallStatus.succeeded, call_id=f"c{place}")) for place in range(3)),
            ("tool", result(NONE.output, CallStatus.cancelled, call_id="c3")),
            ("assistant", HI, call({})),
            ("tool", NONE),
            ("user", HI),
        ],
    ),
    (
        from_pydantic_ai,
        [
            theirs.ModelRequest([theirs.UserPromptPart(["Hi", PICTURE, theirs.ImageUrl(str(LINK.url))])]),
            theirs.ModelResponse([theirs.ThinkingPart("Hm."), theirs.NativeToolCallPart("web_search", {}, "w1")]),
            ASK,
            request(part_kind="retry-prompt", content="No such town.", tool_name="price", tool_call_id="c1"),
            ASK,
            theirs.ModelRequest([theirs.ToolReturnPart("price", "denied", "c1", outcome="denied")]),
            ASK,
            theirs.ModelRequest([theirs.RetryFeedbackPart("Hi", retry=theirs.RetryInfo("model_retry"))]),
            request(part_kind="retry-prompt", content=[{"type": "missing"}]),
            request(part_kind="user-prompt", content=[{"data": "AAAA", "media_type": "image/gif"}]),
            theirs.ModelRequest([theirs.UserPromptPart([theirs.TextContent("Hi")])]),
        ],
        [
            ("user", HI, GIF, LINK),
            ("assistant", ReasoningPart(text="Hm."), call({})),
            ("tool", result("No such town.", CallStatus.failed, is_error=True)),
            ("assistant", call({})),
            ("tool", result("denied", CallStatus.failed, is_error=True)),
            ("assistant", call({})),
            ("tool", NONE),
            ("user", HI),
            ("user", TextPart(text='[{"type": "missing"}]')),
            ("user", GIF),
            ("user", HI),
        ],
    ),
]


@pytest.mark.parametrize(("convert", "source", "wanted"), EACH_KIND, ids=["langchain", "openai-agents", "pydantic-ai"])
def test_each_kind_of_part_is_imported(convert: Any, source: Any, wanted: Any) -> None:
    """Blank messages and results of no call are left out; a call without a result gets one before the next message."""
    imported = convert(source)
    assert [(message.role, *message.parts) for message in imported.history] == wanted
    assert imported.system == ("Be kind." if convert is from_openai_agents else None)


def test_origin_and_times_of_pydantic_ai_are_kept() -> None:
    response = theirs.ModelResponse([theirs.TextPart("Hi")], model_name="opus", provider_name="anthropic", timestamp=AT)
    replies = [response, theirs.ModelResponse([theirs.TextPart("!")], model_name="other")]
    user = theirs.UserPromptPart("Hi", timestamp=AT.replace(tzinfo=None))
    before = datetime.now(UTC)
    source = theirs.ModelMessagesTypeAdapter.dump_json([theirs.ModelRequest([user]), *replies])
    question, reply = from_pydantic_ai(source).history
    assert (reply.model, reply.provider, reply.created_at, reply.text) == ("opus", "anthropic", AT, "Hi!")
    assert question.created_at >= before, "a time without a zone is none"


@pytest.mark.parametrize(
    ("convert", "source"),
    [
        (from_langchain, [{"type": "video", "data": {"type": "video"}}]),
        (from_langchain, [HumanMessage([{"type": "video", "url": "x"}])]),
        (from_langchain, [HumanMessage([{"type": "image_url", "image_url": {"video": 1}}])]),
        (from_openai_agents, [{"type": "image_generation_call"}]),
        (from_openai_agents, [{"role": "film", "content": "x"}]),
        (from_pydantic_ai, [{"kind": "film"}]),
        (from_pydantic_ai, [request(part_kind="film")]),
        (from_pydantic_ai, [{"kind": "response", "parts": [{"part_kind": "film"}]}]),
        (
            from_pydantic_ai,
            [request(part_kind="user-prompt", content=[{"kind": "film"}])],
        ),
    ],
)
def test_what_cannot_be_imported_is_named(convert: Any, source: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=r"^(messages|items)\[0\]: .*(video|image_url|image_generation_call|film)"
    ):
        convert(source)


TIME = "2026-01-01T00:00:00Z"
CALLED = {"tool_name": "f", "tool_call_id": "c1"}
PYDANTIC_AI: Any = [
    {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "hi", "timestamp": TIME}]},
    {"kind": "response", "parts": [{"part_kind": "tool-call", "args": {}, **CALLED}]},
    {"kind": "request", "parts": [{"part_kind": "tool-return", "content": 1, **CALLED}]},
]


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places(value[key], (*at, key))


def _with(value: Any, at: tuple[Any, ...], odd: Any) -> Any:
    if not at:
        return odd
    changed = value.copy()
    changed[at[0]] = _with(value[at[0]], at[1:], odd)
    return changed


@pytest.mark.parametrize(
    ("convert", "source"),
    [
        (from_langchain, messages_to_dict(LANGCHAIN)),
        (from_openai_agents, OPENAI),
        (from_pydantic_ai, PYDANTIC_AI),
    ],
)
def test_odd_value_anywhere_is_a_typed_error(convert: Any, source: Any) -> None:
    """Or it is imported: a file of another library may hold anything."""
    for at in _places(source):
        for odd in (None, True, 1.5, "", "x", "\ud800", [], [None], {}, [{}], {"type": []}, object(), b"\xff"):
            try:
                convert(_with(source, at, odd))
            except InvalidArgument as refused:
                assert "nothing was written" in str(refused), at  # noqa: PT017 - not each of them is refused
    for wrong in (None, 7, {}, b"\xff", '{"a": 1}', "[" * 100_000):
        with pytest.raises(InvalidArgument, match=r"^(messages|items): must be"):
            convert(wrong)
