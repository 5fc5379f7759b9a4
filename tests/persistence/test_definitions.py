"""Calls of tools that a provider knows itself, on every store: crashes, and workers that lack the tool."""

from __future__ import annotations

from typing import Any, Literal

import anyio
import pytest

from turnwise import Agent, Engine, ProviderDefinition, Settings, ToolContext, ToolOutput, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.messages import FilePart

DEFINITION = ProviderDefinition("anthropic", {"type": "computer_20250124", "name": "computer"}, ["computer-use"])
PICTURE = FilePart(media_type="image/png", data="aGVsbG8=")
CLICK = Reply(calls=[Call("computer", {"action": "left_click"}, id="c1")])


@pytest.mark.parametrize("crash", ["at_most_once", "at_least_once"])
async def test_a_call_that_was_cut_off_ends_as_its_crash_policy_says(
    either_url: str, crash: Literal["at_most_once", "at_least_once"]
) -> None:
    """Its screenshot and its result are stored, and a log without gaps, whoever ran it in the end."""
    keys: list[str] = []
    began = anyio.Event()

    @tool(definition=DEFINITION, crash=crash)
    async def use(context: ToolContext, action: str) -> Any:
        keys.append(context.idempotency_key)
        began.set()
        if len(keys) == 1:
            await anyio.sleep_forever()
        return ToolOutput(action, (PICTURE,))

    def worker(*replies: Any) -> Engine:
        model = ScriptedModel(list(replies), provider="anthropic")
        return Engine(either_url, model=model, tools=[use], settings=Settings(shutdown_grace=0))

    async with worker(CLICK) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Click.")
        await began.wait()
    async with worker("Done.") as engine:
        assert (await engine.wait(chat.id, timeout=60)).state == "waiting"
        (result,) = [one.result for one in await engine.messages(chat.id) if one.result is not None]
        assert (await engine.verify(chat.id)).ok
    if crash == "at_most_once":
        assert (result.outcome, result.attachments, len(keys)) == ("unknown", (), 1)
    else:
        assert (result.output, result.attachments, keys) == ("left_click", (PICTURE,), [f"{chat.id}:c1"] * 2)


async def test_a_worker_without_the_tool_leaves_the_chat_alone(either_url: str) -> None:
    began = anyio.Event()

    @tool(definition=DEFINITION, crash="at_least_once")
    async def use(action: str) -> str:
        began.set()
        if len(asked) == 1:
            await anyio.sleep_forever()
        return action

    def worker(tools: list[Any], *replies: Any, provider: str = "anthropic") -> Engine:
        model = ScriptedModel(list(replies), provider=provider)
        asked.append(model)
        settings = Settings(shutdown_grace=0, poll_interval=0.02)
        return Engine(either_url, agents=[Agent("mouse", model, tools=tools)], settings=settings)

    asked: list[ScriptedModel] = []
    async with worker([use], CLICK) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Click.")
        await began.wait()
    async with worker([], "ok", provider="openai") as engine:
        other = await engine.create_chat()
        await engine.ask(other.id, "hi")
        assert (await engine.get_chat(chat.id)).state == "pending"
        assert (
            "waits for a worker that runs agent 'mouse' with tool 'computer'" in (await engine.explain(chat.id)).reason
        )
    assert [request.chat_id for request in asked[1].requests] == [other.id]
    async with worker([use], "Done.") as engine:
        assert (await engine.wait(chat.id, timeout=60)).state == "waiting"
    async with worker([], "I saw that.", provider="openai") as engine:
        assert (await engine.ask(chat.id, "And?")).text == "I saw that."
        assert (await engine.verify(chat.id)).ok
    history = asked[3].requests[0].messages
    assert [part.name for message in history for part in message.calls] == ["computer"]
    assert asked[3].requests[0].tools == ()
