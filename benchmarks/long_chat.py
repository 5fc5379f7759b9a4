"""K: what a chat costs as it grows. `long_chat.py calls|messages|megabytes STORE COUNT DIRECTORY` prints JSON.

| what grows | a figure is |
| --- | --- |
| calls | a call of a step of 50 calls, and of one of COUNT |
| messages | the mean of 20 turns of two messages, at the beginning and once the chat has COUNT messages |
| megabytes | the same, while every message of the user between them has 1 MB |

Beside it stand the transcript and the explanation of the chat at its longest, each the median of five.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
from filled_store import ScriptedModel, empty_store
from workload import DELTA

from turnwise import Engine, ModelPart, ModelRequest, Settings, tool

_FEW_CALLS: Final = 50
_EDGE: Final = 20
_SAMPLES: Final = 5
_MEGABYTE: Final = "m" * 2**20

Figures = dict[str, float]


class Asking(ScriptedModel):
    """Asks for as many calls as the last message says, then is brief."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the calls, or a text."""
        last = request.messages[-1]
        for number in range(int(last.text) if last.role == "user" and last.text.isdecimal() else 0):
            yield ModelPart("tool_call", id=f"{last.position}-{number}", name="look", arguments="{}")
        yield ModelPart("text_delta", text=DELTA)
        yield ModelPart("finish", stop_reason="end_turn")


@tool(parallel_safe=True)
async def look() -> str:
    """Look."""
    return "seen"


async def measure(what: str, url: str, count: int) -> Figures:
    """Return what a step of the chat takes while it is short and when it is long, in ms, and what reading it takes."""
    settings = Settings(durability="normal", keep_parts=None)
    async with Engine(url, model=Asking(), tools=[look], settings=settings) as engine:
        chat_id = (await engine.create_chat()).id
        await _turn(engine, chat_id, "warm up")
        if what == "calls":
            first = await _turn(engine, chat_id, str(_FEW_CALLS)) / _FEW_CALLS
            last = await _turn(engine, chat_id, str(count)) / count
        else:
            first = await _turns(engine, chat_id)
            between, text = (count // 2, "hello") if what == "messages" else (count, _MEGABYTE)
            for _ in range(between):
                await _turn(engine, chat_id, text)
            last = await _turns(engine, chat_id)
        show, explain = await _reading(engine.transcript, chat_id), await _reading(engine.explain, chat_id)
    return {"first_ms": first, "last_ms": last, "show_ms": show, "explain_ms": explain}


async def _turn(engine: Engine, chat_id: str, text: str) -> float:
    start = time.perf_counter()
    await engine.ask(chat_id, text)
    return (time.perf_counter() - start) * 1e3


async def _turns(engine: Engine, chat_id: str) -> float:
    return statistics.mean([await _turn(engine, chat_id, "hello") for _ in range(_EDGE)])


async def _reading(read: Callable[[str], Awaitable[Any]], chat_id: str) -> float:
    taken = []
    for _ in range(_SAMPLES):
        start = time.perf_counter()
        await read(chat_id)
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def main() -> None:
    """Measure what the command line says."""
    what, kind, count, directory = sys.argv[1:]
    with empty_store(kind, Path(directory)) as url:
        print(json.dumps(anyio.run(measure, what, url, int(count))))


if __name__ == "__main__":
    main()
