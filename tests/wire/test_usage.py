"""Usage: what a provider reported is booked as it was reported, also when the reply never came to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from support.wire.dialects import DIALECTS, Anthropic, Chat, Connect, Dialect, Responses, Said
from support.wire.requests import asked
from support.wire.server import Answer, End, Server
from turnwise import ChatState, Engine, RetryPolicy, Settings
from turnwise.providers.reply_builder import join
from turnwise.states.usage import Usage

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


class Google(Chat):
    """Gemini's generateContent: each chunk tells what was used so far."""

    name = "google"
    model = "google:gemini-2.5-pro@{url}"
    finish_frames = 1

    def frames(self, said: Said, **counts: int) -> list[str]:
        """Return the stream of a reply, frame by frame."""
        return [self._frame(said.text, 1, None, counts), self._frame("", 20, "STOP", counts)]

    def _frame(self, text: str, output: int, reason: str | None, counts: dict[str, int]) -> str:
        candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": reason, "index": 0}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": output, **counts}
        return f"data: {json.dumps({'candidates': [candidate], 'usageMetadata': usage, 'responseId': 'r1'})}\n\n"


def _told(frames: list[str], **counts: int) -> list[str]:
    """Return the frames with other counts in their usage."""
    for name, count in counts.items():
        known = {"cached_tokens": 60, "reasoning_tokens": 7, "cache_read_input_tokens": 60}
        known |= {"cache_creation_input_tokens": 10, "cache_write_tokens": 0}
        frames = [frame.replace(f'"{name}": {known[name]}', f'"{name}": {count}') for frame in frames]
    return frames


def _silent_about_shares(frames: list[str]) -> list[str]:
    """Return the frames with totals only in their usage."""
    shares = {
        "prompt_tokens_details",
        "completion_tokens_details",
        "input_tokens_details",
        "output_tokens_details",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    }

    def without(value: Any) -> Any:
        return {key: without(kept) for key, kept in value.items() if key not in shares} if _is_object(value) else value

    return [_mapped(frame, without) for frame in frames]


def _mapped(frame: str, change: Callable[[Any], Any]) -> str:
    head, mark, data = frame.partition("data: ")
    return frame if not data.startswith("{") else f"{head}{mark}{json.dumps(change(json.loads(data)))}\n\n"


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


async def _usage(frames: list[str], model: Any, server: Server) -> Usage | None:
    server.script, server.asked = [Answer(frames)], []
    return join([part async for part in model.stream(asked("Hello."))]).usage


