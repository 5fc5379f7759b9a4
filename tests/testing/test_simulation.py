"""Thousands of worlds, each decided by one seed, keep every promise. `make simulate SEED=n` lives one of them again."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from turnwise.testing.simulation import World

SEEDS = 2000
BATCH = 50


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Failures are what these worlds are made of; logging them all takes longer than living them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
async def test_every_world_keeps_its_promises(first: int) -> None:
    problems = {seed: await World(seed).run() for seed in range(first, first + BATCH)}
    assert {seed: found for seed, found in problems.items() if found} == {}


async def test_the_same_seed_makes_the_same_world() -> None:
    worlds = [World(11), World(11)]
    for world in worlds:
        await world.run()
    assert worlds[0].trace == worlds[1].trace
    assert len(worlds[0].trace) > 10
