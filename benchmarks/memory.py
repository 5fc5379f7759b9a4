"""I: the memory of an engine that many chats live in. `memory.py resting|streaming COUNT DIRECTORY` prints JSON.

| | measured |
| --- | --- |
| resting | COUNT chats that had a brief turn here, one after another |
| streaming | COUNT chats that are all in the middle of their answer |
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator

import anyio
from measure import resident_mb
from workload import DELTA, USER

from turnwise import Engine, ModelPart, ModelReply, ModelRequest, Settings
from turnwise.providers.reply_builder import join

_WARM_UP = 20


class HangingModel:
    """Begins an answer, and ends it once it is allowed to."""

    name = "hanging"
    provider = "fake"
    context_limit = None

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.begun = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:  # noqa: ARG002 - the protocol
        """Yield a text, wait, and finish."""
        yield ModelPart("text_delta", text=DELTA)
        self.begun += 1
        await self.may_end.wait()
        yield ModelPart("finish", stop_reason="end_turn")

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the same, whole."""
        return join([part async for part in self.stream(request)])


async def measure(what: str, count: int, url: str) -> dict[str, float]:
    """Return how many MB the process grew by, and how many KB that is for a chat."""
    model = HangingModel()
    settings = Settings(durability="normal", max_running=count, idle_timeout=None)
    async with Engine(url, model=model, settings=settings) as engine:
        model.may_end.set()
        for _ in range(_WARM_UP):
            await engine.ask((await engine.create_chat()).id, USER)
        gc.collect()
        before, begun = resident_mb(), model.begun
        if what == "resting":
            for _ in range(count):
                await engine.ask((await engine.create_chat()).id, USER)
        else:
            model.may_end.clear()
            for _ in range(count):
                await engine.create_chat(message=USER)
            while model.begun < begun + count:  # noqa: ASYNC110 - it costs less than an event for each chat
                await asyncio.sleep(0.1)
        gc.collect()
        grown = resident_mb() - before
        model.may_end.set()
    return {"mb": grown, "kb_per_chat": grown * 1024 / count}


def main() -> None:
    """Measure what the command line says."""
    what, count, directory = sys.argv[1:]
    print(json.dumps(anyio.run(measure, what, int(count), f"sqlite:///{directory}/chats.db")))


if __name__ == "__main__":
    main()
