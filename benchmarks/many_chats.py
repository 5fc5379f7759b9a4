"""H: what operations take in a store of many chats. `many_chats.py sqlite|postgres CHATS DIRECTORY` prints JSON.

Each figure is the median of many, most of them on chats that no process remembers. Nothing else uses the store.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from filled_store import BIG_OWNER, OWNER, RARE, ScriptedModel, empty_store, fill
from turnwise_engine import lookup
from workload import USER

from turnwise import Engine, Settings
from turnwise.persistence.from_url import store_from_url
from turnwise.testing.conformance import plans

_SAMPLES: Final = 30
"""How often an operation is measured, but no more often than for a tenth of the chats."""
_DAY: Final = 86400.0
_LIMIT: Final = 100
_ONLY_ASKED: Final = Settings(run_worker=False)

Figures = dict[str, float]


async def measure(url: str, chats: int) -> Figures:
    """Fill a store, and return the median of each operation in ms."""
    start, samples = time.perf_counter(), min(_SAMPLES, chats // 10)
    ids = iter(await fill(url, chats))
    figures = {"fill_s": time.perf_counter() - start}
    figures["open"] = await _median(samples, partial(_opening, url))
    async with Engine(url, model=ScriptedModel(), settings=_ONLY_ASKED) as engine:
        for name, asked in (
            ("list", {}),
            ("of owner", {"owner": OWNER}),
            ("in state", {"state": RARE}),
            ("of owner in state", {"owner": BIG_OWNER, "state": RARE}),
        ):
            figures[name] = await _median(samples, partial(_timed, partial(engine.list_chats, **asked)))
        figures["show"] = await _median(samples, lambda: _timed(partial(engine.transcript, next(ids))))
        figures["explain"] = await _median(samples, lambda: _timed(partial(engine.explain, next(ids))))
    async with Engine(url, model=ScriptedModel(), tools=[lookup]) as engine:
        figures["send"] = await _median(samples, lambda: _timed(partial(_turn, engine, next(ids))))
    return figures | await _behind_the_scenes(url, ids, samples)


async def _behind_the_scenes(url: str, ids: Iterator[str], samples: int) -> Figures:
    """Return what a worker's own operations take."""
    figures = {}
    store = store_from_url(url, durability="full", now=None)
    await store.open()
    async with Engine(url, model=ScriptedModel(), settings=_ONLY_ASKED) as engine:

        async def sweep() -> None:
            await store.holders()
            await store.overdue(limit=_LIMIT)

        async def claim() -> float:
            await engine.send_message(next(ids), USER)
            return await _timed(lambda: store.claim(plans.plan(plans.claim()), runs=plans.RUNS, limit=10))

        figures["sweep"] = await _median(samples, partial(_timed, sweep))
        figures["prune"] = await _median(
            samples, partial(_timed, partial(store.prune, keep=_DAY, after="", limit=_LIMIT))
        )
        figures["claim"] = await _median(samples, claim)
    await store.close()
    return figures


async def _turn(engine: Engine, chat_id: str) -> None:
    async for _ in engine.stream(chat_id, USER):
        pass


async def _opening(url: str) -> float:
    engine = Engine(url, model=ScriptedModel(), settings=_ONLY_ASKED)
    try:
        return await _timed(engine.__aenter__)
    finally:
        await engine.__aexit__()


async def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1e3


async def _median(count: int, sample: Callable[[], Awaitable[float]]) -> float:
    await sample()
    return statistics.median([await sample() for _ in range(count)])


def main() -> None:
    """Measure what the command line says."""
    kind, chats, directory = sys.argv[1:]
    with empty_store(kind, Path(directory)) as url:
        print(json.dumps(anyio.run(measure, url, int(chats))))


if __name__ == "__main__":
    main()
