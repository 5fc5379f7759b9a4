"""Answers in a provider's own schema mode: its requests, and its replies."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from tests.wire.dialects import DIALECTS, Chat, Connect, Dialect, Google, PlainReply, Responses
from tests.wire.requests import asked

from support.wire.server import Answer, Server
from turnwise import Agent, Engine, StopReason, TurnResult, tool
from turnwise.providers.reply_builder import join


class City(BaseModel):
    """A city."""

    name: str
    people: int


class OlderGoogle(Google):
    """One that does not."""

    name = "google-2.5"
    model = "google:gemini-2.5-pro@{url}"


RIGHT = '{"name": "Lyon", "people": 522000}'
VALUE = City(name="Lyon", people=522000)
each_dialect = pytest.mark.parametrize("dialect", [*DIALECTS, Google()], ids=lambda dialect: dialect.name)


@tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"saw {place}"


async def _asked(dialect: Dialect, connect: Connect, *, output: Any = City, **options: Any) -> TurnResult[Any]:
    model = await connect(dialect)
    agent = Agent("guide", model, tools=[look], output=output, **options)
    async with Engine("sqlite://", agents=[agent]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "A city?", timeout=60)
        assert (await engine.verify(chat.id)).ok
        return result


def _form_in(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema that a request demands of the text, at the provider's place."""
    found: Any = (
        body.get("response_format", {}).get("json_schema", {}).get("schema")
        or body.get("text", {}).get("format", {}).get("schema")
        or body.get("output_config", {}).get("format", {}).get("schema")
        or body.get("generationConfig", {}).get("responseJsonSchema")
    )
    return found if found is None else {"type": found["type"], "fields": sorted(found["properties"])}


def _tools_in(body: dict[str, Any]) -> list[str]:
    declared = [inner for one in body.get("tools", []) for inner in one.get("functionDeclarations", [one])]
    return [one.get("name") or one["function"]["name"] for one in declared]


