"""Sleep as models for tests do: by the clock of the engine that asks them, which a test may move by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

import anyio

Sleep = Callable[[float], Awaitable[None]]
"""Waits so many seconds."""

_sleep: Final[ContextVar[Sleep]] = ContextVar("turnwise_sleep", default=anyio.sleep)


async def sleep(seconds: float) -> None:
    """Wait so many seconds by the clock of the engine that asks, or by the machine's if none does."""
    await _sleep.get()(seconds)


def sleep_by(engine_sleep: Sleep) -> None:
    """Let `sleep` wait by an engine's clock from now on, in this task and in those that it begins."""
    _sleep.set(engine_sleep)
