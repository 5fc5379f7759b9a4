"""A life with every kind of event."""

from __future__ import annotations

from support.events import seen
from turnwise import ChatState, ClientTool, Engine, ModelError, ToolContext, ToolResult, tool
from turnwise.providers.scripted import Call, Reply
from turnwise.testing.clock import ManualClock

ASK = ClientTool("ask", "Ask the person.", {"type": "object"})


@tool
async def look(context: ToolContext) -> str:
    """Look around."""
    context.report({"seen": 1})
    return "2 things"


async def rich_life(engine: Engine, model_clock: ManualClock) -> str:
    """Run a retry, tools, a client call, a compaction, a queue, a stop and an edit; return the chat's id."""
    chat = await engine.create_chat(client_tools=[ASK])
    await engine.send_message(chat.id, "hello")
    await seen(engine, chat.id, "retry")
    await engine.send_message(chat.id, "and then?")
    await model_clock.advance(1)
    await engine.wait(chat.id, until=[ChatState.requires_action])
    await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])
    await seen(engine, chat.id, "part", step=3)
    await engine.interrupt(chat.id)
    await engine.wait(chat.id, until=[ChatState.interrupted])
    first = (await engine.messages(chat.id))[0]
    await engine.edit_message(chat.id, first.id, "hello again")
    await engine.wait(chat.id, until=[ChatState.waiting])
    return chat.id


def rich_script() -> list[Reply]:
    """Return the model's script of that life. Its context window holds 100 tokens."""
    calls = [Call("look", {}, id="l"), Call("ask", {"what": "colour"}, id="a")]
    return [
        Reply("Hmmm", chunks=1, error=ModelError("overloaded"), error_after=2),
        Reply("Let me see", chunks=3, reasoning="think", signature="s", calls=calls, usage=(80, 5)),
        Reply("It is", chunks=2, usage=(20, 5)),
        Reply("And then", chunks=3, stall_after=2),
        Reply("Fine", chunks=1, usage=(10, 1)),
    ]