@each_dialect
async def test_usage_counts_every_prompt_token_cached_ones_included(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    """Anthropic reports 30 fresh, 60 read and 10 written tokens apart; OpenAI 100 with 60 of them read."""
    written = {"openai": None, "openai-responses": 0, "anthropic": 10}
    assert await _usage(dialect.frames(Said()), await connect(dialect), server) == Usage(
        input_tokens=100,
        output_tokens=20,
        reasoning_tokens=7,
        cache_read_tokens=60,
        cache_write_tokens=written[dialect.name],
    )


async def test_a_share_that_is_reported_as_zero_is_zero(server: Server, connect: Connect) -> None:
    zeros = {"cached_tokens": 0, "reasoning_tokens": 0}
    totals = Usage(input_tokens=100, output_tokens=20, reasoning_tokens=0, cache_read_tokens=0)
    chat, responses, anthropic = [await connect(dialect) for dialect in DIALECTS]
    assert await _usage(_told(Chat().frames(Said()), **zeros), chat, server) == totals
    assert await _usage(_told(Responses().frames(Said()), **zeros), responses, server) == replace(
        totals, cache_write_tokens=0
    )
    zeros = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    assert await _usage(_told(Anthropic().frames(Said()), **zeros), anthropic, server) == Usage(
        input_tokens=30, output_tokens=20, reasoning_tokens=7, cache_read_tokens=0, cache_write_tokens=0
    )


async def test_googles_cached_tokens_are_unknown_unless_there_are_some(server: Server, connect: Connect) -> None:
    """Google leaves zeros out, and pydantic-ai fills them in: which it was cannot be told."""
    google = await connect(Google())
    counts = {"cachedContentTokenCount": 60, "thoughtsTokenCount": 7}
    known = Usage(input_tokens=100, output_tokens=20)
    assert await _usage(Google().frames(Said()), google, server) == known
    assert await _usage(Google().frames(Said(), **counts), google, server) == Usage(
        input_tokens=100, output_tokens=27, reasoning_tokens=7, cache_read_tokens=60
    )


@each_dialect
async def test_a_share_that_is_not_reported_is_unknown_and_not_zero(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    usage = await _usage(_silent_about_shares(dialect.frames(Said())), await connect(dialect), server)
    prompt = 30 if dialect.name == "anthropic" else 100
    assert usage == Usage(input_tokens=prompt, output_tokens=20)


async def test_usage_that_is_not_reported_is_unknown_and_not_zero(server: Server, connect: Connect) -> None:
    frames = [frame for frame in Chat().frames(Said()) if '"usage"' not in frame]
    assert await _usage(frames, await connect(Chat()), server) is None


@dataclass(frozen=True)
class Cut:
    """A reply that stops after its output, and what was reported of it until then."""

    dialect: Dialect
    frames: list[str]
    known: Usage
    options: dict[str, Any]


def _with_usage_in_every_chunk(frames: list[str]) -> list[str]:
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    return [_mapped(frame, lambda chunk: {**chunk, "usage": usage}) for frame in frames]


async def test_usage_that_a_server_tells_unasked_in_every_chunk_is_no_sum(server: Server, connect: Connect) -> None:
    """Each chunk tells what was used so far: added up, a prompt of 100 tokens would be one of 500."""
    frames = _with_usage_in_every_chunk(Chat().frames(Said())[:-2])
    assert await _usage(frames, await connect(Chat()), server) == Usage(input_tokens=100, output_tokens=1)


CUTS = [
    Cut(
        Anthropic(),
        Anthropic().frames(Said())[:-2],
        Usage(input_tokens=100, output_tokens=1, cache_read_tokens=60, cache_write_tokens=10),
        {},
    ),
    Cut(
        Chat(),
        _with_usage_in_every_chunk(Chat().frames(Said())[:-3]),
        Usage(input_tokens=100, output_tokens=1),
        {"settings": {"openai_continuous_usage_stats": True}},
    ),
    Cut(Google(), Google().frames(Said())[:1], Usage(input_tokens=100, output_tokens=1), {}),
]
each_cut = pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.dialect.name)


def unpriced(usage: Usage) -> Usage:
    """Return the tokens alone: what they cost has tests of its own."""
    return replace(usage, cost=None, cost_partial=False)


@each_cut
@pytest.mark.parametrize("end", ["end", "drop"])
async def test_what_a_discarded_attempt_has_used_is_booked_as_partial(
    cut: Cut, end: End, server: Server, connect: Connect
) -> None:
    server.script = [Answer(cut.frames, end=end), Answer(cut.dialect.frames(Said()))]
    settings = Settings(retry=RetryPolicy(first_delay=0.01))
    async with Engine("sqlite://", model=await connect(cut.dialect, **cut.options), settings=settings) as engine:
        chat = await engine.create_chat()
        told = await engine.ask(chat.id, "Greet the world.")
    assert told.text == "Hello world."
    whole = await _usage(cut.dialect.frames(Said()), await connect(cut.dialect, **cut.options), server)
    assert whole is not None
    assert unpriced(told.usage) == unpriced(cut.known.marked_partial() + whole)


@each_cut
async def test_what_a_failed_attempt_has_used_is_booked_as_partial(cut: Cut, server: Server, connect: Connect) -> None:
    server.script = [Answer(cut.frames)]
    settings = Settings(retry=RetryPolicy(attempts=1))
    async with Engine("sqlite://", model=await connect(cut.dialect, **cut.options), settings=settings) as engine:
        chat = await engine.create_chat()
        told = await engine.ask(chat.id, "Greet the world.")
    assert told.chat.state is ChatState.error
    assert unpriced(told.chat.usage) == cut.known.marked_partial()


@each_cut
async def test_what_an_interrupted_attempt_has_used_is_booked_as_partial(
    cut: Cut, server: Server, connect: Connect
) -> None:
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
    assert unpriced(chat.usage) == cut.known.marked_partial()


async def test_what_a_refused_reply_has_used_is_booked_as_partial(server: Server, connect: Connect) -> None:
    """OpenAI's Responses tell the usage only at the end, a bad end included."""
    responses = Responses()
    created = responses.frames(Said())[0]
    usage = {**responses._response("completed", [])["usage"], "output_tokens": 3}
    failure = {"code": "server_error", "message": "Something broke."}
    failed = {**responses._response("failed", []), "usage": usage, "error": failure}
    told = {"type": "response.failed", "response": failed, "sequence_number": 1}
    server.script = [Answer([created, f"event: response.failed\ndata: {json.dumps(told)}\n\n"])]
    settings = Settings(retry=RetryPolicy(attempts=1))
    async with Engine("sqlite://", model=await connect(responses), settings=settings) as engine:
        chat = await engine.create_chat()
        ended = await engine.ask(chat.id, "Greet the world.")
    assert ended.chat.state is ChatState.error
    assert (ended.chat.usage.input_tokens, ended.chat.usage.output_tokens) == (100, 3)
    assert ended.chat.usage.partial
