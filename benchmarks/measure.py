"""One measurement of one contestant: `measure.py CONTESTANT METRIC COUNT DIRECTORY` prints JSON.

| metric | what |
| --- | --- |
| A | chats one after another, a turn each |
| B | chats at once, a turn each |
| C | turns in one chat: the first and the last 20, and the bytes on disk |
| D | a turn of many deltas: what one costs beyond iterating the fake model |
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
from contestants import load
from workload import CALLS, DELTA, DELTAS, Contestant

Result = dict[str, float]

_EDGE: Final = 20
"""Turns at either end of a long chat that are averaged."""
_WARM_UP: Final = 5
_COLLECT_AFTER: Final = 100_000
"""How many more objects there are before Python looks for garbage: for every contestant what `turnwise worker` sets."""


class Unequal(Exception):
    """A contestant did not do the turn that was agreed on: its figures would mean nothing."""


async def one_after_another(contestant: Contestant, count: int) -> Result:
    """Measure A."""
    meter = Meter()
    for number in range(count):
        await _turn(contestant, f"a-{number}")
    return meter.stop(count)


async def at_once(contestant: Contestant, count: int) -> Result:
    """Measure B."""
    meter = Meter()
    await asyncio.gather(*(_turn(contestant, f"b-{number}") for number in range(count)))
    return meter.stop(count)


async def one_long_chat(contestant: Contestant, count: int) -> Result:
    """Measure C."""
    meter, times = Meter(), []
    for _ in range(count):
        start = time.perf_counter()
        await _turn(contestant, "c")
        times.append((time.perf_counter() - start) * 1e3)
    edges = {"first_ms": statistics.mean(times[:_EDGE]), "last_ms": statistics.mean(times[-_EDGE:])}
    return meter.stop(count) | edges


async def many_deltas(contestant: Contestant, count: int) -> Result:
    """Measure D."""
    meter, added = Meter(), []
    for number in range(3):
        start = time.perf_counter()
        await _turn(contestant, f"short-{number}")
        short = time.perf_counter() - start
        contestant.deltas = count
        start = time.perf_counter()
        await _turn(contestant, f"long-{number}")
        long = time.perf_counter() - start
        start = time.perf_counter()
        await contestant.model_alone()
        alone = (time.perf_counter() - start) / count
        contestant.deltas = DELTAS
        CALLS["model"] -= 1
        added.append(((long - short) / (count - DELTAS) - alone) * 1e6)
    return meter.stop(count) | {"us_per_delta": statistics.median(added)}


METRICS: Final[dict[str, Callable[[Contestant, int], Awaitable[Result]]]] = {
    "A": one_after_another,
    "B": at_once,
    "C": one_long_chat,
    "D": many_deltas,
}


class Meter:
    """Wall time, this process's own CPU time, and how many cores everything else on the machine used meanwhile."""

    def __init__(self) -> None:
        self._busy, self._cpu, self._wall = busy(), time.process_time(), time.perf_counter()

    def stop(self, count: int) -> Result:
        """Return what `count` things took."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {
            "ms": wall / count * 1e3,
            "per_second": count / wall,
            "cpu_ms": cpu / count * 1e3,
            "other_cores": max(0.0, (busy() - self._busy - cpu) / wall),
        }


def calibration() -> float:
    """Return how many ms a fixed loop takes: how fast the machine happens to be."""
    times = []
    for _ in range(3):
        start, total = time.perf_counter(), 0
        for number in range(200_000):
            total += number & 7
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def resident_mb() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def measure(contestant: Contestant, metric: str, count: int) -> Result:
    """Open a contestant, warm it up, measure it, close it.

    Raises:
        Unequal: its turn was not the turn.
    """
    before = calibration()
    await contestant.open()
    try:
        for number in range(_WARM_UP):
            await _turn(contestant, f"warm-{number}")
        result = await METRICS[metric](contestant, count)
    finally:
        await contestant.close()
    if CALLS["model"] != 2 * CALLS["tool"]:
        raise Unequal(f"{CALLS['model']} model calls and {CALLS['tool']} tool calls")
    stored = sum(file.stat().st_size for file in contestant.directory.rglob("*") if file.is_file())
    return result | {
        "stored_kb": stored / 1024,
        "rss_mb": resident_mb(),
        "calibration_ms": (before + calibration()) / 2,
    }


async def _turn(contestant: Contestant, chat: str) -> None:
    tools, want = CALLS["tool"], contestant.deltas * len(DELTA)
    got = await contestant.turn(chat)
    if got != want or CALLS["tool"] == tools:
        raise Unequal(f"{got} characters instead of {want}, {CALLS['tool'] - tools} tool calls")


def busy() -> float:
    """Return the seconds that all cores together were busy since boot."""
    user, nice, system, _idle, _iowait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure what the command line says."""
    name, metric, count, directory = sys.argv[1:]
    gc.set_threshold(_COLLECT_AFTER)
    result = anyio.run(measure, load(name)(Path(directory)), metric, int(count))
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # some contestants leave threads behind


if __name__ == "__main__":
    main()