@each_dialect
async def test_request_has_schema_and_tools_and_text_is_the_answer(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    looks = PlainReply("", calls=[("call_1", "look", '{"place": "x"}')])
    server.script = [Answer(dialect.frames(looks)), Answer(dialect.frames(PlainReply(RIGHT)))]
    result = await _asked(dialect, connect)
    assert (result.output, result.stop_reason, len(server.asked)) == (VALUE, "end_turn", 2)
    for request in server.asked:
        assert _form_in(request.body) == {"type": "object", "fields": ["name", "people"]}
        assert _tools_in(request.body) == ["look"]


@pytest.mark.parametrize("dialect", [OlderGoogle()], ids=lambda dialect: dialect.name)
async def test_model_without_schema_mode_gets_the_tool(dialect: Dialect, server: Server, connect: Connect) -> None:
    server.script = [Answer(dialect.frames(PlainReply("", calls=[("call_1", "final_answer", RIGHT)])))]
    assert (await _asked(dialect, connect)).output == VALUE
    assert _form_in(server.asked[0].body) is None
    assert _tools_in(server.asked[0].body) == ["look", "final_answer"]


async def test_compatible_server_gets_a_schema_only_if_configured(server: Server, connect: Connect) -> None:
    class Anyone(Chat):
        model = "openai-compatible:some-model@{url}/v1"

    assert (await connect(Anyone())).takes_answer_schema is None
    model = await connect(Anyone(), takes_answer_schema="always")
    server.script = [Answer(Anyone().frames(PlainReply(RIGHT)))]
    agent = Agent("guide", model, output=City, output_mode="native")
    async with Engine("sqlite://", agents=[agent]) as engine:
        assert (await engine.ask((await engine.create_chat()).id, "A city?", timeout=60)).output == VALUE
    assert _form_in(server.asked[0].body) is not None


# What a reply is worth


CHAT, RESPONSES, ANTHROPIC = DIALECTS
GOOGLE = Google()
WORDS: dict[StopReason, dict[Dialect, Sequence[str]]] = {
    StopReason.end_turn: {
        CHAT: ["stop", "tool_calls", "eos"],
        RESPONSES: ["completed"],
        ANTHROPIC: ["tool_use", "end_turn", "stop_sequence"],
        GOOGLE: ["STOP"],
    },
    StopReason.max_tokens: {
        CHAT: ["length"],
        RESPONSES: ["max_output_tokens"],
        ANTHROPIC: ["max_tokens", "model_context_window_exceeded"],
        GOOGLE: ["MAX_TOKENS"],
    },
    StopReason.content_filter: {
        CHAT: ["content_filter"],
        RESPONSES: ["content_filter"],
        ANTHROPIC: ["refusal"],
        GOOGLE: ["SAFETY", "RECITATION"],
    },
    StopReason.unknown: {
        CHAT: ["abort", "error", "insufficient_system_resource", ""],
        RESPONSES: ["brand_new", ""],
        ANTHROPIC: ["brand_new", ""],
        GOOGLE: ["OTHER", "FINISH_REASON_UNSPECIFIED"],
    },
}
ENDINGS = [
    pytest.param(reason, dialect, word, id=f"{dialect.name}-{word or 'none'}")
    for reason, words in WORDS.items()
    for dialect in words
    for word in words[dialect]
]


def ended(dialect: Dialect, reply: PlainReply, word: str) -> list[str]:
    """Return the closed stream of a reply that ends with the reason, or without one if it is blank."""
    if isinstance(dialect, Responses):
        if word == "completed":
            return dialect.frames(reply)
        return dialect.ending(reply, "response.incomplete", incomplete_details={"reason": word} if word else None)
    key = {"google": "finishReason", "anthropic": "stop_reason"}.get(dialect.name, "finish_reason")
    named = re.compile(f'"{key}": "[^"]*"')
    return [named.sub(f'"{key}": {json.dumps(word or None)}', frame) for frame in dialect.frames(reply)]


@pytest.mark.parametrize(("reason", "dialect", "word"), ENDINGS)
async def test_finish_reason_decides_whether_a_reply_counts(
    reason: StopReason, dialect: Dialect, word: str, server: Server, connect: Connect
) -> None:
    """A closed stream is an answer after one request; complete calls run unless it was refused."""
    paths: list[str] = []

    @tool
    async def look(path: str) -> str:
        """Look."""
        paths.append(path)
        return "seen"

    asks = PlainReply("", calls=[("c1", "look", '{"path": "/srv"}')])
    script = [ended(dialect, PlainReply(), word), ended(dialect, asks, word), dialect.frames(PlainReply("Done."))]
    server.script = [Answer(frames) for frames in script]
    async with Engine("sqlite://", model=await connect(dialect), tools=[look]) as engine:
        chat = await engine.create_chat()
        first = await engine.ask(chat.id, "Greet the world.", timeout=60)
        assert (first.text, first.stop_reason, len(server.asked)) == ("Hello world.", reason, 1)
        assert first.messages[-1].finish_reason == (word or None)
        last = await engine.ask(chat.id, "Look.", timeout=60)
        assert (last.text, last.stop_reason, len(server.asked)) == ("Done.", "end_turn", 3)
        assert paths == ([] if reason is StopReason.content_filter else ["/srv"])
        assert (await engine.verify(chat.id)).ok


def _refused(dialect: Dialect) -> list[str]:
    words = "I will not."
    if isinstance(dialect, Responses):
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        deltas = [{"type": "response.refusal.delta", **place, "delta": words}]
        deltas.append({"type": "response.refusal.done", **place, "refusal": words})
        opened, *_, over = dialect.frames(PlainReply(""))
        return [opened, *(f"event: {delta['type']}\ndata: {json.dumps(delta)}\n\n" for delta in deltas), over]
    if dialect is ANTHROPIC:
        details = json.dumps({"type": "refusal", "category": None, "explanation": words})
        old, new = '"stop_sequence": null}', f'"stop_sequence": null, "stop_details": {details}}}'
        return [frame.replace(old, new) for frame in ended(dialect, PlainReply(""), "refusal")]
    if dialect is GOOGLE:
        blocked: dict[str, Any] = {"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": words}}
        return [f"data: {json.dumps(blocked)}\n\n"]
    return [frame.replace('"content": "', '"refusal": "') for frame in Chat().frames(PlainReply(words))]


@pytest.mark.parametrize("dialect", [*DIALECTS, GOOGLE], ids=lambda dialect: dialect.name)
async def test_text_of_a_refusal_is_stored(dialect: Dialect, server: Server, connect: Connect) -> None:
    server.script = [Answer(_refused(dialect))]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        result = await engine.ask((await engine.create_chat()).id, "Do it.", timeout=60)
    assert (result.text, result.stop_reason, len(server.asked)) == ("I will not.", "content_filter", 1)


@pytest.mark.parametrize("dialect", [CHAT, ANTHROPIC], ids=lambda dialect: dialect.name)
async def test_parallel_calls_of_one_index_are_two(dialect: Dialect, server: Server, connect: Connect) -> None:
    content = PlainReply("", calls=[("c1", "look", '{"at": 1}'), ("c2", "look", '{"at": 2}')])
    server.script = [Answer([frame.replace('"index": 1', '"index": 0') for frame in dialect.frames(content)])]
    model = await connect(dialect)
    reply = join([part async for part in model.stream(asked("Look."))])
    assert [(call.call_id, call.arguments) for call in reply.calls] == [("c1", {"at": 1}), ("c2", {"at": 2})]
