"""Latches that block a model or a tool without sleeping, and show arrivals."""

from __future__ import annotations

from typing import Any

import anyio

from turnwise import ModelRequest, ToolContext, tool
from turnwise.engine.tools.declare import Tool
from turnwise.providers.scripted import Reply


class Latch:
    """Callers wait until the test opens it; `entered` shows the test that one has arrived."""

    def __init__(self) -> None:
        self.entered = anyio.Event()
        self._opened = anyio.Event()

    def open(self) -> None:
        """Release all callers, now and later."""
        self._opened.set()

    async def pass_through(self, seconds: float = 0) -> None:
        """Wait for the latch to open; usable as a scripted model's `sleep`."""
        self.entered.set()
        await self._opened.wait()


class Gate:
    """A tool that signals its start and ends only when the test opens it."""

    def __init__(self, name: str = "work", **options: Any) -> None:
        self.entered = anyio.Event()
        self.open = anyio.Event()
        self.runs: list[ToolContext] = []
        self.cancelled = 0

        async def run(context: ToolContext) -> str:
            self.runs.append(context)
            self.entered.set()
            try:
                await self.open.wait()
            except BaseException:
                self.cancelled += 1
                raise
            return f"{name} done"

        self.tool: Tool = tool(name=name, description="Work until let go.", **options)(run)


class Started:
    """A scripted reply, and an event for its request."""

    def __init__(self, reply: Reply | str = "") -> None:
        self.asked = anyio.Event()
        self._reply = reply

    def __call__(self, request: ModelRequest) -> Reply | str:
        self.asked.set()
        return self._reply
