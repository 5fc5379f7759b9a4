"""Each guard that isolates a chat's failures, removed: the simulation finds it within a few worlds."""

import asyncio
import gc
import logging
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest

from turnwise.engine.isolation import user_code
from turnwise.engine.observers import observer
from turnwise.engine.tools import toolbox
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sqlite import transactions
from turnwise.testing.simulation import Faults, World, cast
from turnwise.testing.simulation.actors import simulated_tools
from turnwise.testing.simulation.cast import Toolmaker
from turnwise.testing.simulation.order import overridden

Patch = pytest.MonkeyPatch
WORLDS = 200


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class unguarded:  # noqa: N801 - stands for `guarded`
    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


def let_observers_raise(patch: Patch) -> None:
    patch.setattr(observer, "guarded", unguarded)


def wait_for_whoever_does_not_listen(patch: Patch) -> None:
    async def run(_self: Any, code: Any, _name: str, **_about: Any) -> Any:
        with user_code.guarded():
            return await code()

    patch.setattr(user_code.UserCalls, "run", run)


def let_leases_run_on_when_the_clock_is_set_back(patch: Patch) -> None:
    def renew(self: Any, connection: Any, worker: str, seconds: float) -> dict[str, int]:
        expires = micros_of(self._now() + timedelta(seconds=seconds))
        sql = "UPDATE chats SET expires = ? WHERE worker = ? RETURNING id, token"
        return dict(connection.execute(sql, (expires, worker)).fetchall())

    patch.setattr(transactions.SQLiteTransactions, "renew", renew)


def let_tools_raise(patch: Patch) -> None:
    """Reconciliation after a crash may raise, too."""
    patch.setattr(toolbox, "guarded", unguarded)


def only(*names: str) -> Toolmaker:
    return lambda *args: [known for known in simulated_tools(*args) if known.name in names]


@dataclass(frozen=True)
class Guard:
    """A guard: its removal, the effect, and the worlds that show it."""

    plant: Callable[[Patch], None]
    catch: Literal["problem", "raises", "hangs"]
    """Whether the world then reports a problem, raises, or hangs."""
    seed: int
    """A seed near which it appeared before."""
    often: float = 3
    """The number of faults in the worlds."""
    components: tuple[str, ...] | None = None
    """The raising components of the worlds."""
    tools: Toolmaker = simulated_tools


TOOLS = only("pay", "note", "look")
GUARDS = {
    "what observers raise": Guard(let_observers_raise, "raises", 0, components=("observer",)),
    "what tools raise": Guard(let_tools_raise, "problem", 37, components=("tool",), tools=TOOLS),
    "code that does not listen": Guard(wait_for_whoever_does_not_listen, "problem", 107, often=8, components=()),
    "a wall clock that steps: leases": Guard(let_leases_run_on_when_the_clock_is_set_back, "problem", 21),
}

ROUNDS = 30_000
"""Rounds of the loop that a world may take; most take a few hundred."""
LONGEST = 5.0
"""Seconds that a world may wait in one of them: only threads that compute digests take time."""


class Endless(Exception):
    """The world hangs, or loops without end."""


class Bounded(selectors.DefaultSelector):
    """Stops a loop with a long wait, or too many rounds."""

    rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.rounds += 1
        ready = super().select(LONGEST if timeout is None else min(timeout, LONGEST))
        if self.rounds > ROUNDS or not (ready or (timeout is not None and timeout <= LONGEST)):
            raise Endless
        return ready


@contextmanager
def names_as_before(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Restore a world's global settings: a broken one restores them late or never."""

    async def names() -> list[tuple[Any, str]]:
        return overridden()

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in loop.run_until_complete(names()):
            patch.setattr(owner, name, getattr(owner, name))
        yield


def trouble_of(seed: int, guard: Guard) -> tuple[str, object]:
    """Return the kind and words of the failure in a world of that seed; an empty text for a passing one."""
    loop = asyncio.SelectorEventLoop(Bounded())
    with names_as_before(loop):
        trouble = _trouble_in(loop, seed, guard)
        if trouble[0]:
            gc.collect()
    return trouble


def _trouble_in(loop: asyncio.AbstractEventLoop, seed: int, guard: Guard) -> tuple[str, object]:
    try:
        faults = Faults(seed, often=guard.often, components=guard.components)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cast, "simulated_tools", guard.tools)
            world = World(seed, faults=faults)
        problems = loop.run_until_complete(world.run())
    except Endless:
        return "hangs", None
    except BaseException as error:  # noqa: BLE001 - what gets past a guard may be anything
        return "raises", repr(error)
    finally:
        loop.close()  # `asyncio.run` would first wait for code that does not listen
    return ("problem", problems) if problems else ("", None)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a world that breaks leaves much undone
@pytest.mark.parametrize("name", GUARDS)
def test_simulation_needs(name: str) -> None:
    """The same world passes with the guard: only then does its failure prove anything."""
    guard = GUARDS[name]
    with pytest.MonkeyPatch.context() as patch:
        guard.plant(patch)
        seeds = range(guard.seed, guard.seed + WORLDS)
        found = next((seed for seed in seeds if trouble_of(seed, guard)[0] == guard.catch), None)
    assert found is not None, f"{WORLDS} worlds without the guard against {name}, and none is the worse for it"
    assert trouble_of(found, guard) == ("", None)
