"""N: what streams over all chats cost. `watch_chats.py sqlite|postgres CHATS STREAMS DIRECTORY` prints JSON.

Half of the streams watch all chats, the others those of an owner. Turns run in the same process.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import anyio
import asyncpg
from filled_store import OWNER, ScriptedModel, empty_store, fill
from turnwise_engine import lookup

from turnwise import Engine

_CHANGES: Final = 100


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(url: str, chats: int, streams: int) -> dict[str, float]:
    """Fill a store, open the streams, rename chats, and return what that took."""
    ids = await fill(url, chats)
    await _number(url)
    figures: dict[str, float] = {}
    async with Engine(url, model=ScriptedModel(), tools=[lookup]) as engine:
        start, cpu = time.perf_counter(), _cpu_s()
        for chat in ids[:_CHANGES]:
            await engine.rename(chat, "alone")
        figures["change_alone_ms"] = (_cpu_s() - cpu) / _CHANGES * 1000
        start = time.perf_counter()
        number = 0
        async for change in engine.watch(follow=False):
            number = change.number
        figures["replay_of_all_ms"] = (time.perf_counter() - start) * 1000
        seen = [0] * streams
        lags: list[float] = []
        sent: dict[str, float] = {}

        async def follow(place: int) -> None:
            async for change in engine.watch(owner=OWNER if place % 2 else None, after=number):
                seen[place] += 1
                if place == 0 and change.chat is not None and change.chat_id in sent:
                    lags.append(time.perf_counter() - sent[change.chat_id])

        async with anyio.create_task_group() as tasks:
            for place in range(streams):
                tasks.start_soon(follow, place)
            await anyio.sleep(2)
            start, cpu = time.perf_counter(), _cpu_s()
            for chat in ids[:_CHANGES]:
                sent[chat] = time.perf_counter()
                await engine.rename(chat, "watched")
            with anyio.move_on_after(60):
                while min(seen[::2]) < _CHANGES:  # noqa: ASYNC110 - measured from outside
                    await anyio.sleep(0.01)
            figures["change_watched_ms"] = (_cpu_s() - cpu) / _CHANGES * 1000
            figures["lag_median_ms"] = sorted(lags)[len(lags) // 2] * 1000 if lags else -1.0
            figures["delivered"] = float(sum(seen))
            tasks.cancel_scope.cancel()
    return {name: round(value, 3) for name, value in figures.items()}


async def _number(url: str) -> None:
    """Give each chat a number of its own: those that were copied share that of the first."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            file.execute("UPDATE chats SET changed = number")
        return
    connection = await asyncpg.connect(url.partition("?")[0])
    schema = url.partition("schema=")[2] or "turnwise"
    await connection.execute(f'SET search_path = "{schema}"')
    await connection.execute("UPDATE facts SET changed = chat")
    await connection.execute("SELECT setval('changes', (SELECT max(changed) FROM facts))")
    await connection.close()


def main() -> None:
    """Measure what the command line says."""
    kind, chats, streams, directory = sys.argv[1:]
    with empty_store(kind, Path(directory)) as url:
        print(json.dumps(anyio.run(measure, url, int(chats), int(streams))))


if __name__ == "__main__":
    main()
