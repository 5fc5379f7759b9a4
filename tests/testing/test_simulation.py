"""Thousands of worlds, each decided by one seed, keep every promise. `make simulate SEED=n` lives one of them again."""

import logging
import os
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from turnwise.states.errors import InvalidArgument
from turnwise.states.names import DEFAULT_AGENT
from turnwise.testing.simulation import World
from turnwise.testing.simulation.actors import CLERK, Outside
from turnwise.testing.simulation.clients import Clients
from turnwise.testing.simulation.mischief import EVERY_TURN, INNER, RAISED, SOME_TURNS

PLAIN = 100
SEEDS = 1200
BATCH = 400
LONG, SHORT = 20, 6
"""How many rounds every eighth world lives, and the others. `make simulate RUNS=2000` lives long ones only."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Failures are what these worlds are made of; logging them all takes longer than living them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("seed", ["11", None, 1.5]),
        ("chats", [0, -1, 1001, 2.0, None]),
        ("rounds", [0, -1, 10**400, "25"]),
        ("tools", [7, "pay", lambda *_: None]),
        ("agents", [7, ["clerk"]]),
        ("model", ["scripted", 7]),
        ("settings", [{}, 7]),
        ("mischief", [0, "often"]),
        ("round", [25]),
    ],
)
def test_world_rejects_invalid_arguments(argument: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(InvalidArgument) as refused:
            World(**{"seed": 1, argument: value})
        assert refused.value.argument == argument


async def run_worlds(first: int, count: int) -> Sequence[World]:
    """Return worlds that have kept their promises."""
    worlds = [World(seed, rounds=SHORT if seed % 8 else LONG) for seed in range(first, first + count)]
    problems = {world.seed: await world.run() for world in worlds}
    assert {seed: found for seed, found in problems.items() if found} == {}
    return worlds


@pytest.mark.timeout(600)
async def test_worlds_keep_their_promises() -> None:
    await run_worlds(0, PLAIN)


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(PLAIN, PLAIN + SEEDS, BATCH))
async def test_worlds_keep_their_promises_and_meet_everything(first: int) -> None:
    worlds = await run_worlds(first, BATCH)
    assert_all_went_wrong(worlds)
    assert_all_was_done(worlds)


def assert_all_was_done(worlds: Sequence[World]) -> None:
    """Each thing that a client may do is done somewhere, to the end; both agents answer, in one world, too."""
    by_chance = {"submit_wrongly"}  # of the ids that it answers a model may give one to a call of the client's
    names = {deed.__name__ for deed in Clients(Random(0), Outside()).deeds}  # noqa: S311 - no dice are thrown
    assert {name for world in worlds for name in world.done} | by_chance == names
    answering = [{agent for _, agent in world.outside.asked.values()} for world in worlds]
    assert {DEFAULT_AGENT, CLERK} in answering


def assert_all_went_wrong(worlds: Sequence[World]) -> None:
    """Each world has its damaged chat, a long one a clock that steps both ways; all that can be raised is raised.

    But by what few worlds ask: a strategy, and `reconcile` where a crash has cut a call off.
    """
    mischiefs = [world.mischief for world in worlds]
    assert [world.seed for world in worlds if not world.mischief.damaged] == []
    assert [world.seed for world in worlds if world.seed % 8 == 0 and not both_ways(world.mischief.steps)] == []
    raised = {one for mischief in mischiefs for one in mischief.raised}
    assert {component for component, _ in raised} | {"strategy", "reconcile"} == {*EVERY_TURN, *SOME_TURNS}
    assert {kind for _, kind in raised} == {*RAISED, INNER}


def both_ways(steps: Sequence[float]) -> bool:
    return min(steps) < 0 < max(steps)


DEEP = [pytest.param(seed, marks=pytest.mark.deep) for seed in (5, 11, 14, 56, 69, 78)]


@pytest.mark.parametrize("seed", [3, *DEEP])
async def test_same_seed_makes_the_same_world(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it does so in any process, or no other could live again what one has found."""
    traces = []
    for process in (101, 103):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        world = World(seed)
        await world.run()
        traces.append(world.trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10
