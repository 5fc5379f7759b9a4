"""Tools that Anthropic knows itself and turnwise runs: what goes over the wire, and what no other provider is sent."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.native_tools import WebSearchTool

from support.wire.dialects import DIALECTS, Anthropic, Chat, Connect, Dialect, Responses, Said
from support.wire.requests import asked, message, result_of
from support.wire.server import Answer, Server
from turnwise import (
    Engine,
    FilePart,
    ModelError,
    ProviderDefinition,
    SettingsError,
    ToolOutput,
    ToolResult,
    ToolSpec,
    tool,
)
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.providers.reply_builder import join
from turnwise.states.messages import ToolCallPart

BETA = "computer-use-2025-01-24"
COMPUTER = {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768}
DEFINITION = ProviderDefinition("anthropic", COMPUTER, betas=[BETA])
BASH = {"type": "bash_20250124", "name": "bash"}
SPEC = ToolSpec("computer", "", {"type": "object"}, DEFINITION)
ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PNG = b64encode(b"\x89PNG\r\n\x1a\n the screen").decode()


@tool(definition=DEFINITION)
async def computer(action: str, coordinate: list[int] | None = None, text: str | None = None) -> ToolOutput:
    assert (action, coordinate, text) != ("screenshot", None, "never")
    return ToolOutput(f"did {action} at {coordinate}", (FilePart(media_type="image/png", data=PNG, name="screen.png"),))


@tool
async def add(a: int) -> int:
    """Add one."""
    return a + 1


def betas(server: Server, number: int = 0) -> set[str]:
    return {beta.strip() for beta in server.asked[number].headers.get("anthropic-beta", "").split(",")} - {""}


def plain(offered: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in offered.items() if key != "cache_control"}


async def test_the_computer_tool_of_anthropic_is_offered_run_and_answered_with_its_screenshot(
    server: Server, connect: Connect
) -> None:
    """Its definition goes out as it stands, and the call runs here: the picture goes back as the result's image."""
    dialect = Anthropic()
    click = '{"action": "left_click", "coordinate": [3, "4"]}'
    server.script = [
        Answer(dialect.frames(Said("I click.", calls=[("toolu_1", "computer", click)]))),
        Answer(dialect.frames(Said("I see."))),
    ]
    async with Engine("sqlite://", model=await connect(dialect), tools=[add, computer]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Click.")
        verdict = await engine.verify(chat.id)
    assert verdict.ok, verdict
    assert result.text == "I see."
    first, second = (request.body for request in server.asked)
    ordinary = {"name": "add", "description": "Add one.", "input_schema": add.schema}
    assert [plain(offered) for offered in first["tools"]] == [ordinary, COMPUTER]
    assert first["tools"] == second["tools"]
    assert BETA in betas(server, 0) & betas(server, 1)
    assert first["tool_choice"] == {"type": "auto"}
    (called,) = [block for block in second["messages"][1]["content"] if block["type"] == "tool_use"]
    assert (called["id"], called["name"]) == ("toolu_1", "computer")
    assert called["input"] == {"action": "left_click", "coordinate": [3, 4]}
    (answered,) = second["messages"][2]["content"]
    said, seen = answered["content"]
    assert (answered["type"], answered["tool_use_id"], answered["is_error"]) == ("tool_result", "toolu_1", False)
    assert said["text"] == "did left_click at [3, 4]"
    assert seen["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}


async def test_a_screenshot_alone_is_a_result(server: Server, connect: Connect) -> None:
    """Anthropic refuses a text block that is empty."""
    server.script = [Answer(Anthropic().frames(Said()))]
    model = await connect(Anthropic())
    picture = FilePart(media_type="image/png", data=PNG)
    for output in (None, ""):
        call = ToolCallPart(call_id="c1", name="computer", arguments={"action": "screenshot"})
        history = [message("user", "Look."), message("assistant", call)]
        history.append(result_of("c1", "computer", output, attachments=(picture,)))
        async for _ in model.stream(asked(*history, tools=[SPEC])):
            pass
        (block,) = server.asked[-1].body["messages"][2]["content"][0]["content"]
        assert block["source"]["data"] == PNG


async def test_other_tools_go_out_as_pydantic_ai_writes_them(server: Server, connect: Connect) -> None:
    """A definition changes nothing but its own place: this holds the hand-written list to pydantic-ai's own."""
    server.script = [Answer(Anthropic().frames(Said()))]
    for settings in ({}, {"cache": "1h"}, {"cache": False}, {"cache": {"retention": "1h"}}, CACHE_OFF, EAGER):
        model = await connect(Anthropic(), settings=settings)
        async for _ in model.stream(asked("Hi.", tools=[ADD, ADD_TOO], system="Be terse.")):
            pass
        async for _ in model.stream(asked("Hi.", tools=[SPEC, ADD, ADD_TOO], system="Be terse.")):
            pass
        without, beside = (request.body for request in server.asked[-2:])
        assert beside["tools"] == [COMPUTER, *without["tools"]], settings
        assert beside["system"] == without["system"]


CACHE_OFF = {"anthropic_cache_tool_definitions": False, "anthropic_cache": True}
EAGER = {"anthropic_eager_input_streaming": True}
ADD_TOO = ToolSpec("add_too", "Add two more.", {"type": "object", "properties": {}})


async def test_what_a_service_configured_goes_out_beside_a_definition(server: Server, connect: Connect) -> None:
    server.script = [Answer(Anthropic().frames(Said()))]
    settings = {"anthropic_betas": ["context-1m-2025-08-07"], "extra_body": {"metadata": {"user_id": "u1"}}}
    model = await connect(Anthropic(), settings=settings)
    options = {"tool_choice": "computer", "provider_options": {"extra_headers": {"anthropic-beta": "other-2025-01-01"}}}
    bash = ToolSpec("bash", "", {"type": "object"}, ProviderDefinition("anthropic", BASH))
    async for _ in model.stream(asked("Hi.", tools=[SPEC, ADD, bash], parameters=options)):
        pass
    sent = server.asked[0].body
    assert {BETA, "context-1m-2025-08-07", "other-2025-01-01"} <= betas(server)
    assert sent["metadata"] == {"user_id": "u1"}
    assert sent["tool_choice"] == {"type": "tool", "name": "computer"}
    assert [plain(offered) for offered in sent["tools"]] == [COMPUTER]
    assert "tools" not in settings["extra_body"]


async def test_a_request_without_a_definition_asks_for_no_beta(server: Server, connect: Connect) -> None:
    server.script = [Answer(Anthropic().frames(Said()))]
    model = await connect(Anthropic())
    async for _ in model.stream(asked("Hi.", tools=[ADD])):
        pass
    assert BETA not in betas(server)


async def test_a_whole_reply_is_asked_for_with_the_definition_too(server: Server, connect: Connect) -> None:
    """Summaries are asked for without streaming, and share the cached prompt."""
    reply = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {"action": "screenshot"}}],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    server.script = [Answer.of(reply)]
    said = await (await connect(Anthropic())).generate(
        asked("Look.", tools=[SPEC], parameters={"max_output_tokens": 99})
    )
    assert [(call.name, call.arguments) for call in said.calls] == [("computer", {"action": "screenshot"})]
    assert [plain(offered) for offered in server.asked[0].body["tools"]] == [COMPUTER]
    assert BETA in betas(server)


