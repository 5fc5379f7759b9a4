"""Anthropic's own tools that turnwise runs: requests to Anthropic, and to other providers."""

import json
from base64 import b64encode
from typing import Any

import pytest
from pydantic_ai.native_tools import WebSearchTool
from tests.wire.dialects import Anthropic, Chat, Connect, Dialect, Google, PlainReply, Responses
from tests.wire.requests import asked

from support.wire.server import Answer, Server
from turnwise import (
    ChatState,
    Engine,
    FilePart,
    ModelError,
    ProviderDefinition,
    RetryPolicy,
    Settings,
    TextPart,
    ToolOutput,
    ToolSpec,
    tool,
)
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
    """The definition is sent unchanged, and the call runs here: the picture is returned as the result's image."""
    dialect = Anthropic()
    click = '{"action": "left_click", "coordinate": [3, "4"]}'
    server.script = [
        Answer(dialect.frames(PlainReply("I click.", calls=[("toolu_1", "computer", click)]))),
        Answer(dialect.frames(PlainReply("I see."))),
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
    text, seen = answered["content"]
    assert (answered["type"], answered["tool_use_id"], answered["is_error"]) == ("tool_result", "toolu_1", False)
    assert text["text"] == "did left_click at [3, 4]"
    assert seen["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}


async def test_other_tools_are_sent_as_pydantic_ai_writes_them(server: Server, connect: Connect) -> None:
    """A definition changes nothing else: this compares the handwritten list with pydantic-ai's own."""
    server.script = [Answer(Anthropic().frames(PlainReply()))]
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
    """Not as a function of its name, either: the model would have to guess its arguments."""
    model = await connect(dialect)
    own = ProviderDefinition("openai", {"type": "computer_use_preview", "name": "computer"})
    for definition, why in ((DEFINITION, "only models of anthropic can"), (own, "Anthropic's Messages API only")):
        offered = ToolSpec("computer", "", {"type": "object"}, definition)
        with pytest.raises(
            ModelError, match=f"tool 'computer' is {definition.provider}'s own.*of openai.*{why}"
        ) as reported:
            async for _ in model.stream(asked("Hi.", tools=[ADD, offered])):
                pass
        assert (reported.value.kind, reported.value.retryable) == ("bad_request", False)
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
    """The chat's parameters enable it, independent of its agent; a title is made without it."""
    server.script = [Answer(dialect.frames(PlainReply())) for _ in range(4)]
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
    server.script = [Answer(Anthropic().frames(PlainReply())) for _ in range(2)]
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
    """Where it is requested, and not in the middle of a turn."""
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


# Refused content


class Gemini(Google):
    """A model that gets a tool's pictures beside its results."""

    model = "google:gemini-2.5-pro@{url}"

    def error(self, status: int, code: str, message: str, **headers: str) -> Answer:
        return Answer.of({"error": {"code": status, "message": message, "status": code}}, status, **headers)


ALL = [Chat(), Responses(), Anthropic(), Gemini()]
each_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
GOOD, BAD = b"\x89PNG good", b"\x89PNG bad"
SHOOT = PlainReply(text="I look.", reasoning="Hm.", signature="signed", calls=[("c1", "shoot", "{}")])
IN_MESSAGE = {
    "openai": "Invalid 'messages[0].content[2].image_url.url'.",
    "openai-responses": "Invalid 'input[0].content[2].image_url'.",
    "anthropic": "messages.0.content.2.image.source.base64.data: dimensions exceed max allowed size: 8000 pixels",
    "google": "contents[0].parts[2].inline_data.data: cannot be read",
}
IN_RESULT = {
    "openai": "Invalid 'messages[3].content[4].image_url.url'.",
    "openai-responses": "Invalid 'input[4].output[2].image_url'.",
    "anthropic": "messages.2.content.0.tool_result.content.2.image.source.base64.data: too large",
    "google": "contents[3].parts[4].inline_data.data: cannot be read",
}
UNNAMED = dict.fromkeys(IN_MESSAGE, "Unable to process input image.")
REASONING = {
    "openai": "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
    "openai-responses": "The encrypted content for item rs_1 could not be verified.",
    "anthropic": "messages.1.content.0: Invalid `signature` in `thinking` block",
    "google": "contents[1].parts[1]: Function call has a thought_signature that is not valid.",
}


@tool
async def shoot() -> ToolOutput:
    """Take two pictures."""
    return ToolOutput("here", (picture(GOOD), picture(BAD)))


def picture(data: bytes) -> FilePart:
    return FilePart.from_bytes(data, "image/png")


def refusal(dialect: Dialect, message: str) -> Answer:
    return dialect.error(400, "INVALID_ARGUMENT" if dialect.name == "google" else "invalid_request_error", message)


def spoken(dialect: Dialect, reply: PlainReply | None = None) -> Answer:
    return Answer(dialect.frames(reply or PlainReply()))


def holds(body: Any, data: bytes) -> bool:
    return b64encode(data).decode() in json.dumps(body)


@each_dialect
@pytest.mark.parametrize("by_tool", [False, True])
@pytest.mark.parametrize("named", [True, False])
async def test_refused_file_is_left_out_once(
    dialect: Dialect, by_tool: bool, named: bool, server: Server, connect: Connect
) -> None:
    """The others stay, if the provider names the file; later messages are answered at the first request."""
    places = (IN_RESULT if by_tool else IN_MESSAGE) if named else UNNAMED
    before = [spoken(dialect, SHOOT)] if by_tool else []
    server.script = [*before, refusal(dialect, places[dialect.name]), spoken(dialect)]
    content = "Shoot." if by_tool else [TextPart(text="Look."), picture(GOOD), picture(BAD)]
    async with Engine("sqlite://", model=await connect(dialect), tools=[shoot]) as engine:
        chat = await engine.create_chat()
        first = await engine.ask(chat.id, content, timeout=60)
        then = await engine.ask(chat.id, "And now?", timeout=60)
        assert (first.chat.state, then.chat.state) == (ChatState.waiting, ChatState.waiting)
        assert (await engine.verify(chat.id)).ok
        shown = json.dumps([message.model_dump(mode="json") for message in await engine.messages(chat.id)])
        assert b64encode(BAD).decode() in shown, "the history keeps what a model is not sent"
    bodies = [asked.body for asked in server.asked[len(before) :]]
    assert len(bodies) == 3
    assert [holds(body, BAD) for body in bodies] == [True, False, False]
    assert [holds(body, GOOD) for body in bodies] == [True, named, named]
    note = "The file without a name (image/png) is left out here: the provider refused it."
    assert [note in json.dumps(body) for body in bodies] == [False, True, True]


@each_dialect
@pytest.mark.parametrize(
    ("status", "message"),
    [(413, "Request Entity Too Large"), (404, "No endpoints found that support image input")],
)
async def test_files_refused_by_size_or_kind_are_left_out(
    dialect: Dialect, status: int, message: str, server: Server, connect: Connect
) -> None:
    server.script = [dialect.error(status, "request_too_large", message), spoken(dialect)]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        for content in ([TextPart(text="Look."), picture(BAD)], "And now?"):
            assert (await engine.ask(chat.id, content, timeout=60)).chat.state is ChatState.waiting
    assert [holds(asked.body, BAD) for asked in server.asked] == [True, False, False]


@each_dialect
async def test_refusal_of_what_is_left_out_ends_the_turn(dialect: Dialect, server: Server, connect: Connect) -> None:
    """The error and `explain` name the message and the remedies; each remedy works."""
    content = [TextPart(text="Look."), TextPart(text="Here:"), picture(BAD)]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        for free in (free_by_edit, free_by_clear):
            chat = await engine.create_chat()
            server.script, asked = [refusal(dialect, IN_MESSAGE[dialect.name])], len(server.asked)
            result = await engine.ask(chat.id, content, timeout=60)
            assert (result.chat.state, len(server.asked) - asked) == (ChatState.error, 2)
            assert (result.chat.last_error.kind, result.chat.last_error.message_id) == ("bad_request", "m1")
            reason = (await engine.explain(chat.id)).reason
            assert "message 'm1': edit or erase it, clear the context, or configure another model" in reason
            server.script = [spoken(dialect)]
            await free(engine, chat.id)
            assert (await engine.ask(chat.id, "And now?", timeout=60)).chat.state is ChatState.waiting


async def free_by_edit(engine: Engine, chat_id: str) -> None:
    await engine.edit_message(chat_id, "m1", "Look at nothing.")
    await engine.wait(chat_id, until=["waiting"], timeout=60)


async def free_by_clear(engine: Engine, chat_id: str) -> None:
    await engine.clear_context(chat_id)


@each_dialect
async def test_refused_reasoning_does_not_end_the_chat(dialect: Dialect, server: Server, connect: Connect) -> None:
    """Refused reasoning is left out; a call without a required field is sent as text."""
    server.script = [spoken(dialect, SHOOT), refusal(dialect, REASONING[dialect.name]), spoken(dialect)]
    async with Engine("sqlite://", model=await connect(dialect), tools=[shoot]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "Shoot.", timeout=60)).chat.state is ChatState.waiting
        roles = [message.role for message in await engine.messages(chat.id, view="model")]
        assert (await engine.ask(chat.id, "And now?", timeout=60)).chat.state is ChatState.waiting
    assert len(server.asked) == 4
    last = json.dumps(server.asked[-1].body)
    in_words = dialect.name in ("openai", "google")
    assert ("[shoot was called with {}]" in last) is ("user" in roles[1:]) is in_words
    assert "here" in last
    assert "signed" not in last


@pytest.mark.parametrize("dialect", [Anthropic(), Gemini()], ids=lambda dialect: dialect.name)
async def test_request_respects_provider_limits(dialect: Dialect, server: Server, connect: Connect) -> None:
    """A chat may accept files that its model refuses: a note says so, and no request is refused."""
    pages = b"".join(b"%d 0 obj << /Type /Page >> endobj\n" % number for number in range(1, 1002))
    wide = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (9000).to_bytes(4) * 2
    server.script = [spoken(dialect)]
    content = [FilePart.from_bytes(b"%PDF-1.4\n" + pages, "application/pdf"), picture(wide)]
    settings = Settings(picture_limit_pixels=None)
    async with Engine("sqlite://", model=await connect(dialect), settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, content, timeout=60)
    (sent,) = (json.dumps(asked.body) for asked in server.asked)
    assert "and this one has 1,001" in sent
    assert ("8,000 pixels on a side at most" in sent) is (dialect.name == "anthropic")


GONE = "http://127.0.0.1:9/gone.png"


@each_dialect
async def test_expired_address_is_left_out(dialect: Dialect, server: Server, connect: Connect) -> None:
    """Whether the provider or its library fetches it: the other address stays."""
    refused = refusal(dialect, f"Error while downloading {GONE}. Upstream status code: 404.")
    server.script = [spoken(dialect)] if dialect.name == "google" else [refused, spoken(dialect)]
    other = TextPart(text="Look.") if dialect.name == "google" else FilePart(media_type="image/png", url=f"{GONE}/not")
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        content = [other, FilePart(media_type="image/png", url=GONE)]
        assert (await engine.ask(chat.id, content, timeout=60)).chat.state is ChatState.waiting
    sent = json.dumps(server.asked[-1].body)
    assert f'"{GONE}"' not in sent
    assert ("Look." in sent) if dialect.name == "google" else (f'"{GONE}/not"' in sent)


@pytest.mark.parametrize(
    "url",
    ["http://nowhere.invalid/a.wav", "http://a.example:99999/a.wav", "http://[::1", f"http://{'a' * 64}.example/"],
)
async def test_address_without_a_host_is_left_out(url: str, server: Server, connect: Connect) -> None:
    """pydantic-ai downloads the file: every later request would fail, too."""
    dialect = Chat()
    server.script = [spoken(dialect)]
    settings = Settings(retry=RetryPolicy(attempts=1))
    async with Engine("sqlite://", model=await connect(dialect), settings=settings) as engine:
        chat = await engine.create_chat()
        content = [TextPart(text="Listen."), FilePart(media_type="audio/wav", url=url)]
        assert (await engine.ask(chat.id, content, timeout=60)).chat.state is ChatState.waiting
    sent = json.dumps(server.asked[-1].body)
    assert "Listen." in sent
    assert "is left out here" in sent


async def test_refusal_within_a_stream_is_one(server: Server, connect: Connect) -> None:
    """OpenAI's Responses start to answer before they check pictures."""
    dialect, error = Responses(), {"code": "image_parse_error", "message": "It does not represent a valid image."}
    ended = dialect.ending(PlainReply(text=""), "response.failed", status="failed", error=error)
    server.script = [Answer(ended), spoken(dialect)]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, [TextPart(text="Look."), picture(BAD)], timeout=60)
        assert result.chat.state is ChatState.waiting
    assert [holds(asked.body, BAD) for asked in server.asked] == [True, False]


