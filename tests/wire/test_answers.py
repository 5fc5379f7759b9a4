"""Answers that the provider keeps to a schema: what is asked of it, and what becomes of what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from tests.wire.dialects import DIALECTS, Chat, Connect, Dialect, Google, Said

from support.wire.server import Answer, Server
from turnwise import Agent, Engine, TurnResult, tool

Change = Callable[[str], str]


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
    """Return the schema that a request demands of the text, wherever the provider wants to be told."""
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
    looks = Said("", calls=[("call_1", "look", '{"place": "x"}')])
    server.script = [Answer(dialect.frames(looks)), Answer(dialect.frames(Said(RIGHT)))]
    result = await _asked(dialect, connect)
    assert (result.output, result.stop_reason, len(server.asked)) == (VALUE, "end_turn", 2)
    for asked in server.asked:
        assert _form_in(asked.body) == {"type": "object", "fields": ["name", "people"]}
        assert _tools_in(asked.body) == ["look"]


@each_dialect
async def test_invalid_answer_goes_back_with_the_error(dialect: Dialect, server: Server, connect: Connect) -> None:
    server.script = [Answer(dialect.frames(Said('{"name": "Lyon"}'))), Answer(dialect.frames(Said(RIGHT)))]
    assert (await _asked(dialect, connect)).output == VALUE
    sent = json.dumps(server.asked[1].body)
    assert "missing people" in sent
    assert "as JSON of the schema and nothing else" in sent
    assert "missing people" not in json.dumps(server.asked[0].body)


def _replaced(old: str, new: str) -> Change:
    return lambda frame: frame.replace(old, new)


@pytest.mark.parametrize(
    ("dialect", "change", "reason"),
    [
        (DIALECTS[0], _replaced('"finish_reason": "stop"', '"finish_reason": "length"'), "max_tokens"),
        (DIALECTS[0], _replaced('"finish_reason": "stop"', '"finish_reason": "content_filter"'), "content_filter"),
        (DIALECTS[2], _replaced('"stop_reason": "end_turn"', '"stop_reason": "max_tokens"'), "max_tokens"),
        (DIALECTS[2], _replaced('"stop_reason": "end_turn"', '"stop_reason": "refusal"'), "content_filter"),
        (Google(), _replaced('"finishReason": "STOP"', '"finishReason": "MAX_TOKENS"'), "max_tokens"),
        (Google(), _replaced('"finishReason": "STOP"', '"finishReason": "SAFETY"'), "content_filter"),
        (DIALECTS[0], _replaced('"finish_reason": "stop"', '"finish_reason": "abort"'), "unknown"),
        (DIALECTS[2], _replaced('"stop_reason": "end_turn"', '"stop_reason": "new"'), "unknown"),
        (Google(), _replaced('"finishReason": "STOP"', '"finishReason": "OTHER"'), "unknown"),
    ],
)
async def test_truncated_or_refused_answer_is_none(
    dialect: Dialect, change: Change, reason: str, server: Server, connect: Connect
) -> None:
    """Even where what was said of it happens to fit."""
    server.script = [Answer([change(frame) for frame in dialect.frames(Said(RIGHT))])]
    result = await _asked(dialect, connect)
    assert (result.output, result.stop_reason, result.chat.state) == (None, reason, "waiting")
    assert len(server.asked) == 1


@pytest.mark.parametrize("dialect", [OlderGoogle()], ids=lambda dialect: dialect.name)
async def test_model_without_schema_mode_gets_the_tool(dialect: Dialect, server: Server, connect: Connect) -> None:
    server.script = [Answer(dialect.frames(Said("", calls=[("call_1", "final_answer", RIGHT)])))]
    assert (await _asked(dialect, connect)).output == VALUE
    assert _form_in(server.asked[0].body) is None
    assert _tools_in(server.asked[0].body) == ["look", "final_answer"]


async def test_compatible_server_gets_a_schema_only_if_configured(server: Server, connect: Connect) -> None:
    class Anyone(Chat):
        model = "openai-compatible:some-model@{url}/v1"

    assert (await connect(Anyone())).takes_answer_schema is None
    model = await connect(Anyone(), takes_answer_schema="always")
    server.script = [Answer(Anyone().frames(Said(RIGHT)))]
    agent = Agent("guide", model, output=City, output_mode="native")
    async with Engine("sqlite://", agents=[agent]) as engine:
        assert (await engine.ask((await engine.create_chat()).id, "A city?", timeout=60)).output == VALUE
    assert _form_in(server.asked[0].body) is not None
