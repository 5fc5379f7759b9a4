"""A model whose answers wait until the test lets them through."""

from collections.abc import AsyncIterator, Iterable

import anyio

from turnwise.providers.protocol import ModelPart, ModelRequest
from turnwise.providers.scripted import Line, ScriptedModel


class PacedModel(ScriptedModel):
    """A model of a script that gives as many parts of its replies as it is allowed."""

    def __init__(self, replies: Line | Iterable[Line]) -> None:
        super().__init__(replies)
        self._allowed = anyio.Semaphore(0)

    def allow(self, parts: int) -> None:
        """Let it give that many more."""
        for _ in range(parts):
            self._allowed.release()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Give each part once it is allowed."""
        async for part in super().stream(request):
            await self._allowed.acquire()
            yield part


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