async def test_refused_content_uses_up_no_attempts(server: Server, connect: Connect) -> None:
    """Each next request differs from the refused one; the first failure of such a request is retried."""
    dialect = Anthropic()
    refusals = [refusal(dialect, IN_MESSAGE["anthropic"].replace("2.image", f"{place}.image")) for place in (1, 2)]
    server.script = [*refusals, dialect.error(503, "overloaded_error", "Busy."), spoken(dialect)]
    settings = Settings(retry=RetryPolicy(attempts=2, first_delay=0.001))
    async with Engine("sqlite://", model=await connect(dialect), settings=settings) as engine:
        chat = await engine.create_chat()
        content = [TextPart(text="Look."), picture(GOOD), picture(BAD)]
        assert (await engine.ask(chat.id, content, timeout=60)).chat.state is ChatState.waiting
    assert [holds(asked.body, GOOD) for asked in server.asked] == [True, False, False, False]


async def test_text_that_is_said_twice_is_left_out_where_it_is_refused(server: Server, connect: Connect) -> None:
    dialect = Anthropic()
    refused = refusal(dialect, "messages.2.content.0.text: not allowed")
    server.script = [spoken(dialect), refused, spoken(dialect)]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        for _ in range(2):
            assert (await engine.ask(chat.id, "Again.", timeout=60)).chat.state is ChatState.waiting
    texts = [block["content"][0]["text"] for block in server.asked[-1].body["messages"] if block["role"] == "user"]
    assert texts == ["Again.", "[A text is left out here: the provider refused it.]"]
