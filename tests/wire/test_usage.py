"""Usage is booked as the provider reported it, also when the reply never ended."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.json import encode
from msgspec.structs import replace
from tests.wire.dialects import DIALECTS, Anthropic, Chat, Connect, Dialect, Google, PlainReply, Responses
from tests.wire.requests import asked

from support.wire.server import Answer, Server
from turnwise import ChatState, Engine
from turnwise.providers.reply_builder import join
from turnwise.states.usage import Usage

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def _mapped(frame: str, change: Callable[[Any], Any]) -> str:
    head, mark, data = frame.partition("data: ")
    return frame if not data.startswith("{") else f"{head}{mark}{json.dumps(change(json.loads(data)))}\n\n"


async def _usage(frames: list[str], model: Any, server: Server) -> Usage | None:
    server.script, server.asked = [Answer(frames)], []
    return join([part async for part in model.stream(asked("Hello."))]).usage


@each_dialect
async def test_usage_counts_cached_prompt_tokens(dialect: Dialect, server: Server, connect: Connect) -> None:
    """Anthropic reports 30 fresh, 60 read and 10 written tokens apart; OpenAI 100 with 60 of them read."""
    written = {"openai": None, "openai-responses": 0, "anthropic": 10}
    assert await _usage(dialect.frames(PlainReply()), await connect(dialect), server) == Usage(
        input_tokens=100,
        output_tokens=20,
        reasoning_tokens=7,
        cache_read_tokens=60,
        cache_write_tokens=written[dialect.name],
    )


async def test_cached_tokens_of_google_are_unknown_when_absent(server: Server, connect: Connect) -> None:
    """Google leaves zeros out, and pydantic-ai fills them in: the two cases look alike."""
    google = await connect(Google())
    counts = {"cachedContentTokenCount": 60, "thoughtsTokenCount": 7}
    known = Usage(input_tokens=100, output_tokens=20)
    assert await _usage(Google().frames(PlainReply()), google, server) == known
    assert await _usage(Google().frames(PlainReply(), **counts), google, server) == Usage(
        input_tokens=100, output_tokens=27, reasoning_tokens=7, cache_read_tokens=60
    )


@dataclass(frozen=True)
class Cut:
    """A reply that stops after its output, and the usage reported until then."""

    dialect: Dialect
    frames: list[str]
    known: Usage
    options: dict[str, Any]


def _with_usage_in_every_chunk(frames: list[str]) -> list[str]:
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    return [_mapped(frame, lambda chunk: {**chunk, "usage": usage}) for frame in frames]


async def test_usage_repeated_in_every_chunk_is_not_summed(server: Server, connect: Connect) -> None:
    """Each chunk repeats the usage so far: the sum would turn a prompt of 100 tokens into one of 500."""
    frames = _with_usage_in_every_chunk(Chat().frames(PlainReply())[:-2])
    assert await _usage(frames, await connect(Chat()), server) == Usage(input_tokens=100, output_tokens=1)


CUTS = [
    Cut(
        Anthropic(),
        Anthropic().frames(PlainReply())[:-2],
        Usage(input_tokens=100, output_tokens=1, cache_read_tokens=60, cache_write_tokens=10),
        {},
    ),
    Cut(
        Chat(),
        _with_usage_in_every_chunk(Chat().frames(PlainReply())[:-3]),
        Usage(input_tokens=100, output_tokens=1),
        {"settings": {"openai_continuous_usage_stats": True}},
    ),
    Cut(Google(), Google().frames(PlainReply())[:2], Usage(input_tokens=100, output_tokens=1), {}),
]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.dialect.name)
async def test_usage_of_an_interrupted_attempt_is_partial(cut: Cut, server: Server, connect: Connect) -> None:
    server.script = [Answer(cut.frames, end="silence")]
    async with Engine("sqlite://", model=await connect(cut.dialect, **cut.options)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Greet the world.")
        async for event in engine.events(chat.id):
            if event.kind == "part":
                break
        await engine.interrupt(chat.id)
        chat = await engine.wait(chat.id)
    assert chat.state is ChatState.interrupted
    assert replace(chat.usage, cost=None, cost_partial=False) == cut.known.marked_partial()


# Stopping


AT_ONCE = 0.1
"""Seconds within which a connection must be closed."""


def _silent(dialect: Dialect, *, after_output: bool) -> Answer:
    return Answer(dialect.frames(PlainReply())[: -dialect.finish_frames] if after_output else None, end="silence")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_interrupt_closes_connection_and_keeps_shown_text(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    server.script = [_silent(dialect, after_output=True), Answer(dialect.frames(PlainReply("And on.")))]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Greet the world.")
        request = await server.request(1)
        async for event in engine.events(chat.id):
            if event.kind == "part":
                break
        stopped_at = asyncio.get_running_loop().time()
        await engine.interrupt(chat.id)
        await request.gone.wait()
        chat = await engine.wait(chat.id)
        assert request.gone_at - stopped_at < 2 * AT_ONCE
        assert (chat.state, chat.settled) == (ChatState.interrupted, True)
        assert [message.text for message in await engine.messages(chat.id)] == ["Greet the world.", "Hello world."]
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id)).state is ChatState.waiting


def _thinking(*deltas: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return {"type": "thinking", "thinking": "", "signature": ""}, list(deltas)


TEXT = ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "Half an ans"}])
THOUGHT = {"type": "thinking_delta", "thinking": "Two sums."}
SIGNED = {"type": "signature_delta", "signature": "sig+/="}
REDACTED = {"type": "redacted_thinking", "data": "hidden+/="}
SENT_TEXT = {"type": "text", "text": "Half an ans"}
SENT_THOUGHT = {"type": "thinking", "thinking": "Two sums.", "signature": "sig+/="}


@pytest.mark.parametrize(
    ("blocks", "frames", "sent"),
    [
        pytest.param([_thinking(THOUGHT, SIGNED), TEXT], 8, [SENT_THOUGHT, SENT_TEXT], id="complete reasoning"),
        pytest.param([(REDACTED, []), TEXT], 6, [REDACTED, SENT_TEXT], id="redacted reasoning"),
        pytest.param([_thinking(THOUGHT), TEXT], 7, [SENT_TEXT], id="reasoning without its signature"),
        pytest.param([_thinking(THOUGHT, SIGNED)], 6, None, id="reasoning alone"),
    ],
)
async def test_interrupted_reply_sends_only_signed_reasoning(
    blocks: Any, frames: int, sent: list[dict[str, Any]] | None, server: Server, connect: Connect
) -> None:
    """Anthropic refuses reasoning without its signature, and a reply that ends in reasoning."""
    anthropic = Anthropic()
    frames_sent = anthropic.stream(blocks, "end_turn")[:frames]
    server.script = [Answer(frames_sent, end="silence"), Answer(anthropic.frames(PlainReply("And on.")))]
    last_shown = "text" if sent else "reasoning"
    async with Engine("sqlite://", model=await connect(anthropic)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Add.")
        async for event in engine.events(chat.id):
            if event.kind == "part" and event.part.type == last_shown:
                break
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        shown = [encode(event).decode() async for event in engine.events(chat.id, follow=False)]
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id)).state is ChatState.waiting
    assert all("endpoint" not in event for event in shown)
    replies = [message["content"] for message in server.asked[1].body["messages"] if message["role"] == "assistant"]
    assert replies == ([sent] if sent else [])


async def test_interrupted_reply_sends_no_item_ids_to_openai(server: Server, connect: Connect) -> None:
    """It refuses a reasoning item without the complete item after it, and a call without its reasoning item."""
    responses = Responses()
    calls = [("call_1", "add", '{"b": 1}'), ("call_2", "add", '{"b": 2}')]
    reply = PlainReply("", reasoning="Two sums.", signature="sig+/=", calls=calls)
    server.script = [
        Answer(responses.frames(reply)[: -responses.finish_frames], end="silence"),
        Answer(responses.frames(PlainReply("And on."))),
    ]
    async with Engine("sqlite://", model=await connect(responses)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Add.")
        async for event in engine.events(chat.id):
            if event.kind == "part" and event.part.complete is not None:
                break
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id)).state is ChatState.waiting
    sent = server.asked[1].body["input"]
    assert [item.get("type", "message") for item in sent] == ["message", "function_call", "function_call_output"]
    assert "rs_1" not in str(sent)
    assert "fc_call_1" not in str(sent)
