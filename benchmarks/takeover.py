"""F: how long until a chat streams again elsewhere. `takeover.py killed|frozen DIRECTORY` prints JSON.

Two worker processes share a SQLite file. The one that streams gets SIGKILL, or SIGSTOP: a process that is gone is found
out by its name at the next poll, one that hangs only when its lease has run out.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
from turnwise_engine import FakeModel
from workload import DELTA, USER

from turnwise import Engine, ModelPart, ModelRequest, Settings
from turnwise.persistence.from_url import store_from_url

LEASE: Final = 3.0
_ROUNDS: Final = 3
"""The median of so many: when the other worker looks is chance, once a second."""
_STREAMS: Final = b"streams\n"
_READY: Final = b"ready\n"


class EndlessModel(FakeModel):
    """Streams until it is stopped, and tells when it begins."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:  # noqa: ARG002 - the protocol
        """Yield a delta every 20 ms."""
        sys.stdout.buffer.write(_STREAMS)
        sys.stdout.flush()
        while True:
            yield ModelPart("text_delta", text=DELTA)
            await asyncio.sleep(0.02)


async def work(url: str) -> None:
    """Be a worker process."""
    async with Engine(url, model=EndlessModel(), settings=Settings(lease=LEASE, renew_every=LEASE / 3)):
        sys.stdout.buffer.write(_READY)
        sys.stdout.flush()
        await asyncio.Event().wait()


async def take_over(directory: Path, how: str) -> dict[str, float]:
    """Stop the worker that streams; return the seconds until the other does, and those past the lease if frozen."""
    url = f"sqlite:///{directory}/chats.db"
    async with Engine(url, model=EndlessModel(), settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, USER)
        first = await _start_worker(url)
        await _says(first, _STREAMS)
        second = await _start_worker(url)
        try:
            await _says(second, _READY)
            await asyncio.sleep(1)  # so that the first has renewed its lease, and both have found their pace
            stopped = time.monotonic()
            if how == "killed":
                first.kill()
            else:
                stopped = await _freeze(first, directory / "chats.db")
            left = await _lease_left(url, chat.id)
            await _says(second, _STREAMS)
            taken = time.monotonic() - stopped
        finally:
            for worker in (first, second):
                if worker.returncode is None:
                    worker.kill()
                    await worker.wait()
        verdict = await engine.verify(chat.id)
    if not verdict.ok:
        raise RuntimeError(f"the audit log of the chat does not verify: {verdict.problem}")
    return {"seconds": taken} if how == "killed" else {"seconds": taken, "past_lease": taken - left}


async def _freeze(worker: Process, file: Path) -> float:
    """Freeze a process, but not in the middle of a commit: it would hold the lock of the file. Return when."""
    while True:
        worker.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        connection = sqlite3.connect(file, isolation_level=None, timeout=0.1)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            worker.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.01)
        else:
            return stopped
        finally:
            connection.close()


async def _start_worker(url: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, __file__, "worker", url, stdout=PIPE)


async def _says(worker: Process, line: bytes) -> None:
    if worker.stdout is None:
        raise RuntimeError("the worker's output is not read")
    async with asyncio.timeout(30):
        while await worker.stdout.readline() != line:
            if worker.stdout.at_eof():
                raise RuntimeError(f"the worker ended and never said {line!r}")


async def _lease_left(url: str, chat_id: str) -> float:
    store = store_from_url(url, durability="full", now=None)
    await store.open()
    try:
        expiry = await store.lease_expiry(chat_id)
    finally:
        await store.close()
    return (expiry.expires - expiry.now).total_seconds() if expiry is not None else 0.0


def main() -> None:
    """Be the worker, or the measurement."""
    how, where = sys.argv[1:]
    if how == "worker":
        anyio.run(work, where)
    else:
        rounds = []
        for number in range(_ROUNDS):
            directory = Path(where) / str(number)
            directory.mkdir()
            rounds.append(anyio.run(take_over, directory, how))
        print(json.dumps({name: statistics.median(each[name] for each in rounds) for name in rounds[0]}))


if __name__ == "__main__":
    main()