async def test_a_model_of_pydantic_ai_that_wraps_anthropics_takes_definitions(server: Server, connect: Connect) -> None:
    server.script = [Answer(Anthropic().frames(Said()))]
    model = PydanticAIModel(WrapperModel((await connect(Anthropic()))._model))
    async for _ in model.stream(asked("Hi.", tools=[SPEC])):
        pass
    assert [plain(offered) for offered in server.asked[0].body["tools"]] == [COMPUTER]


@pytest.mark.parametrize("dialect", [Chat(), Responses()], ids=lambda dialect: dialect.name)
async def test_another_provider_is_never_sent_a_definition(dialect: Dialect, server: Server, connect: Connect) -> None:
    """Not as a function of its name, either: the model would have to guess what it takes."""
    model = await connect(dialect)
    own = ProviderDefinition("openai", {"type": "computer_use_preview", "name": "computer"})
    for definition, why in ((DEFINITION, "only models of anthropic can"), (own, "Anthropic's Messages API only")):
        offered = ToolSpec("computer", "", {"type": "object"}, definition)
        with pytest.raises(
            ModelError, match=f"tool 'computer' is {definition.provider}'s own.*of openai.*{why}"
        ) as told:
            async for _ in model.stream(asked("Hi.", tools=[ADD, offered])):
                pass
        assert (told.value.kind, told.value.retryable) == ("bad_request", False)
        with pytest.raises(
            SettingsError, match=f"agent 'default'.*tool 'computer' is {definition.provider}'s own.*{why}"
        ):
            Engine("sqlite://", model=model, tools=[tool(definition=definition)(_any)])
    assert server.asked == []


