"""What a claim of ten chats takes while many wait. `fair_claims.py sqlite|postgres CHATS DIRECTORY` prints JSON.

All of the chats wait, half of them one owner's, twenty of each other's. Each figure is a median in ms: of claims that
take the longest waiting, of fair ones, and of fair ones with caps, which count the chats at work. They take turns to go
first: the pages of a filled store are full, and the second claim that comes to one has to split it. Nothing else uses
the store.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

import anyio
from filled_store import ScriptedModel, copied, copies, empty_store
from workload import USER

from turnwise import Engine, Settings
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.shares import Caps, Shares
from turnwise.testing.conformance import plans

_SAMPLES: Final = 25
_CLAIMED: Final = 10
_KINDS: Final = {
    "claim": None,
    "fair": Shares({"everyone": 2}, Caps()),
    "capped": Shares({"everyone": 2}, Caps(per_key=1000, per_agent=100_000)),
}


async def measure(url: str, chats: int) -> dict[str, float]:
    """Let that many chats wait, and return what claims of ten of them take."""
    async with Engine(url, model=ScriptedModel(), settings=Settings(run_worker=False)) as engine:
        first = await engine.create_chat(owner="first", message=USER)
    async for _ in copied(url, copies([first.id], chats - 1)):
        pass
    store = store_from_url(url, durability="full", now=None)
    await store.open()
    taken: dict[str, list[float]] = {name: [] for name in _KINDS}
    names = deque(_KINDS)
    for _ in range(_SAMPLES):
        names.rotate()
        for name in names:
            start = time.perf_counter()
            claimed = await store.claim(plans.plan(plans.claim()), runs=plans.RUNS, limit=_CLAIMED, shares=_KINDS[name])
            taken[name].append((time.perf_counter() - start) * 1e3)
            if len(claimed) < _CLAIMED:
                raise RuntimeError(f"{name} took {len(claimed)} chats")
    await store.close()
    return {name: round(statistics.median(each), 2) for name, each in taken.items()}


def main() -> None:
    """Measure what the command line says."""
    kind, chats, directory = sys.argv[1:]
    with empty_store(kind, Path(directory)) as url:
        print(json.dumps(anyio.run(measure, url, int(chats))))


if __name__ == "__main__":
    main()
