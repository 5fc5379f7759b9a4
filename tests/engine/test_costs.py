"""Costs: reckoned by the worker that made the call, recorded, summed without pretending, and limited by a budget."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anyio
import pytest

from support.engines import OpenEngine
from support.events import events_of
from turnwise import CompactionPolicy, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

DEAR = Reply("Because.", usage=(1000, 500))
"""A reply that costs $0.0105 with the model below."""
COST = Decimal("0.0105")
LOOK = Reply(calls=[Call("look", {})], usage=(1000, 500))


def sonnet(replies: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(replies, **{"name": "claude-sonnet-4-5", "provider": "anthropic"} | options)


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_cost_of_call_turn_and_chat(open_engine: OpenEngine) -> None:
    settings = Settings(title="model")
    async with open_engine(sonnet([LOOK, DEAR, DEAR], title=DEAR), tools=[look], settings=settings) as engine:
        chat = await engine.create_chat()
        first, second = await engine.ask(chat.id, "Why?"), await engine.ask(chat.id, "And?")
        while (await engine.get_chat(chat.id)).title is None:
            await anyio.lowlevel.checkpoint()
        assert (first.usage.cost, second.usage.cost) == (2 * COST, COST)
        finished = await events_of(engine, chat.id, "turn_finished")
        assert [event.usage.cost for event in finished] == [2 * COST, COST]  # type: ignore[union-attr] - of that kind
        assert [entry.usage.cost for entry in await engine.usage(chat.id)] == [COST] * 4
        answers = [message for message in await engine.messages(chat.id) if message.role == "assistant"]
        assert [message.usage and message.usage.cost for message in answers] == [COST] * 3
        usage = (await engine.get_chat(chat.id)).usage
        assert (usage.cost, usage.cost_partial) == (4 * COST, False)


async def test_compaction_cost_is_included(open_engine: OpenEngine) -> None:
    cheap = ScriptedModel([], summary=Reply("Short.", usage=(1000, 100)), name="gpt-5", provider="openai")
    policy = CompactionPolicy(after_final_step="rest", context_limit=1000, model=cheap)
    async with open_engine(sonnet(DEAR), settings=Settings(compaction=policy)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Why?")
        usage = (await engine.get_chat(chat.id)).usage
        assert usage.compaction is not None
        assert (usage.cost, usage.compaction.cost) == (COST + Decimal("0.00225"), Decimal("0.00225"))
        (compaction,) = await engine.compactions(chat.id)
        assert compaction.usage is not None
        assert compaction.usage.cost == Decimal("0.00225")


async def test_turn_cost_ends_the_turn(open_engine: OpenEngine) -> None:
    async with open_engine(sonnet(LOOK), tools=[look], settings=Settings(turn_cost=0.03)) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Look!")
        assert (result.stop_reason, result.usage.cost) == ("cost_budget", 3 * COST)
        assert [message.role for message in result.messages] == ["user", *["assistant", "tool"] * 3]
        again = await engine.ask(chat.id, "Look!")  # each turn has a budget of its own
        assert (again.stop_reason, again.usage.cost) == ("cost_budget", 3 * COST)


async def test_budget_without_prices_warns_once(open_engine: OpenEngine, caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel([LOOK, DEAR, DEAR], context_limit=100_000)
    async with open_engine(model, tools=[look], settings=Settings(turn_cost=0.001)) as engine:
        chat = await engine.create_chat()
        for _ in range(2):
            assert (await engine.ask(chat.id, "Look!")).stop_reason == "end_turn"
    (line,) = [record.getMessage() for record in caplog.records if "cost_unknown" in record.getMessage()]
    assert "turn_tokens" in line
