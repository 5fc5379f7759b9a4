"""A provider's reply is translated, and sent back to it unchanged."""

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.wire.dialects import DIALECTS, Anthropic, Connect, Dialect, PlainReply, Responses
from tests.wire.requests import asked, message, reply_of, result_of

from support.wire.server import Answer, Server
from turnwise import Engine, ToolSpec
from turnwise.providers.reply_builder import join
from turnwise.states.messages import FilePart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor, StopReason

SIGNATURE = "EqRkCkYIChgCKkD+/sig=="
REPLY = PlainReply(
    "I look.",
    reasoning="Two sums.",
    signature=SIGNATURE,
    calls=[("call_1", "add", '{"a": 1, "b": 2}'), ("call_2", "add", '{"a": 3, "b": 4}')],
)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "default": 0}, "b": {"type": "integer"}},
    "required": ["b"],
}
ADD = ToolSpec("add", "Add two numbers.", SCHEMA)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


@each_dialect
async def test_reply_is_translated_into_parts(dialect: Dialect, server: Server, connect: Connect) -> None:
    server.script = [Answer(dialect.frames(REPLY))]
    model = await connect(dialect)
    parts = [part async for part in model.stream(asked("Add.", tools=[ADD]))]
    reply = join(parts)

    assert reply.text == "I look."
    assert [(call.call_id, call.name, call.arguments, call.executor) for call in reply.calls] == [
        ("call_1", "add", {"a": 1, "b": 2}, Executor.local),
        ("call_2", "add", {"a": 3, "b": 4}, Executor.local),
    ]
    reasoning = reply.parts[0]
    assert reasoning.text == "Two sums."
    assert reasoning.signature == (None if dialect.name == "openai" else SIGNATURE)
    assert reply.finish.stop_reason is StopReason.end_turn
    streamed = [part.text for part in parts if part.type == "text_delta" and part.text]
    assert len(streamed) > 1
    fragments = [part.arguments for part in parts if part.type == "tool_call_delta" and part.id == "call_1"]
    assert "".join(map(str, fragments)) == '{"a": 1, "b": 2}'
    assert len(fragments) > 1


@each_dialect
async def test_history_goes_back_as_the_provider_sent_it(dialect: Dialect, server: Server, connect: Connect) -> None:
    server.script = [Answer(dialect.frames(REPLY)), Answer(dialect.frames(PlainReply()))]
    model = await connect(dialect)
    first = join([part async for part in model.stream(asked("Add.", tools=[ADD]))])
    history = [
        message("user", "Add.", FilePart(media_type="image/png", data="aGVsbG8=")),
        reply_of(first),
        result_of("call_1", "add", 3),
        result_of("call_2", "add", "no such number", is_error=True),
        message("system", "<reminder>be quick</reminder>"),
    ]
    asked_for = asked(*history, tools=[ADD], system="Be terse.", parameters={"max_output_tokens": 99})
    before = copy.deepcopy(asked_for)
    async for _ in model.stream(asked_for):
        pass

    sent = server.asked[1].body
    assert asked_for == before
    assert _sent(dialect, sent) == {
        "system": "Be terse.",
        "user": ["Add.", "aGVsbG8="],
        "reasoning": ["Two sums.", None if dialect.name == "openai" else SIGNATURE],
        "said": "I look.",
        "calls": [["call_1", {"a": 1, "b": 2}], ["call_2", {"a": 3, "b": 4}]],
        "results": [["call_1", "3"], ["call_2", "no such number"]],
        "last": "<reminder>be quick</reminder>",
        "limit": 99,
        "schema": SCHEMA,
    }
    assert '"strict": true' not in json.dumps(sent)


@each_dialect
async def test_signature_reaches_the_provider_alone(dialect: Dialect, server: Server, connect: Connect) -> None:
    signed = PlainReply("Six.", reasoning="Two sums.", signature=SIGNATURE)
    server.script = [Answer(dialect.frames(signed)), Answer(dialect.frames(PlainReply()))]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        for question in ("Add.", "And now?"):
            await engine.ask(chat.id, question)
        reported = [event async for event in engine.events(chat.id, follow=False)]
        seen = await engine.messages(chat.id), await engine.messages(chat.id, view="raw")
        transcript = await engine.transcript(chat.id)
    assert "Two sums." in str(seen)
    assert SIGNATURE not in f"{reported}{seen}{transcript}"
    assert (SIGNATURE in json.dumps(server.asked[1].body)) == (dialect.name != "openai")