async def _any(**arguments: Any) -> str:
    return json.dumps(arguments)


async def test_a_model_with_native_tools_is_offered_no_definition(server: Server, connect: Connect) -> None:
    """The list that carries a definition replaces pydantic-ai's own: a native tool would be lost without a word."""
    model = await connect(Anthropic(), native_tools=[WebSearchTool()])
    with pytest.raises(SettingsError, match=r"tool 'computer'.*it has native_tools, which cannot be sent beside one"):
        Engine("sqlite://", model=model, tools=[computer])
    assert server.asked == []


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_history_with_such_a_call_goes_to_any_provider(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    """As a rolling deploy, or a chat that is moved to another model, leaves it: it is a call like any other."""
    server.script = [Answer(dialect.frames(Said("All clear.")))]
    call = ToolCallPart(call_id="toolu_1", name="computer", arguments={"action": "screenshot"})
    picture = FilePart(media_type="image/png", data=PNG)
    seen = result_of("toolu_1", "computer", "a desk", attachments=(picture,))
    history = [message("user", "Look."), message("assistant", call), seen, message("user", "And?")]
    model = await connect(dialect)
    reply = join([part async for part in model.stream(asked(*history, tools=[ADD]))])
    assert reply.text == "All clear."
    sent = json.dumps(server.asked[0].body)
    assert "toolu_1" in sent
    assert "a desk" in sent
    assert PNG in sent
    assert "computer_20250124" not in sent


async def test_a_call_of_anthropics_tool_waits_for_approval_like_any_other(server: Server, connect: Connect) -> None:
    dialect = Anthropic()
    ran: list[str] = []

    @tool(definition=ProviderDefinition("anthropic", BASH), policy="ask")
    async def shell(command: str) -> str:
        ran.append(command)
        return "ok"

    called = Said(calls=[("toolu_1", "bash", '{"command": "ls"}')])
    server.script = [Answer(dialect.frames(called)), Answer(dialect.frames(Said("Listed.")))]
    async with Engine("sqlite://", model=await connect(dialect), tools=[shell]) as engine:
        chat = await engine.create_chat()
        waits = await engine.ask(chat.id, "List.")
        assert [(call.name, call.approval) for call in waits.open_calls] == [("bash", "asked")]
        assert ran == []
        await engine.submit_tool_results(chat.id, [ToolResult("toolu_1", output=True)])
        rested = await engine.wait(chat.id, until=["waiting"], timeout=30)
        assert rested.stop_reason == "end_turn"
    assert ran == ["ls"]
    assert [plain(offered) for offered in server.asked[0].body["tools"]] == [BASH]
    assert betas(server) == set()
