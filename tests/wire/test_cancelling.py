"""Stopping: who stops listening closes the provider's connection at once, so that nobody pays for what nobody hears."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.json import encode
from tests.wire.dialects import DIALECTS, Anthropic, Connect, Dialect, Responses, Said

from support.wire.server import Answer, Server
from turnwise import ChatState, Engine

AT_ONCE = 0.1
"""Seconds within which a connection must be closed."""


def _silent(dialect: Dialect, *, after_output: bool) -> Answer:
    return Answer(dialect.frames(Said())[: -dialect.finish_frames] if after_output else None, end="silence")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_interrupt_closes_connection_and_keeps_shown_text(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    server.script = [_silent(dialect, after_output=True), Answer(dialect.frames(Said("And on.")))]
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
    begun = anthropic.stream(blocks, "end_turn")[:frames]
    server.script = [Answer(begun, end="silence"), Answer(anthropic.frames(Said("And on.")))]
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
    """It refuses a reasoning item without the whole item that followed it, and a call without its reasoning item."""
    responses = Responses()
    calls = [("call_1", "add", '{"b": 1}'), ("call_2", "add", '{"b": 2}')]
    said = Said("", reasoning="Two sums.", signature="sig+/=", calls=calls)
    server.script = [
        Answer(responses.frames(said)[: -responses.finish_frames], end="silence"),
        Answer(responses.frames(Said("And on."))),
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