@each_dialect
async def test_foreign_provider_data_is_not_sent(dialect: Dialect, server: Server, connect: Connect) -> None:
    """Reasoning, ids and provider calls of one provider mean nothing to another; texts do."""
    server.script = [Answer(dialect.frames(PlainReply()))]
    theirs = {"provider": "stranger", "endpoint": "https://stranger.example", "id": "st_1", "details": {"key": "st_2"}}
    reply = message(
        "assistant",
        ReasoningPart(text="st_thought", signature="st_signature", metadata=theirs),
        TextPart(text="I said so.", metadata=theirs),
        ToolCallPart(call_id="st_3", name="web", arguments={}, executor=Executor.provider, metadata=theirs),
        ToolResultPart(call_id="st_3", name="web", output="found", metadata=theirs),
        ToolCallPart(call_id="a call/of:theirs", name="add", arguments={"b": 1}, metadata=theirs),
    )
    history = [message("user", "Hi."), reply, result_of("a call/of:theirs", "add", 1), message("user", "And?")]
    async for _ in (await connect(dialect)).stream(asked(*history, tools=[ADD])):
        pass
    sent = json.dumps(server.asked[0].body)
    assert "st_" not in sent.replace("last_", "")
    assert "I said so." in sent
    assert "a call/of:theirs" not in sent
    assert _sent(dialect, server.asked[0].body)["calls"][0][0] == _sent(dialect, server.asked[0].body)["results"][0][0]


async def test_redacted_and_split_reasoning_go_back_unchanged(server: Server, connect: Connect) -> None:
    anthropic = Anthropic()
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": "One."}, {"type": "signature_delta", "signature": "sig-1+/="}],
        ),
        ({"type": "redacted_thinking", "data": "hidden-1+/="}, []),
        ({"type": "redacted_thinking", "data": "hidden-2+/="}, []),
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": "Two."}, {"type": "signature_delta", "signature": "sig-2+/="}],
        ),
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "Done."}]),
    ]
    server.script = [Answer(anthropic.stream(blocks, "end_turn")), Answer(anthropic.frames(PlainReply()))]
    model = await connect(anthropic)
    reply = join([part async for part in model.stream(asked("Think."))])
    async for _ in model.stream(asked("Think.", reply_of(reply), message("user", "And?"))):
        pass
    assert server.asked[1].body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "One.", "signature": "sig-1+/="},
        {"type": "redacted_thinking", "data": "hidden-1+/="},
        {"type": "redacted_thinking", "data": "hidden-2+/="},
        {"type": "thinking", "thinking": "Two.", "signature": "sig-2+/="},
        {"type": "text", "text": "Done."},
    ]


async def test_provider_call_and_result_go_back_unchanged(server: Server, connect: Connect) -> None:
    """A reply that the provider pauses for its own tool is one reply, which is continued."""
    from pydantic_ai.native_tools import WebSearchTool  # noqa: PLC0415 - needed by this test alone

    anthropic = Anthropic()
    found = {"type": "web_search_result", "url": "https://turn.example", "title": "Turn", "encrypted_content": "e+/="}
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{**found, "page_age": None}]}
    cited = {
        "type": "web_search_result_location",
        "url": "https://turn.example",
        "title": "Turn",
        "cited_text": "turns",
        "encrypted_index": "i+/=",
    }
    searched = [(call, [{"type": "input_json_delta", "partial_json": '{"query": "turn"}'}]), (result, [])]
    answered: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "text", "text": "", "citations": []},
            [{"type": "text_delta", "text": "It turns."}, {"type": "citations_delta", "citation": cited}],
        )
    ]
    server.script = [
        Answer(anthropic.stream(searched, "pause_turn")),
        Answer(anthropic.stream(answered, "end_turn")),
        Answer(anthropic.frames(PlainReply())),
    ]
    model = await connect(anthropic, native_tools=[WebSearchTool()])
    reply = join([part async for part in model.stream(asked("Search."))])
    assert [part.type for part in reply.parts] == ["tool_call", "tool_result", "text", "source"]
    assert reply.calls[0].executor is Executor.provider
    assert reply.parts[3].url == "https://turn.example"
    assert reply.usage.input_tokens == 200
    assert reply.finish.metadata["context_tokens"] == 100
    expected = ["server_tool_use", "web_search_tool_result"]
    assert [block["type"] for block in server.asked[1].body["messages"][-1]["content"]] == expected

    async for _ in model.stream(asked("Search.", reply_of(reply), message("user", "And?"))):
        pass
    back = server.asked[2].body["messages"][1]["content"]
    assert [block["type"] for block in back] == ["server_tool_use", "web_search_tool_result", "text"]
    assert (back[0]["id"], back[0]["input"]) == ("srvtoolu_1", {"query": "turn"})
    assert back[1]["content"][0]["encrypted_content"] == "e+/="


