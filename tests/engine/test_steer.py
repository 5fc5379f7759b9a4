"""Steering messages enter the very next request of the running turn, in every state."""

from typing import Any

import pytest
from tests.engine.chats import lines_of
from tests.engine.subagents import family, lead, outputs, sent, starts, waits

from support.engines import OpenEngine
from support.events import events_of
from support.latches import Gate
from turnwise import (
    Agent,
    ChatStore,
    ClientTool,
    Engine,
    IllegalTransition,
    Settings,
    ToolContext,
    ToolResult,
    fold,
    tool,
)
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing import ManualClock, by_step, crash_everywhere

WORKS = Reply("On it.", calls=[Call("work", {}, id="w")])


def asked(model: Any) -> list[list[str]]:
    """Return the user's texts in each request."""
    return [[one.text for one in request.messages if one.role == "user"] for request in model.requests]


async def test_steering_enters_behind_the_results(open_engine: OpenEngine) -> None:
    """It can be edited and withdrawn until then; subscribers and reports show its position."""
    model, gate = ScriptedModel([WORKS, "Left it is.", "Later."]), Gate()
    async with open_engine(model, tools=[gate.tool]) as engine:
        chat = await engine.create_chat(message="go")
        await gate.entered.wait()
        later = await engine.send_message(chat.id, "later")
        first, second, third = [
            await engine.send_message(chat.id, text, when_busy="steer", client_id=text) for text in ("a", "b", "c")
        ]
        assert [later.queued, first.queued, second.queued] == [True] * 3
        await engine.edit_queued(chat.id, first.message_id, "left")
        await engine.delete_queued(chat.id, second.message_id)
        waiting = [(queued.text, queued.steers) for queued in await engine.queued(chat.id)]
        assert waiting == [("left", True), ("c", True), ("later", False)]
        assert "2 message(s) that steer the turn enter its next request" in (await engine.explain(chat.id)).reason
        gate.open.set()
        await engine.wait(chat.id)
        assert asked(model) == [["go"], ["go", "left", "c"], ["go", "left", "c", "later"]]
        history = await engine.messages(chat.id)
        assert lines_of(history) == [
            *("user: go", "assistant: On it. work(w)", "tool: w=work done", "user: left", "user: c"),
            *("assistant: Left it is.", "user: later", "assistant: Later."),
        ]
        assert [(one.text, one.turn) for one in history if one.steered] == [("left", 1), ("c", 1)]
        assert fold(await events_of(engine, chat.id)).messages == history
        taken = [event.ids for event in await events_of(engine, chat.id, "queue") if event.change == "taken"]
        assert taken == [(first.message_id, third.message_id), (later.message_id,)]
        again = await engine.send_message(chat.id, "c", when_busy="steer", client_id="c")
        assert (again.replayed, again.message_id) == (True, third.message_id)
        with pytest.raises(IllegalTransition):
            await engine.edit_queued(chat.id, first.message_id, "too late")
        answer = [event async for event in engine.events(chat.id, after=third.seq, follow=False)]
        assert [event.turn for event in answer if event.kind == "turn_finished"] == [1, 2]
        assert (await engine.verify(chat.id)).ok
        copy = await engine.create_chat(history=history)
        assert len(await engine.messages(copy.id)) == len(history)


async def test_steering_goes_with_the_results(open_engine: OpenEngine) -> None:
    """Also while the client is asked. With no turn running it starts one, as any message does."""
    model = ScriptedModel([Reply(calls=[Call("ask", {}, id="q")]), "Thanks.", "Hello."])
    async with open_engine(model) as engine:
        chat = await engine.create_chat(message="go", client_tools=[ClientTool("ask", "Ask.", {"type": "object"})])
        await engine.wait(chat.id, until=["requires_action"])
        await engine.send_message(chat.id, "and mind", when_busy="steer")
        assert (await engine.get_chat(chat.id)).state == "requires_action"
        await engine.submit_tool_results(chat.id, [ToolResult("q", "yes")])
        await engine.wait(chat.id)
        events = [event async for event in engine.stream(chat.id, "hello", when_busy="steer")]
        assert [event.message.text for event in events if event.kind == "message"] == ["hello", "Hello."]
        assert asked(model) == [["go"], ["go", "and mind"], ["go", "and mind", "hello"]]
        assert [one.steered for one in await engine.messages(chat.id) if one.role == "user"] == [False, True, False]


async def test_interrupt_leaves_steering_at_the_head(open_engine: OpenEngine) -> None:
    model, gate = ScriptedModel([WORKS, "Both.", "Later."]), Gate()
    async with open_engine(model, tools=[gate.tool], settings=Settings(queue_limit=3)) as engine:
        chat = await engine.create_chat(message="go")
        await gate.entered.wait()
        await engine.send_message(chat.id, "later")
        for text in ("left", "right"):
            await engine.send_message(chat.id, text, when_busy="steer")
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        assert [queued.text for queued in await engine.queued(chat.id)] == ["left", "right", "later"]
        await engine.resume(chat.id)
        await engine.wait(chat.id)
        assert asked(model) == [["go"], ["go", "left", "right"], ["go", "left", "right", "later"]]
        turns = [(one.text, one.turn) for one in await engine.messages(chat.id) if one.role == "user"]
        assert turns == [("go", 1), ("left", 2), ("right", 2), ("later", 3)]


@pytest.mark.parametrize("by", ["parent", "person"])
async def test_subagent_is_steered(open_engine: OpenEngine, by: str) -> None:
    """The parent chat steers it, and so does a person."""
    gate = Gate()

    def steers(seen: list[Any]) -> list[Call]:
        return [Call("message_subagent", {**seen[0], "message": "left", "steer": True})]

    parent = lead(starts("one"), *([steers] if by == "parent" else []), waits)
    model = ScriptedModel([WORKS, "found it"])
    research = Agent("research", model, tools=[gate.tool])
    async with open_engine(None, agents=family(parent, research, background=True)) as engine:
        chat = await sent(engine)
        await gate.entered.wait()
        (subagent,) = await engine.subagents(chat.id)
        if by == "person":
            await engine.send_message(subagent.id, "left", when_busy="steer")
        else:
            await engine.wait(chat.id, until=["requires_action"], timeout=60)
            async for event in engine.events(subagent.id):
                if event.kind == "queue":
                    break
        gate.open.set()
        await engine.wait(chat.id, until=["waiting"], timeout=60)
        assert asked(model) == [["one"], ["one", "left"]]
        assert (await outputs(engine, chat.id))[-1][0]["answer"] == "found it"


class Steering:
    """A product whose tool steers its own turn."""

    def engine(self, store: ChatStore, clock: ManualClock) -> Engine:
        @tool(crash="at_least_once")
        async def work(context: ToolContext) -> str:
            """Work."""
            for text in ("left", "right"):
                await running.send_message(context.chat_id, text, when_busy="steer", client_id=text)
            return "done"

        running = Engine(store, model=ScriptedModel(by_step([WORKS, "Done."])), tools=[work], clock=clock)
        return running

    async def check(self, engine: Engine) -> None:
        (chat,) = (await engine.list_chats()).items
        lines = lines_of(await engine.messages(chat.id))
        steered = ["tool: w=done", "user: left", "user: right", "assistant: Done."]
        assert lines == ["user: go", "assistant: On it. work(w)", *steered]


async def test_steering_survives_every_crash() -> None:
    async def scenario(engine: Engine) -> None:
        await engine.create_chat(message="go", client_id="go")

    product = Steering()
    report = await crash_everywhere(product.engine, scenario, check=product.check)
    assert any("call_finished, tools_finished" in point for point in report.points)
