"""Moves a manual clock on whenever a life has nothing left to do but wait for it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from turnwise.testing.clock import ManualClock
from turnwise.testing.crash.life import EngineRun

_ROUNDS: Final = 8
"""Rounds of the event loop in which nothing happens before time passes."""
_STORE_S: Final = 0.0002
_USER_CODE_S: Final = 0.03
"""Seconds that user code gets for what it awaits outside of the engine's time: a file, a socket, a thread."""


class Stalled(Exception):
    """The life neither ends nor waits for anything."""


async def pilot(life: EngineRun, clock: ManualClock, task: asyncio.Task[Any], *, limit: float) -> None:
    """Let time pass until the task is done or the life was killed.

    Raises:
        Stalled: so many real seconds have passed.
    """
    began = quiet_since = time.monotonic()
    seen = -1
    while not task.done() and not life.killed.is_set():
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        now = time.monotonic()
        if now - began > limit:
            raise Stalled(f"it had not come to its end after {limit:g} s; {_what_it_waits_for(life, clock)}")
        if life.store_calls or life.steps != seen:
            seen, quiet_since = life.steps, now
            if life.store_calls:
                await asyncio.sleep(_STORE_S)
        elif clock.next_timer is None or (life.user_calls and now - quiet_since < _USER_CODE_S):
            await asyncio.sleep(_STORE_S)
        else:
            quiet_since = now
            await clock.advance(max((clock.next_timer - clock.now()).total_seconds(), 0))


def _what_it_waits_for(life: EngineRun, clock: ManualClock) -> str:
    if clock.next_timer is None:
        return "no engine waits for the clock: does make_engine pass on its clock, with a worker?"
    passed = f"{clock.monotonic():.0f} s have passed by its clock"
    return f"{passed}, and user code runs" if life.user_calls else passed