async def test_items_of_one_reply_keep_their_ids(server: Server, connect: Connect) -> None:
    """OpenAI looks text up by the id of its item: text under another item's id would be lost."""
    responses = Responses()
    output: list[dict[str, Any]] = []
    first = responses._message("Let me think. ", output)
    second = json.loads(json.dumps(responses._message("Done.", output)).replace("msg_1", "msg_2"))
    output[1] = {**output[1], "id": "msg_2"}
    events = [
        {"type": "response.created", "response": responses._response("in_progress", [])},
        *first,
        *second,
        {"type": "response.completed", "response": responses._response("completed", output)},
    ]
    frames = [f"data: {json.dumps({**event, 'sequence_number': place})}\n\n" for place, event in enumerate(events)]
    server.script = [Answer(frames), Answer(responses.frames(PlainReply()))]
    model = await connect(responses)
    reply = join([part async for part in model.stream(asked("Think."))])
    async for _ in model.stream(asked("Think.", reply_of(reply), message("user", "And?"))):
        pass
    back = [item for item in server.asked[1].body["input"] if item.get("role") == "assistant"]
    expected = [("msg_1", "Let me think. "), ("msg_2", "Done.")]
    assert [(item["id"], item["content"][0]["text"]) for item in back] == expected


async def test_cache_marks_precede_the_reminder_for_anthropic(server: Server, connect: Connect) -> None:
    """A mark on the reminder would cache a prompt that never repeats."""
    server.script = [Answer(Anthropic().frames(PlainReply()))]
    model = await connect(Anthropic())
    history = [message("user", "Hi."), message("system", "<reminder>be quick</reminder>")]
    async for _ in model.stream(asked(*history, tools=[ADD], system="Be terse.")):
        pass
    sent = server.asked[0].body
    marked = {"type": "ephemeral", "ttl": "5m"}
    assert sent["system"][-1]["cache_control"] == marked
    assert sent["tools"][-1]["cache_control"] == marked
    assert sent["messages"][0]["content"][-1]["cache_control"] == marked
    assert "cache_control" not in sent["messages"][-1]["content"][-1]


@pytest.mark.parametrize(("size", "fits"), [(3_932_160, True), (3_932_161, False)])
async def test_oversized_picture_is_refused_for_anthropic(size: int, fits: bool, connect: Connect) -> None:
    """Anthropic accepts 5 MiB of base64; others document no limit."""
    refuses = {dialect.name: getattr(await connect(dialect), "refuses_file") for dialect in DIALECTS}  # noqa: B009
    assert refuses["openai"]("image/png", size) is None
    refusal = refuses["anthropic"]("image/png", size)
    assert refusal is None if fits else "pictures of at most 3,932,160 bytes, and this one has 3,932,161" in refusal


