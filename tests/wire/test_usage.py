"""Usage: what a provider reported is booked as it was reported, also when the reply never came to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace
from tests.wire.dialects import DIALECTS, Anthropic, Chat, Connect, Dialect, Said
from tests.wire.requests import asked

from support.wire.server import Answer, Server
from turnwise import ChatState, Engine
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
    assert await _usage(dialect.frames(Said()), await connect(dialect), server) == Usage(
        input_tokens=100,
        output_tokens=20,
        reasoning_tokens=7,
        cache_read_tokens=60,
        cache_write_tokens=written[dialect.name],
    )


async def test_cached_tokens_of_google_are_unknown_when_absent(server: Server, connect: Connect) -> None:
    """Google leaves zeros out, and pydantic-ai fills them in: which it was cannot be told."""
    google = await connect(Google())
    counts = {"cachedContentTokenCount": 60, "thoughtsTokenCount": 7}
    known = Usage(input_tokens=100, output_tokens=20)
    assert await _usage(Google().frames(Said()), google, server) == known
    assert await _usage(Google().frames(Said(), **counts), google, server) == Usage(
        input_tokens=100, output_tokens=27, reasoning_tokens=7, cache_read_tokens=60
    )


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


async def test_usage_repeated_in_every_chunk_is_not_summed(server: Server, connect: Connect) -> None:
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
