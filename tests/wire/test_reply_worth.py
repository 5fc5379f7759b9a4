"""What a reply is worth, in each dialect: the word that ends it, calls that are cut, refusals, parallel calls."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from tests.wire.dialects import DIALECTS, Chat, Connect, Dialect, Google, Responses, Said
from tests.wire.requests import asked

from support.wire.server import Answer, Server
from turnwise import ClientTool, Engine, StopReason, tool
from turnwise.providers.reply_builder import join

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


def ended(dialect: Dialect, said: Said, word: str) -> list[str]:
    """Return the closed stream of a reply that ends with the word, or without one if that is blank."""
    if isinstance(dialect, Responses):
        if word == "completed":
            return dialect.frames(said)
        return dialect.ending(said, "response.incomplete", incomplete_details={"reason": word} if word else None)
    key = {"google": "finishReason", "anthropic": "stop_reason"}.get(dialect.name, "finish_reason")
    named = re.compile(f'"{key}": "[^"]*"')
    return [named.sub(f'"{key}": {json.dumps(word or None)}', frame) for frame in dialect.frames(said)]


@pytest.mark.parametrize(("reason", "dialect", "word"), ENDINGS)
async def test_word_decides_what_a_reply_is_worth(
    reason: StopReason, dialect: Dialect, word: str, server: Server, connect: Connect
) -> None:
    """A closed stream is an answer after one request; whole calls run unless it was refused."""
    ran: list[str] = []

    @tool
    async def look(path: str) -> str:
        """Look."""
        ran.append(path)
        return "seen"

    asks = Said("", calls=[("c1", "look", '{"path": "/srv"}')])
    script = [ended(dialect, Said(), word), ended(dialect, asks, word), dialect.frames(Said("Done."))]
    server.script = [Answer(frames) for frames in script]
    async with Engine("sqlite://", model=await connect(dialect), tools=[look]) as engine:
        chat = await engine.create_chat()
        first = await engine.ask(chat.id, "Greet the world.", timeout=60)
        assert (first.text, first.stop_reason, len(server.asked)) == ("Hello world.", reason, 1)
        assert first.messages[-1].finish_reason == (word or None)
        last = await engine.ask(chat.id, "Look.", timeout=60)
        assert (last.text, last.stop_reason, len(server.asked)) == ("Done.", "end_turn", 3)
        assert ran == ([] if reason is StopReason.content_filter else ["/srv"])
        assert (await engine.verify(chat.id)).ok


@pytest.mark.parametrize(("dialect", "word"), [one.values[1:] for one in ENDINGS if one.values[1] is not GOOGLE])
async def test_cut_call_never_runs(dialect: Dialect, word: str, server: Server, connect: Connect) -> None:
    """Nor is a person or a client asked; the model is told what was missing. Gemini sends no text of arguments."""
    ran: list[str] = []

    @tool
    async def remove(path: str) -> str:
        """Remove a folder."""
        ran.append(path)
        return "removed"

    @tool(policy="ask")
    async def pay(path: str) -> str:
        """Pay."""
        ran.append(path)
        return "paid"

    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    half = '{"path": "/srv/shop'
    cut = Said("", calls=[(f"c{place}", name, half) for place, name in enumerate(["remove", "pay", "move"])])
    server.script = [Answer(ended(dialect, cut, word)), Answer(dialect.frames(Said("Done.")))]
    async with Engine("sqlite://", model=await connect(dialect), tools=[remove, pay]) as engine:
        chat = await engine.create_chat(client_tools=[ClientTool("move", "Move.", schema)])
        result = await engine.ask(chat.id, "Remove /srv/shop/tmp.", timeout=60)
        assert (result.text, result.chat.state, ran, len(server.asked)) == ("Done.", "waiting", [], 2)
    assert json.dumps(server.asked[1].body).count("end inside a string") == 3


def _refused(dialect: Dialect) -> list[str]:
    words = "I will not."
    if isinstance(dialect, Responses):
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        deltas = [{"type": "response.refusal.delta", **place, "delta": words}]
        deltas.append({"type": "response.refusal.done", **place, "refusal": words})
        opened, *_, over = dialect.frames(Said(""))
        return [opened, *(f"event: {delta['type']}\ndata: {json.dumps(delta)}\n\n" for delta in deltas), over]
    if dialect is ANTHROPIC:
        details = json.dumps({"type": "refusal", "category": None, "explanation": words})
        old, new = '"stop_sequence": null}', f'"stop_sequence": null, "stop_details": {details}}}'
        return [frame.replace(old, new) for frame in ended(dialect, Said(""), "refusal")]
    if dialect is GOOGLE:
        blocked: dict[str, Any] = {"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": words}}
        return [f"data: {json.dumps(blocked)}\n\n"]
    return [frame.replace('"content": "', '"refusal": "') for frame in Chat().frames(Said(words))]


@pytest.mark.parametrize("dialect", [*DIALECTS, GOOGLE], ids=lambda dialect: dialect.name)
async def test_words_of_a_refusal_are_kept(dialect: Dialect, server: Server, connect: Connect) -> None:
    server.script = [Answer(_refused(dialect))]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        result = await engine.ask((await engine.create_chat()).id, "Do it.", timeout=60)
    assert (result.text, result.stop_reason, len(server.asked)) == ("I will not.", "content_filter", 1)


@pytest.mark.parametrize("dialect", [CHAT, ANTHROPIC], ids=lambda dialect: dialect.name)
async def test_parallel_calls_of_one_index_are_two(dialect: Dialect, server: Server, connect: Connect) -> None:
    said = Said("", calls=[("c1", "look", '{"at": 1}'), ("c2", "look", '{"at": 2}')])
    server.script = [Answer([frame.replace('"index": 1', '"index": 0') for frame in dialect.frames(said)])]
    model = await connect(dialect)
    reply = join([part async for part in model.stream(asked("Look."))])
    assert [(call.call_id, call.arguments) for call in reply.calls] == [("c1", {"at": 1}), ("c2", {"at": 2})]
