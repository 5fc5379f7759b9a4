"""A model whose answers wait until the test lets them through."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from turnwise.providers.protocol import ModelPart, ModelRequest
from turnwise.providers.scripted import Line, ScriptedModel


class GatedModel(ScriptedModel):
    """A model of a script that answers only while its gate is open."""

    def __init__(self, script: Line, gate: anyio.Event | None = None) -> None:
        super().__init__(script)
        self.gate = gate or anyio.Event()
        self.busy = self.most = 0
        """How many answers are asked for now, and how many were at most at once."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Wait for the gate, then answer."""
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await self.gate.wait()
            async for part in super().stream(request):
                yield part
        finally:
            self.busy -= 1
