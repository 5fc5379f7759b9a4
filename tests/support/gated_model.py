"""Models whose answers wait for the test."""

from collections.abc import AsyncIterator, Iterable

import anyio

from turnwise.providers.protocol import ModelPart, ModelRequest
from turnwise.providers.scripted import Line, ScriptedModel


class PacedModel(ScriptedModel):
    """A scripted model that yields as many parts of its replies as the test allows."""

    def __init__(self, replies: Line | Iterable[Line]) -> None:
        super().__init__(replies)
        self._allowed = anyio.Semaphore(0)

    def allow(self, parts: int) -> None:
        """Allow that many more parts."""
        for _ in range(parts):
            self._allowed.release()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield each part once it is allowed."""
        async for part in super().stream(request):
            await self._allowed.acquire()
            yield part


class GatedModel(ScriptedModel):
    """A scripted model that answers only while its gate is open."""

    def __init__(self, script: Line, gate: anyio.Event | None = None) -> None:
        super().__init__(script)
        self.gate = gate or anyio.Event()
        self.busy = self.most = 0
        """The concurrent answers now, and their peak."""

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
