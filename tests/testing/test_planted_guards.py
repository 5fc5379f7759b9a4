"""Each guard between one chat's trouble and the others, taken away: the simulation finds it within a few worlds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from turnwise.engine import clock, leased_chat, user_code
from turnwise.engine.jobs import request, stream_step
from turnwise.engine.observers import observer
from turnwise.engine.tools import toolbox
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sqlite import queries, transactions
from turnwise.persistence.stored_chat import facts_of
from turnwise.testing.simulation import Mischief, World

Patch = pytest.MonkeyPatch
WORLDS = 300


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    yield


def let_observers_raise(patch: Patch) -> None:
    patch.setattr(observer, "guarded", unguarded)


def let_hooks_raise(patch: Patch) -> None:
    patch.setattr(request, "guarded", unguarded)
    patch.setattr(user_code, "guarded", unguarded)


def wait_for_whoever_does_not_listen(patch: Patch) -> None:
    async def run(_self: Any, code: Any, _name: str, **_about: Any) -> Any:
        with user_code.guarded():
            return await code()

    patch.setattr(user_code.UserCalls, "run", run)


def let_leases_run_on_when_the_clock_is_set_back(patch: Patch) -> None:
    def renew(self: Any, connection: Any, worker: str, seconds: float) -> dict[str, int]:
        expires = micros_of(self._now() + timedelta(seconds=seconds))
        sql = "UPDATE leases SET expires = ? WHERE worker = ? RETURNING chat_id, token"
        return dict(connection.execute(sql, (expires, worker)).fetchall())

    patch.setattr(transactions.Transactions, "renew", renew)


def wait_for_a_retry_as_long_as_the_clock_says(patch: Patch) -> None:
    async def wait_for_retry(self: Any) -> None:
        retry_at = self.facts.step.retry_at
        if retry_at is not None:
            await clock.sleep(self.runtime.clock, (retry_at - self.runtime.clock.now()).total_seconds())

    patch.setattr(leased_chat.LeasedChat, "wait_for_retry", wait_for_retry)


def list_only_what_can_be_read(patch: Patch) -> None:
    patch.setattr(queries, "facts_or_rest", facts_of)


def lose_what_is_being_stored_when_an_attempt_fails(patch: Patch) -> None:
    async def end(self: Any) -> None:
        self.stop()

    patch.setattr(stream_step.LiveParts, "end", end)


def let_tools_raise(patch: Patch) -> None:
    patch.setattr(toolbox, "guarded", unguarded)
    patch.setattr(user_code, "guarded", unguarded)


GUARDS: dict[str, tuple[Callable[[Patch], None], float, int]] = {
    "what observers raise": (let_observers_raise, 3, 6),
    "what hooks raise": (let_hooks_raise, 3, 2),
    "what tools raise": (let_tools_raise, 3, 2),
    "code that does not listen": (wait_for_whoever_does_not_listen, 8, 9),
    "a wall clock that steps: leases": (let_leases_run_on_when_the_clock_is_set_back, 3, 5),
    "a wall clock that steps: retries": (wait_for_a_retry_as_long_as_the_clock_says, 3, 342),
    "a chat that cannot be read: the list": (list_only_what_can_be_read, 3, 6),
    "odd exceptions: parts on their way to the store": (lose_what_is_being_stored_when_an_attempt_fails, 1, 172),
}
"""How each guard is taken away, how much mischief the worlds see, and a seed near which it showed before."""


LONGEST = 8
"""Seconds that a world may take; most take a tenth of one."""
ROUNDS = 30_000
"""Rounds of the loop that a world may take; most take a few hundred."""


class Bounded(selectors.DefaultSelector):
    """Breaks a loop that goes round too often."""

    rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.rounds += 1
        if self.rounds > ROUNDS:
            raise RuntimeError("this world never ends")
        return super().select(timeout)


def lives_badly(seed: int, often: float) -> bool:
    """Whether a world of that seed breaks a promise, or breaks itself, or never ends."""
    loop = asyncio.SelectorEventLoop(Bounded())
    loop.call_later(LONGEST, loop.stop)
    try:
        return bool(loop.run_until_complete(World(seed, mischief=Mischief(seed, often=often)).run()))
    except BaseException:  # noqa: BLE001 - what gets past a guard may be anything
        return True
    finally:
        loop.close()  # `asyncio.run` would first wait for code that does not listen


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a world that breaks leaves much undone
@pytest.mark.parametrize("guard", GUARDS)
def test_the_simulation_misses(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, often, first = GUARDS[guard]
    plant(monkeypatch)
    found = next((seed for seed in range(first, first + WORLDS) if lives_badly(seed, often)), None)
    assert found is not None, f"{WORLDS} worlds without the guard against {guard}, and none is the worse for it"
