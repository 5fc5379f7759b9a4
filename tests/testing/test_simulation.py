"""Thousands of worlds, each decided by one seed, break no promise. `make simulate SEED=n` runs one of them again."""

import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from random import Random
from typing import Any

import pytest

from turnwise.states.errors import ChatNotFound, InvalidArgument, TurnwiseError
from turnwise.states.names import DEFAULT_AGENT
from turnwise.testing.simulation import World
from turnwise.testing.simulation.actors import CLERK, Outside
from turnwise.testing.simulation.checks import problems_in, stored_of
from turnwise.testing.simulation.clients import Clients
from turnwise.testing.simulation.faults import EVERY_TURN, INNER, RAISED, SOME_TURNS

PLAIN = 100
SEEDS = 1200
BATCH = 400
LONG, SHORT = 20, 6
"""The rounds of every eighth world, and of the others. `make simulate RUNS=2000` runs long ones only."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """These worlds fail constantly; logging every failure takes longer than running them."""
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
        ("faults", [0, "often"]),
        ("round", [25]),
    ],
)
def test_world_rejects_invalid_arguments(argument: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(InvalidArgument) as refused:
            World(**{"seed": 1, argument: value})
        assert refused.value.argument == argument


async def run_worlds(first: int, count: int) -> Sequence[World]:
    """Run worlds, assert that they report no problems, and return them."""
    worlds = [World(seed, rounds=SHORT if seed % 8 else LONG) for seed in range(first, first + count)]
    problems = {world.seed: await world.run() for world in worlds}
    assert {seed: found for seed, found in problems.items() if found} == {}
    return worlds


async def test_worlds_keep_their_promises() -> None:
    worlds = await run_worlds(0, PLAIN)
    damaged = {place.partition(".")[0] for world in worlds for place in world.faults.damaged}
    assert damaged >= {"chats", "profiles", "messages", "events", "audit", "usage"}


@pytest.mark.deep
@pytest.mark.parametrize("first", range(PLAIN, PLAIN + SEEDS, BATCH))
async def test_worlds_keep_their_promises_and_meet_everything(first: int) -> None:
    worlds = await run_worlds(first, BATCH)
    assert_all_went_wrong(worlds)
    assert_all_was_done(worlds)
    assert_enough_was_checked(worlds)


class RestoredWorld(World):
    """A world of one process whose database is restored from backups."""

    backup: bytes | None = None
    restored = 0

    async def _turn(self, tasks: Any) -> None:
        chance = self.random.random()
        if chance < 0.2:
            self.backup = self._disk.writer.serialize()
        elif chance < 0.4 and self.backup is not None:
            with closing(sqlite3.connect(":memory:")) as copy:
                copy.deserialize(self.backup)
                copy.backup(self._disk.writer)
            self.restored += 1
            self._nodes[0].store.hint.set()
        await super()._turn(tasks)

    async def _boot(self, tasks: Any) -> None:
        if not self._nodes:
            await super()._boot(tasks)

    async def _end_one(self, *, killed: bool) -> None:
        """End nothing: another process would not know which calls have started."""

    async def _act(self, chat_id: str) -> None:
        with suppress(TurnwiseError):  # what the client has read may be gone
            await super()._act(chat_id)

    async def _rests(self, engine: Any, chat_id: str) -> bool:
        with suppress(ChatNotFound):
            return await super()._rests(engine, chat_id)
        return True  # it was made after the backup

    async def _inspect(self) -> None:
        victim = self._victims.chats[0]
        self.problems += [problem for chat, problem in self.witness.started_twice() if chat != victim]
        self.problems += [f"{call}: {count}" for call, count in self.outside.payments.items() if count > 1]
        for subscriber in self._subscribers:
            self.problems += problems_in(await stored_of(self._nodes[0].store, subscriber.chat_id), pruned=True)


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.deep)])
async def test_restored_backups_run_no_call_twice(count: int) -> None:
    """Every chat rests, and is valid."""
    worlds = [RestoredWorld(seed, rounds=LONG) for seed in range(count)]
    problems = {world.seed: await world.run() for world in worlds}
    assert {seed: found for seed, found in problems.items() if found} == {}
    assert any(world.restored for world in worlds)


def assert_all_was_done(worlds: Sequence[World]) -> None:
    """Each client action completes somewhere; both agents answer, in one world, too."""
    by_chance = {"submit_wrongly"}  # of the ids that it answers a model may give one to a call of the client's
    names = {deed.__name__ for deed in Clients(Random(0), Outside()).deeds}  # noqa: S311 - draws nothing
    assert {name for world in worlds for name in world.done} | by_chance == names
    answering = [{agent for _, agent in world.outside.asked.values()} for world in worlds]
    assert {DEFAULT_AGENT, CLERK} in answering


def assert_enough_was_checked(worlds: Sequence[World]) -> None:
    """The checks of schedules, budgets, the consumer and caps each ran repeatedly on real cases."""
    checked = sum((world.checked for world in worlds), Counter[str]())
    expected = {"sent", "fired", "calls that a budget paid", "events that were consumed", "a cap that is reached"}
    expected.add("deliveries that were refused")
    assert {name for name in expected if checked[name] < 50} == set()


def assert_all_went_wrong(worlds: Sequence[World]) -> None:
    """Each world has its damaged chat, a long one a clock that steps both ways; every component raises.

    Exceptions are those that few worlds reach: a strategy, and `reconcile` after a crash during a call.
    """
    every_fault = [world.faults for world in worlds]
    assert [world.seed for world in worlds if not world.faults.damaged] == []
    assert [world.seed for world in worlds if world.seed % 8 == 0 and not both_ways(world.faults.steps)] == []
    raised = {one for faults in every_fault for one in faults.raised}
    assert {component for component, _ in raised} | {"strategy", "reconcile"} == {*EVERY_TURN, *SOME_TURNS}
    assert {kind for _, kind in raised} == {*RAISED, INNER}


def both_ways(steps: Sequence[float]) -> bool:
    return min(steps) < 0 < max(steps)


DEEP = [pytest.param(seed, marks=pytest.mark.deep) for seed in (5, 11, 14, 56, 69, 78)]


@pytest.mark.parametrize("seed", [3, *DEEP])
async def test_same_seed_makes_the_same_world(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any process: otherwise a finding could not be repeated."""
    traces = []
    for process in (101, 103):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        world = World(seed)
        await world.run()
        traces.append(world.trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10
