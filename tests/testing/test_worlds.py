"""Worlds with the agents, tools and deps of a service: they work, or report what was not tested."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from turnwise import Agent, InvalidArgument, Settings, ToolContext, ToolFailed, tool
from turnwise.engine.isolation.clock import sleep
from turnwise.testing import Call, NotTested, Outside, Reply, ScriptedModel, World, WorldsFailed, by_step, run_worlds
from turnwise.testing.simulation import SITUATIONS

SETTINGS = Settings(lease=30, coalesce=0, shutdown_grace=0, max_steps=6)
EVERYTHING = [
    "waiting",
    "pending",
    "streaming",
    "executing_tools",
    "compacting",
    "requires_action",
    "interrupted",
    "error",
    *SITUATIONS,
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Till:
    """The deps of a service's tools."""

    def __init__(self) -> None:
        self.cents = 0


@tool
async def charge(cents: int, context: ToolContext[Till]) -> str:
    """Charge the customer."""
    context.deps.cents += cents
    return f"charged {cents}"


@tool
async def refuse(what: str) -> str:
    """Refuse everything."""
    raise ToolFailed(f"no {what}")


async def test_worlds_run_tools_with_the_deps_of_a_service() -> None:
    till = Till()
    report = await run_worlds(
        lambda seed: World(seed, tools=[charge], deps=till, settings=SETTINGS), seeds=range(8), except_for=EVERYTHING
    )
    assert report.seeds == tuple(range(8))
    assert 0 < report.tools["charge"] <= till.cents  # a run may time out after it took effect


async def test_tool_that_never_succeeds_is_not_tested() -> None:
    """The same tools without their deps, and a tool that always fails."""
    with pytest.raises(NotTested) as failed:
        await run_worlds(
            lambda seed: World(seed, rounds=3, tools=[charge, refuse], settings=SETTINGS),
            seeds=range(20),
            except_for=EVERYTHING,
        )
    missing = "\n".join(failed.value.missing)
    assert "the tool charge: it never succeeded" in missing
    assert "AttributeError: 'NoneType' object has no attribute 'cents'" in missing
    assert "the tool refuse" in missing
    assert "except_for" in str(failed.value)


async def test_world_reports_a_tool_that_always_raises() -> None:
    worlds = [World(seed, rounds=40, tools=[charge], settings=SETTINGS) for seed in range(30)]
    problems = [problem for world in worlds for problem in await world.run()]
    expected = r"the tool charge raised in \d+ runs and never succeeded; at last AttributeError"
    assert problems
    assert all(re.match(expected, problem) for problem in problems)


async def test_states_and_situations_that_no_world_meets_are_named() -> None:
    with pytest.raises(NotTested) as failed:
        await run_worlds(lambda seed: World(seed, rounds=1, tools=[charge], deps=Till()), seeds=[1])
    assert {"the situation 'an edit'", "the situation 'a crash while tools run'"} <= {*failed.value.missing}
    assert "the state waiting" not in failed.value.missing
    with pytest.raises(NotTested, match="no world"):
        await run_worlds(World, seeds=[])
    with pytest.raises(InvalidArgument, match="names 'flying', which is none of "):
        await run_worlds(lambda seed: World(seed, rounds=1), seeds=[1], except_for=["flying"])


@pytest.mark.deep
async def test_worlds_together_meet_everything() -> None:
    report = await run_worlds(lambda seed: World(seed, tools=[charge], deps=Till()), seeds=range(100))
    assert report.tools["charge"] > 30


async def test_worlds_have_the_agents_and_the_model_of_a_service() -> None:
    answers: list[str] = []
    spoken = ScriptedModel(by_step([Reply("I pay.", calls=[Call("charge", {"cents": 1}, id="a")]), *["Done."] * 90]))
    seller = Agent("seller", system="You sell.", tools=[charge])
    buyer = Agent("buyer", model=spoken, system=lambda chat: answers.append(chat.agent) or "You buy.", tools=[charge])
    till = Till()
    await run_worlds(
        lambda seed: World(seed, agents=[seller, buyer], deps=till, settings=SETTINGS),
        seeds=range(3),
        except_for=EVERYTHING,
    )
    assert till.cents > 0
    assert {*answers} == {"buyer"}
    assert {request.system for request in spoken.requests if request.purpose == "step"} >= {"You buy."}


async def test_world_asks_the_model_of_a_service() -> None:
    model = ScriptedModel("Hello.")
    assert await World(3, rounds=8, tools=[charge], deps=Till(), model=model).run() == []
    assert model.requests


async def test_payment_that_a_service_makes_twice_is_found() -> None:
    """A tool that declares that it may run again, and must not."""

    def payments(_random: Any, clock: Any, outside: Outside, *_: Any) -> list[Any]:
        @tool(crash="at_least_once")
        async def pay(context: ToolContext[Any]) -> str:
            """Pay."""
            outside.start(context, once=True)
            await sleep(clock, 5)
            return "paid"

        return [pay]

    with pytest.raises(WorldsFailed, match=r"was paid \d times"):
        await run_worlds(lambda seed: World(seed, rounds=80, tools=payments, settings=SETTINGS), seeds=range(10))
