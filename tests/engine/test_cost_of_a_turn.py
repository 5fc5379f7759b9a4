"""The cost of a turn in counts, which are equal on all machines."""

import asyncio
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio

from turnwise import Engine, ModelPart, ModelReply, ModelRequest, tool
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.reply_builder import join
from turnwise.testing import ManualClock

WRITES = re.compile(r"^(INSERT|UPDATE|DELETE|REPLACE)\b", re.MULTILINE)


class CountingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def _run_once(self) -> None:
        self.counts["iterations"] += 1
        super()._run_once()  # type: ignore[misc]

    def create_task(self, *arguments: Any, **options: Any) -> Any:
        self.counts["tasks"] += 1
        return super().create_task(*arguments, **options)

    def create_future(self) -> Any:
        self.counts["futures"] += 1
        return super().create_future()

    def call_soon(self, callback: Callable[..., object], *arguments: Any, **options: Any) -> Any:
        self.counts["callbacks"] += 1
        return super().call_soon(callback, *arguments, **options)


class CountedStore(SQLiteStore):
    """Counts commits and writing statements. It ignores changes of other processes."""

    def __init__(self, path: Path, counts: Counter[str]) -> None:
        super().__init__(path)
        self.counts = counts

    def prepare(self, on: sqlite3.Connection) -> None:
        super().prepare(on)
        on.set_trace_callback(self._count)

    async def watch(self) -> AsyncIterator[str | None]:
        await anyio.sleep_forever()
        yield None

    def _count(self, statement: str) -> None:
        self.counts["commits"] += statement == "COMMIT"
        self.counts["statements"] += WRITES.search(statement) is not None


class PromptModel:
    """Calls the tool, then answers, both without a pause, so no part is visible before the reply is stored."""

    name = provider = "prompt"
    context_limit = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        if request.messages[-1].role == "user":
            yield ModelPart("tool_call", id="look", name="look", arguments={"at": "me"})
        else:
            yield ModelPart("text_delta", text="I looked.")
        yield ModelPart("finish", stop_reason="end_turn")

    async def generate(self, request: ModelRequest) -> ModelReply:
        return join([part async for part in self.stream(request)])


@tool
async def look(at: str) -> str:
    """Look."""
    return at


async def second_turn(path: Path, counts: Counter[str]) -> Counter[str]:
    """Return the counts of a turn with one tool call, in a chat that is created with its message."""
    store, clock = CountedStore(path, counts), ManualClock()  # time stands still: no timer fires, nothing is polled
    async with Engine(store, model=PromptModel(), tools=[look], clock=clock) as engine:
        for _ in range(2):  # the first one prepares the connection, and warms caches
            await anyio.wait_all_tasks_blocked()
            counts.clear()
            chat = await engine.create_chat(message="Look at me.")
            async for event in engine.events(chat.id):
                if event.kind == "turn_finished":
                    break
            counted = Counter(counts)
        counted["decisions"] = len(await engine.audit(chat.id))
        return counted


EXACTLY = {"decisions": 7, "commits": 4, "statements": 42}
"""SQLite reports the statement that numbers a commit three times: its trigger adds two."""
AT_MOST = {"tasks": 5, "futures": 16, "callbacks": 34, "iterations": 30}
"""Slightly more than measured, except for tasks: a late thread may cost one more iteration."""


def test_turn_with_a_call_costs_what_was_counted(tmp_path: Path) -> None:
    loop = CountingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        counted = runner.run(second_turn(tmp_path / "chats.db", loop.counts))
    assert {name: counted[name] for name in EXACTLY} == EXACTLY
    assert {name: counted[name] for name, most in AT_MOST.items() if counted[name] > most} == {}
