"""How long a client waits before it tries again, and when it gives up."""

from __future__ import annotations

import dataclasses
import math

import pytest
from tests.client.client_clock import ClientClock

from turnwise import InvalidArgument
from turnwise.client import ClientSettings
from turnwise.client.patience import Patience


async def waited(patience: Patience, clock: ClientClock) -> list[float]:
    """Return how long it is waited before each try, until there is none."""
    clock.slept.clear()
    while len(clock.slept) < 100 and await patience.wait():
        pass
    return clock.slept.copy()


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(ClientSettings)])
def test_infinite_time_is_refused(name: str) -> None:
    for odd in (-1, math.inf, math.nan):
        with pytest.raises(InvalidArgument, match=f"^{name}: must be"):
            ClientSettings(**{name: odd})


async def test_waits_double_up_to_the_longest(clock: ClientClock) -> None:
    assert await waited(Patience(ClientSettings()), clock) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5] * 10]
    assert clock.now == pytest.approx(1056.3), "after the next wait a minute would be over"


@pytest.mark.parametrize(("patience", "tries"), [(0, 0), (3, 2), (3.5, 3), (4, 3)])
async def test_no_try_after_patience_ends(clock: ClientClock, patience: float, tries: int) -> None:
    settings = ClientSettings(first_delay=1, max_delay=1, patience=patience)
    assert await waited(Patience(settings), clock) == [1] * tries


@pytest.mark.parametrize(("spread", "first"), [(0, 0.5), (0.5, 0.75), (1, 1)])
async def test_waits_have_jitter(clock: ClientClock, spread: float, first: float) -> None:
    clock.spread = spread
    patience = Patience(ClientSettings(first_delay=1, max_delay=2))
    for _ in range(3):
        assert await patience.wait()
    assert clock.slept == [first, 2 * first, 2 * first], "the longest wait is spread as well"


async def test_retry_after_is_the_least_wait(clock: ClientClock) -> None:
    patience = Patience(ClientSettings(first_delay=1, patience=20))
    assert await patience.wait(9)
    assert await patience.wait(0.5)
    assert not await patience.wait(9)
    assert clock.slept == [9, 2]