def _sent(dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request's content, independent of the dialect."""
    return {"openai": _sent_chat, "openai-responses": _sent_responses, "anthropic": _sent_anthropic}[dialect.name](body)


def _sent_chat(body: dict[str, Any]) -> dict[str, Any]:
    messages = body["messages"]
    replied = next(message for message in messages if message["role"] == "assistant")
    return {
        "system": messages[0]["content"],
        "user": _texts(next(message for message in messages if message["role"] == "user")["content"]),
        "reasoning": [replied.get("reasoning_content"), None],
        "said": replied["content"],
        "calls": [[call["id"], json.loads(call["function"]["arguments"])] for call in replied.get("tool_calls", ())],
        "results": [
            [result["tool_call_id"], _plain(result["content"])] for result in messages if result["role"] == "tool"
        ],
        "last": messages[-1]["content"],
        "limit": body.get("max_completion_tokens"),
        "schema": body["tools"][0]["function"]["parameters"],
    }


def _sent_responses(body: dict[str, Any]) -> dict[str, Any]:
    items = body["input"]
    of = {kind: [item for item in items if item.get("type") == kind] for kind in ("reasoning", "function_call")}
    content = next(item for item in items if item.get("role") == "assistant")["content"]
    outputs = [item for item in items if item.get("type") == "function_call_output"]
    reasoning = of["reasoning"][0] if of["reasoning"] else {"summary": [{"text": None}], "encrypted_content": None}
    return {
        "system": body.get("instructions"),
        "user": _texts(items[0]["content"]),
        "reasoning": [reasoning["summary"][0]["text"], reasoning["encrypted_content"]],
        "said": content if isinstance(content, str) else content[0]["text"],
        "calls": [[call["call_id"], json.loads(call["arguments"])] for call in of["function_call"]],
        "results": [[output["call_id"], _plain(output["output"])] for output in outputs],
        "last": items[-1].get("content"),
        "limit": body.get("max_output_tokens"),
        "schema": body["tools"][0]["parameters"],
    }


def _sent_anthropic(body: dict[str, Any]) -> dict[str, Any]:
    blocks = [block for message in body["messages"][1:] for block in message["content"]]
    of = {
        kind: [block for block in blocks if block["type"] == kind] for kind in ("thinking", "tool_use", "tool_result")
    }
    thinking = of["thinking"][0] if of["thinking"] else {"thinking": None, "signature": None}
    return {
        "system": body["system"][0]["text"] if "system" in body else None,
        "user": _texts(body["messages"][0]["content"]),
        "reasoning": [thinking["thinking"], thinking["signature"]],
        "said": next(block["text"] for block in blocks if block["type"] == "text"),
        "calls": [[call["id"], call["input"]] for call in of["tool_use"]],
        "results": [[result["tool_use_id"], result["content"][0]["text"]] for result in of["tool_result"]],
        "last": blocks[-1].get("text"),
        "limit": body["max_tokens"],
        "schema": body["tools"][0]["input_schema"],
    }


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    found: list[str] = []
    for block in content:
        source = block.get("source", {}).get("data")
        image = block.get("image_url")
        url = image["url"] if isinstance(image, dict) else image
        found.append(block.get("text") or source or str(url).partition("base64,")[2])
    return found


def _plain(output: str) -> str:
    """Return a result without pydantic-ai's wrapping of errors for OpenAI."""
    try:
        value = json.loads(output)
    except ValueError:
        return output
    return str(value["error"]) if isinstance(value, dict) and "error" in value else output


# The prompt cache of Anthropic


TOOL = ToolSpec("look", "Look.", {"type": "object", "properties": {}})
LOOKS_BACK = 20
"""The number of blocks before a mark in which Anthropic looks for cached content."""


def flat(body: dict[str, Any]) -> tuple[list[str], set[int]]:
    """Return the blocks of a request in the order of the cache, and the positions of its marks."""
    blocks: list[str] = []
    marks: set[int] = set()
    for block in [
        *body.get("tools", ()),
        *body.get("system", ()),
        *({**block, "role": one["role"]} for one in body["messages"] for block in one["content"]),
    ]:
        mark = block.pop("cache_control", None)
        blocks.append(json.dumps(block, sort_keys=True))
        marks |= {len(blocks)} if mark else set()
    return blocks, marks | ({len(blocks)} if "cache_control" in body else set())


def conversation(calls: int) -> Iterator[list[Message]]:
    """Yield the history of each request: steps with parallel calls, and with text alone."""
    history = [message("user", "one")]
    yield [*history]
    for step in range(3):
        asked_calls = [ToolCallPart(call_id=f"c{step}-{n}", name="look", arguments={"n": n}) for n in range(calls)]
        history.append(message("assistant", "I look.", *asked_calls))
        history += [result_of(call.call_id, "look", f"saw {call.call_id}") for call in asked_calls]
        yield [*history]
    history += [message("assistant", "Done."), message("user", "two"), message("user", "and three")]
    yield [*history]


@pytest.mark.parametrize("settings", [{}, {"cache": "1h"}, {"cache": False}, {"anthropic_cache": True}], ids=str)
@pytest.mark.parametrize("reminded", [False, True])
@pytest.mark.parametrize("calls", [1, 12, 40])
async def test_each_request_finds_what_the_last_one_cached(
    calls: int, reminded: bool, settings: dict[str, Any], server: Server, connect: Connect
) -> None:
    server.script = [Answer(Anthropic().frames(PlainReply()))]
    model = await connect(Anthropic(), settings=settings)
    reminder = [message("system", "<reminder>be quick</reminder>")] if reminded else []
    for history in conversation(calls):
        async for _ in model.stream(asked(*history, *reminder, tools=[TOOL], system="Be terse.")):
            pass
    sent = [flat(request.body) for request in server.asked]
    if settings.get("cache") is False:
        assert not any(marks for _, marks in sent)
        return
    for (before, written), (blocks, marks) in itertools.pairwise(sent):
        cached = max(written)
        assert len(marks) <= 4
        if not (reminded and settings.get("anthropic_cache")):  # a requested mark on the last block is there
            assert blocks[:cached] == before[:cached]
            assert any(mark - LOOKS_BACK <= cached <= mark for mark in marks)
