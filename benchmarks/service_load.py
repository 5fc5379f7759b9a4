"""L: a service under load. `service_load.py sqlite|postgres SECONDS DIRECTORY` prints JSON.

`turnwise serve`, a process of its own, runs CHATS chats whose model says PARTS_PER_SECOND parts a second. Another
process holds STREAMS streams of them open. A part's age is taken from when it was due: one clock, one machine, and no
pity for a service that is late with asking its model for the next part, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import httpx
from filled_store import empty_store
from measure import busy, calibration
from stream_readers import CALM

from turnwise import Engine, ModelPart, ModelReply, ModelRequest, Settings
from turnwise.providers.reply_builder import join

CHATS: Final = int(os.environ.get("TURNWISE_BENCH_CHATS", "200"))
STREAMS: Final = int(os.environ.get("TURNWISE_BENCH_STREAMS", "500"))
PARTS_PER_SECOND: Final = float(os.environ.get("TURNWISE_BENCH_PARTS", "5"))
GRACE: Final = float(os.environ.get("TURNWISE_BENCH_GRACE", "5"))
"""Seconds that the jobs under way have to end, which none does, once the service is told to stop."""
STORE: Final = "TURNWISE_BENCH_STORE"
"""The environment variable that tells the service its store."""
_HERE: Final = Path(__file__).parent
_OWNERS: Final = 10
"""A principal may have 100 streams open."""
_SERVING: Final = re.compile(rb"serving on (http://\S+);")
_PATIENCE: Final = 60

Figures = dict[str, float]


class PacedModel:
    """Says when each part was due, for ever, at an even pace."""

    name = "paced"
    provider = "fake"
    context_limit = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:  # noqa: ARG002 - the protocol
        """Yield parts of about 25 characters, as late as the process is."""
        due = time.monotonic() + random.random() / PARTS_PER_SECOND  # noqa: S311 - so that chats do not speak at once
        while True:
            await asyncio.sleep(due - time.monotonic())
            yield ModelPart("text_delta", text=f"{due * 1e9:.0f}~ is when. ")
            due += 1 / PARTS_PER_SECOND

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the same, whole."""
        return join([part async for part in self.stream(request)])


def engine() -> Engine:
    """Return the engine that is served."""
    return Engine(os.environ[STORE], model=PacedModel(), settings=Settings(max_running=CHATS, shutdown_grace=GRACE))


async def measure(store: str, seconds: float, directory: Path) -> Figures:
    """Return what the readers saw, and what that took of the service."""
    tokens = directory / "tokens.toml"
    owners = [f"owner-{number}" for number in range(_OWNERS)]
    tokens.write_text("".join(f'[[tokens]]\ntoken = "{name}"\nname = "{name}"\n' for name in owners))
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnwise", "serve", "service_load:engine"),
        *("--port", "0", "--tokens", str(tokens), "--quiet"),
        cwd=_HERE,
        env=os.environ | {STORE: store},
        stdout=PIPE,
    )
    try:
        return await _measured(service, owners, seconds)
    finally:
        if service.returncode is None:
            service.kill()
            await service.wait()


async def _measured(service: Process, owners: list[str], seconds: float) -> Figures:
    address = await _address(service)
    chats = await _running_chats(address, owners)
    await asyncio.sleep(CALM / 2)
    before = _resident_mb(service.pid)
    readers = await asyncio.create_subprocess_exec(
        *(sys.executable, str(_HERE / "stream_readers.py"), address, str(STREAMS), str(seconds)),
        stdin=PIPE,
        stdout=PIPE,
    )
    if readers.stdin is None or readers.stdout is None:
        raise RuntimeError("the readers are not heard")
    readers.stdin.write("".join(f"{token} {chat}\n" for token, chat in chats).encode())
    readers.stdin.close()
    async with asyncio.timeout(seconds + 2 * _PATIENCE):
        await readers.stdout.readline()
        opened, used, all_used, began = _resident_mb(service.pid), _cpu(service.pid), busy(), time.perf_counter()
        read: Figures = json.loads(await readers.stdout.readline())
        took, used, all_used = time.perf_counter() - began, _cpu(service.pid) - used, busy() - all_used
        after = _resident_mb(service.pid)
        stopping = time.perf_counter()
        service.send_signal(signal.SIGTERM)
        code = await service.wait()
        stopped = time.perf_counter() - stopping
        await readers.wait()
    if code:
        raise RuntimeError(f"the service ended with {code}")
    return read | {
        "streams": STREAMS,
        "chats": CHATS,
        "kb_per_stream": (opened - before) / STREAMS * 1024,
        "mb_before": before,
        "mb_after": after,
        "service_cores": used / took,
        "other_cores": max(0.0, (all_used - used) / took - read["readers_cores"]),
        "stop_seconds": stopped,
        "calibration_ms": calibration(),
    }


async def _address(service: Process) -> str:
    if service.stdout is None:
        raise RuntimeError("the service is not heard")
    async with asyncio.timeout(_PATIENCE):
        while found := await service.stdout.readline():
            if match := _SERVING.search(found):
                return match[1].decode()
    raise RuntimeError("the service ended before it served")


async def _running_chats(address: str, owners: list[str]) -> list[tuple[str, str]]:
    """Create the chats, and return their owners and ids once the model speaks in all of them."""
    chats = []
    async with httpx.AsyncClient(base_url=address, timeout=_PATIENCE) as client:
        for place in range(CHATS):
            owner = owners[place % len(owners)]
            who = {"Authorization": f"Bearer {owner}"}
            chat = (await client.post("/chats", json={}, headers=who)).raise_for_status().json()["id"]
            sent = await client.post(f"/chats/{chat}/messages", json={"content": "When?"}, headers=who)
            sent.raise_for_status()
            chats.append((owner, chat))
    return chats


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure what the command line says."""
    kind, seconds, directory = sys.argv[1:]
    folder = Path(directory).resolve()
    with empty_store(kind, folder) as url:
        print(json.dumps(anyio.run(measure, url, float(seconds), folder)))


if __name__ == "__main__":
    main()
