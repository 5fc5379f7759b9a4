"""J: how long until orphaned chats run again. `orphans.py sqlite|postgres WORKERS CHATS DIRECTORY` prints JSON.

The chats were streaming under the lease of a worker that is dead. The time counts from the start of the first process,
so it holds the import of turnwise, until another worker streams the last of them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
from filled_store import ScriptedModel, empty_store
from workload import DELTA, USER

from turnwise import Engine, ModelPart, ModelRequest, Settings
from turnwise.persistence.from_url import store_from_url
from turnwise.testing.conformance import plans

_NAME: Final = "from turnwise.engine.worker.identity import worker_name; print(worker_name())"
_AT_ONCE: Final = 50
_LEASE: Final = 3600.0


class Endless(ScriptedModel):
    """Begins an answer, and counts it."""

    begun = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:  # noqa: ARG002 - the protocol
        """Yield a text, then nothing."""
        yield ModelPart("text_delta", text=DELTA)
        Endless.begun += 1
        await asyncio.Event().wait()


async def work(url: str, chats: int) -> None:
    """Be a worker that has room for all chats; tell how many it streams, whenever that has changed."""
    settings = Settings(max_running=chats, idle_timeout=None, shutdown_grace=0.1)
    told = 0
    async with Engine(url, model=Endless(), settings=settings):
        while True:
            if Endless.begun != told:
                told = Endless.begun
                print(told, flush=True)
            await asyncio.sleep(0.02)


async def orphan(url: str, chats: int) -> None:
    """Fill a store with chats that a dead worker was streaming."""
    dead = subprocess.run([sys.executable, "-c", _NAME], check=True, capture_output=True, text=True).stdout.strip()  # noqa: ASYNC221, S603 - before anything is measured
    store = store_from_url(url, durability="normal", now=None)
    await store.open()
    moves = [plans.create(), plans.send(USER), plans.claim(dead, lease=_LEASE), plans.start()]
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(number: int) -> None:
        async with limiter:
            await store.create(f"orphan-{number:06}", plans.plan(*moves))

    async with anyio.create_task_group() as tasks:
        for number in range(chats):
            tasks.start_soon(one, number)
    await store.close()


async def measure(url: str, workers: int, chats: int) -> dict[str, float]:
    """Return the seconds until all chats stream."""
    await orphan(url, chats)
    start = time.perf_counter()
    command = [sys.executable, __file__, url, str(chats)]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL) for _ in range(workers)]
    streaming: dict[int, int] = {}
    all_stream = asyncio.Event()

    async def listen(process: Process) -> None:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        while line := await process.stdout.readline():
            streaming[process.pid] = int(line)
            if sum(streaming.values()) >= chats:
                all_stream.set()

    try:
        async with anyio.create_task_group() as tasks:
            for process in processes:
                tasks.start_soon(listen, process)
            await all_stream.wait()
            taken = time.perf_counter() - start
            tasks.cancel_scope.cancel()
    finally:
        for process in processes:
            process.kill()
            await process.wait()
    return {"seconds": taken, "per_second": chats / taken}


def main() -> None:
    """Be a worker, or the measurement."""
    if len(sys.argv) == 3:  # noqa: PLR2004 - a URL and a count
        anyio.run(work, sys.argv[1], int(sys.argv[2]))
        return
    kind, workers, chats, directory = sys.argv[1:]
    with empty_store(kind, Path(directory)) as url:
        print(json.dumps(anyio.run(measure, url, int(workers), int(chats))))


if __name__ == "__main__":
    main()
