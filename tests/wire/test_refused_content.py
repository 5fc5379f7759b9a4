"""What a provider refuses of a request is left out of the next one, with a note, and does not end the chat."""

import json
from base64 import b64encode
from typing import Any

import pytest
from tests.wire.dialects import Anthropic, Chat, Connect, Dialect, Google, Responses, Said

from support.wire.server import Answer, Server
from turnwise import ChatState, Engine, FilePart, Settings, TextPart, ToolOutput, tool


class Gemini(Google):
    """Of a model whose pictures of tools stand beside their results."""

    model = "google:gemini-2.5-pro@{url}"

    def error(self, status: int, code: str, message: str, **headers: str) -> Answer:
        """Return the answer that refuses a request."""
        return Answer.of({"error": {"code": status, "message": message, "status": code}}, status, **headers)


ALL = [Chat(), Responses(), Anthropic(), Gemini()]
each_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
GOOD, BAD = b"\x89PNG good", b"\x89PNG bad"
SHOOT = Said(text="I look.", reasoning="Hm.", signature="signed", calls=[("c1", "shoot", "{}")])
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


def spoken(dialect: Dialect, said: Said | None = None) -> Answer:
    return Answer(dialect.frames(said or Said()))


def holds(body: Any, data: bytes) -> bool:
    return b64encode(data).decode() in json.dumps(body)


@each_dialect
@pytest.mark.parametrize("by_tool", [False, True])
@pytest.mark.parametrize("named", [True, False])
async def test_refused_file_is_left_out_once(
    dialect: Dialect, by_tool: bool, named: bool, server: Server, connect: Connect
) -> None:
    """The others stay, if the provider names the one; later messages are answered at the first request."""
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
async def test_refusal_of_what_is_left_out_ends_the_turn(dialect: Dialect, server: Server, connect: Connect) -> None:
    """The error and `explain` say which message, and what frees the chat; each of that does."""
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
    """Reasoning that a provider refuses is left out; a call without what it demands is told in words."""
    server.script = [spoken(dialect, SHOOT), refusal(dialect, REASONING[dialect.name]), spoken(dialect)]
    async with Engine("sqlite://", model=await connect(dialect), tools=[shoot]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "Shoot.", timeout=60)).chat.state is ChatState.waiting
        said = [message.role for message in await engine.messages(chat.id, view="model")]
        assert (await engine.ask(chat.id, "And now?", timeout=60)).chat.state is ChatState.waiting
    assert len(server.asked) == 4
    last = json.dumps(server.asked[-1].body)
    in_words = dialect.name in ("openai", "google")
    assert ("[shoot was called with {}]" in last) is ("user" in said[1:]) is in_words
    assert "here" in last
    assert "signed" not in last


@pytest.mark.parametrize("dialect", [Anthropic(), Gemini()], ids=lambda dialect: dialect.name)
async def test_provider_limits_are_kept_when_the_request_is_built(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    """A chat may take what its model does not: a note says so, and no request is refused."""
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
    """Whether the provider or the library that asks it looks there: the other address stays."""
    refused = refusal(dialect, f"Error while downloading {GONE}. Upstream status code: 404.")
    server.script = [spoken(dialect)] if dialect.name == "google" else [refused, spoken(dialect)]
    kept = TextPart(text="Look.") if dialect.name == "google" else FilePart(media_type="image/png", url=f"{GONE}/not")
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        content = [kept, FilePart(media_type="image/png", url=GONE)]
        assert (await engine.ask(chat.id, content, timeout=60)).chat.state is ChatState.waiting
    sent = json.dumps(server.asked[-1].body)
    assert f'"{GONE}"' not in sent
    assert ("Look." in sent) if dialect.name == "google" else (f'"{GONE}/not"' in sent)


async def test_refusal_within_a_stream_is_one(server: Server, connect: Connect) -> None:
    """OpenAI's Responses begin to answer before they look at pictures."""
    dialect, error = Responses(), {"code": "image_parse_error", "message": "It does not represent a valid image."}
    ended = dialect.ending(Said(text=""), "response.failed", status="failed", error=error)
    server.script = [Answer(ended), spoken(dialect)]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, [TextPart(text="Look."), picture(BAD)], timeout=60)
        assert result.chat.state is ChatState.waiting
    assert [holds(asked.body, BAD) for asked in server.asked] == [True, False]


async def test_text_that_is_said_twice_is_left_out_where_it_is_refused(server: Server, connect: Connect) -> None:
    dialect = Anthropic()
    refused = refusal(dialect, "messages.2.content.0.text: not allowed")
    server.script = [spoken(dialect), refused, spoken(dialect)]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        for _ in range(2):
            assert (await engine.ask(chat.id, "Again.", timeout=60)).chat.state is ChatState.waiting
    said = [block["content"][0]["text"] for block in server.asked[-1].body["messages"] if block["role"] == "user"]
    assert said == ["Again.", "[A text is left out here: the provider refused it.]"]
