"""Agents: who answers in a chat, with which model, tools, parameters and prompt."""

from __future__ import annotations

from pathlib import Path

from turnwise import Agent, Engine, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel


@tool
async def refund(order: str) -> str:
    """Pay an order back."""
    return f"paid {order} back"


@tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"nothing at {place}"


def shop(**models: ScriptedModel) -> list[Agent]:
    """Return two agents, each with its own model and tools."""
    support = Agent(
        "support",
        models.get("support", ScriptedModel([], name="gentle")),
        system="You help customers.",
        tools=[refund],
        version="2026-11-22",
    )
    research = Agent("research", models.get("research", ScriptedModel([], name="keen")), tools=[look])
    return [support, research]


async def test_each_chat_is_answered_by_its_agent(tmp_path: Path) -> None:
    support = ScriptedModel([Reply(calls=[Call("refund", {"order": "7"})]), "Done."], name="gentle")
    research = ScriptedModel(["Found."], name="keen")
    async with Engine(f"sqlite:///{tmp_path}/a.db", agents=shop(support=support, research=research)) as engine:
        one = await engine.create_chat(agent="support")
        two = await engine.create_chat(agent="research", system="Be keen.")
        assert (one.agent, two.agent) == ("support", "research")
        assert (await engine.ask(one.id, "My parcel is broken")).text == "Done."
        assert (await engine.ask(two.id, "Where is it?")).text == "Found."
        answered = (await engine.messages(one.id))[-1]
        verdict = await engine.verify(one.id)
    assert verdict.ok, verdict
    assert [request.system for request in support.requests] == ["You help customers."] * 2
    assert [[spec.name for spec in request.tools] for request in support.requests] == [["refund"]] * 2
    assert [(request.system, [spec.name for spec in request.tools]) for request in research.requests] == [
        ("Be keen.", ["look"])
    ]
    assert (answered.agent, answered.agent_version, answered.model) == ("support", "2026-11-22", "gentle")
