"""Sleep as models for tests do: by the clock of the engine that asks them, which a test may move by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import anyio

Sleep = Callable[[float], Awaitable[None]]
"""Waits so many seconds."""

_sleep: Final[ContextVar[Sleep]] = ContextVar("turnwise_sleep", default=anyio.sleep)


async def sleep(seconds: float) -> None:
    """Wait so many seconds by the clock of the engine that asks, or by the machine's if none does."""
    await _sleep.get()(seconds)


@contextmanager
def sleeping_by(engine_sleep: Sleep) -> Iterator[None]:
    """Let `sleep` wait by an engine's clock: inside, and in tasks begun inside."""
    token = _sleep.set(engine_sleep)
    try:
        yield
    finally:
        _sleep.reset(token)
