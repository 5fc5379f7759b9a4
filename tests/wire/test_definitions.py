"""Tools that Anthropic knows itself and turnwise runs: what goes over the wire, and what no other provider is sent."""

import json
from base64 import b64encode
from typing import Any

import pytest
from pydantic_ai.native_tools import WebSearchTool
from tests.wire.dialects import Anthropic, Chat, Connect, Dialect, Responses, Said
from tests.wire.requests import asked

from support.wire.server import Answer, Server
from turnwise import Engine, FilePart, ModelError, ProviderDefinition, Settings, ToolOutput, ToolSpec, tool
from turnwise.engine.jobs.request import parameters_for_titles
from turnwise.states.errors import SettingsError

BETA = "computer-use-2025-01-24"
COMPUTER = {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768}
DEFINITION = ProviderDefinition("anthropic", COMPUTER, betas=[BETA])
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


async def test_computer_tool_runs_and_returns_its_screenshot(server: Server, connect: Connect) -> None:
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


async def test_other_tools_are_sent_as_pydantic_ai_writes_them(server: Server, connect: Connect) -> None:
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


@pytest.mark.parametrize("dialect", [Chat(), Responses()], ids=lambda dialect: dialect.name)
async def test_other_providers_get_no_definition(dialect: Dialect, server: Server, connect: Connect) -> None:
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


SEARCH = {"max_uses": 3, "allowed_domains": ["turn.example"], "user_location": {"city": "Bern"}}
SEARCHES: dict[str, Any] = {
    "anthropic": {"name": "web_search", **SEARCH, "user_location": {"type": "approximate", "city": "Bern"}},
    "openai-responses": {
        "search_context_size": "medium",
        "filters": {"allowed_domains": ["turn.example"]},
        "user_location": {"type": "approximate", "city": "Bern"},
    },
}


def searches_in(server: Server) -> list[Any]:
    """Return the web search that each request offers, `None` for one without."""
    offered = [[tool for tool in one.body.get("tools", []) if "web_search" in str(tool)] for one in server.asked]
    left_out = ("cache_control", "type")  # its type has a version
    return [
        {key: value for key, value in tools[0].items() if value is not None and key not in left_out} if tools else None
        for tools in offered
    ]


@pytest.mark.parametrize("dialect", [Anthropic(), Responses()], ids=lambda dialect: dialect.name)
async def test_web_search_per_chat_and_step(dialect: Dialect, server: Server, connect: Connect) -> None:
    """A chat has it by its parameters, whatever its agent has; a title is made without it."""
    server.script = [Answer(dialect.frames(Said())) for _ in range(4)]
    options = {key: value for key, value in SEARCH.items() if dialect.name == "anthropic" or key != "max_uses"}
    settings = Settings(parameters={"web_search": options})
    async with Engine("sqlite://", model=await connect(dialect), settings=settings, tools=[add]) as engine:
        chat, other = [await engine.create_chat(parameters=own) for own in (None, {"web_search": False})]
        await engine.ask(chat.id, "Search.", timeout=60)
        await engine.ask(other.id, "Search.", timeout=60)
        await engine.configure(other.id, parameters={"web_search": True})
        await engine.ask(other.id, "Search.", timeout=60)
    first, second, third = searches_in(server)
    assert (first, second) == (SEARCHES[dialect.name], None)
    assert third is not None
    assert "user_location" not in third
    assert parameters_for_titles(settings) == {}


async def test_web_search_beside_computer_use(server: Server, connect: Connect) -> None:
    server.script = [Answer(Anthropic().frames(Said())) for _ in range(2)]
    native = [WebSearchTool(max_uses=3)]
    for tools, parameters in (([], {"web_search": SEARCH}), (native, {})):
        model = await connect(Anthropic(), native_tools=tools)
        async for _ in model.stream(asked("Hi.", tools=[SPEC, ADD], parameters=parameters)):
            pass
    names = [[offered["name"] for offered in request.body["tools"]] for request in server.asked]
    assert names == [["computer", "add", "web_search"]] * 2
    assert server.asked[0].body["tools"][2]["type"] == "web_search_20250305"
    assert searches_in(server)[0] == SEARCHES["anthropic"]
    assert BETA in betas(server)


async def test_search_that_a_model_cannot_do_is_refused(server: Server, connect: Connect) -> None:
    """Where it is wanted, and not in the middle of a turn."""
    model, refused = await connect(Chat()), "cannot search the web by itself"
    with pytest.raises(SettingsError, match=f"agent 'default'.*{refused}"):
        Engine("sqlite://", model=model, settings=Settings(parameters={"web_search": True}))
    async with Engine("sqlite://", model=model) as engine:
        with pytest.raises(SettingsError, match=f"this chat: .*{refused}"):
            await engine.create_chat(parameters={"web_search": True})
        chat = await engine.create_chat(parameters={"web_search": False})
        with pytest.raises(SettingsError, match=f"this chat: .*{refused}"):
            await engine.configure(chat.id, parameters={"web_search": {"max_uses": 1}})
        with pytest.raises(SettingsError, match=r"\['web_search'\]\['sites'\]: must be one of 'allowed_domains'"):
            await engine.create_chat(parameters={"web_search": {"sites": []}})
    assert server.asked == []
