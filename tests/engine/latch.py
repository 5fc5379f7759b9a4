"""A latch: where a test holds a model or a tool up, without sleeping."""

from __future__ import annotations

import anyio


class Latch:
    """Whoever comes through waits until the test opens it; `entered` tells the test that somebody came."""

    def __init__(self) -> None:
        self.entered = anyio.Event()
        self._opened = anyio.Event()

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._opened.set()

    async def pass_through(self, seconds: float = 0) -> None:
        """Wait for the latch to open; it serves as a scripted model's `sleep`."""
        self.entered.set()
        await self._opened.wait()
