"""An engine dies at any commit or await; the chat must end as it does without a crash."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest

from support.events import assert_told_right, phases
from turnwise import ChatStore, ClientTool, Engine, Message, Settings, ToolContext, ToolResult, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply
from turnwise.testing import ManualClock, crash_everywhere
from turnwise.testing.strict import StrictModel

ASK = ClientTool("ask", "Ask the person.", {"type": "object"})
CALLS = (Call("pay", {}, id="pay"), Call("note", {}, id="note"), Call("ask", {}, id="ask"))
WHOLE = [
    ("user", "Pay, please."),
    ("assistant", "On it."),
    ("tool", "paid"),
    ("tool", "noted"),
    ("system", "compaction"),
    ("tool", "agreed"),
    ("assistant", "All done."),
]
"""The history of a life without a crash."""


class Service:
    """Two tools, their acts outside, and the models of the engines that ran them."""

    def __init__(self) -> None:
        self.acts: Counter[tuple[str, str]] = Counter()
        self.models: list[StrictModel] = []

    def reset(self) -> None:
        self.acts.clear()
        self.models.clear()

    def engine(self, store: ChatStore, clock: ManualClock) -> Engine:
        @tool(crash="at_most_once")
        async def pay(context: ToolContext) -> str:
            """Pay."""
            self.acts["pay", context.idempotency_key] += 1
            return "paid"

        @tool(crash="at_least_once")
        async def note(context: ToolContext) -> str:
            """Note it down."""
            self.acts["note", context.idempotency_key] += 1
            return "noted"

        summary = Reply("What was asked: pay.", usage=(50, 7))
        model = StrictModel(answer, summary=summary, context_limit=100)
        self.models.append(model)
        return Engine(store, model=model, tools=[pay, note], settings=Settings(coalesce=0), clock=clock)

    async def check(self, engine: Engine) -> None:
        """Check history and acts: only the at-most-once call may have an unknown outcome."""
        (chat,) = (await engine.list_chats()).items
        assert (chat.state, chat.stop_reason, chat.last_error) == ("waiting", "end_turn", None)
        await assert_told_right(engine, chat.id)
        assert (await engine.verify(chat.id)).ok
        assert Counter(await phases(engine, chat.id))["stored"] == 1
        assert [fault for model in self.models for fault in model.faults] == []
        history = [(message.role, text_of(message)) for message in await engine.messages(chat.id)]
        assert [*history[:2], WHOLE[2], *history[3:]] == WHOLE
        paid = history[2][1]
        assert paid == "paid" or paid.startswith("Outcome unknown")
        payments, notes = ([count for (name, _), count in self.acts.items() if name == one] for one in ("pay", "note"))
        assert payments == [1] if paid == "paid" else payments in ([], [1])
        assert len(notes) == 1, "each run has the same idempotency key"


def answer(request: ModelRequest) -> Reply:
    """Answer from the request alone, so that every engine answers alike."""
    if any(message.role == "tool" for message in request.messages):
        return Reply("All done.", chunks=4, usage=(10, 2))
    return Reply("On it.", chunks=3, reasoning="I will pay", signature="s", calls=CALLS, usage=(90, 5))


def text_of(message: Message) -> Any:
    part: Any = message.parts[0]
    return message.result.output if message.result else message.text or part.reason


async def live(engine: Engine) -> None:
    """Act as a client that retries until it succeeds."""
    chat = await engine.create_chat(system="Be brief.", client_tools=[ASK], client_id="life")
    await engine.send_message(chat.id, "Pay, please.", client_id="please")
    if (await engine.wait(chat.id)).open_calls:
        await engine.submit_tool_results(chat.id, [ToolResult("ask", "agreed")])


@pytest.mark.deep
async def test_life_survives_a_crash_at_every_point() -> None:
    service = Service()
    report = await crash_everywhere(service.engine, live, check=service.check, reset=service.reset)
    assert report.missed == ()
    for words in ("compacted", "tool pay", "tool note", "submit_tool_results"):
        assert [point for point in report.points if words in point], words
    assert len(report.points) >= 25
    gc.collect()  # a coroutine that nothing awaited fails this test, and no later one
