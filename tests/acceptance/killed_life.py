"""A short life that touches everything, lived by processes that die at a chosen point.

Run as a script it forks a process for each point (`python killed_life.py FOLDER`), kills it there, and prints one JSON
line a point: its name and whether the process was killed. It is imported by the tests, which then recover.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal

import anyio

from turnwise import Chat, ChatState, ClientTool, Engine, Settings, ToolContext, ToolResult, tool
from turnwise.engine.tools.declare import Tool
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply
from turnwise.testing.strict import StrictModel

QUICK = Settings(coalesce=0, poll_interval=0.02, shutdown_grace=0)
ASK = ClientTool("ask", "Ask the person.", {"type": "object"})
CALLS = (Call("pay", {}, id="pay"), Call("note", {}, id="note"), Call("ask", {}, id="ask"))

MANY_LIVES = 20

When = Literal["before", "after"]
Strike = Callable[[], object]
"""What happens when the point is reached."""


class Doomed:
    """A store that strikes right before or right after the `at`th time that it is asked to write."""

    def __init__(self, database: Path, at: int, when: When, strike: Strike) -> None:
        self._store = SQLiteStore(database)
        self._at = at
        self._when = when
        self._strike = strike

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return functools.partial(self._write, method) if name in {"create", "change", "claim", "journal"} else method

    async def _write(self, method: Callable[..., Coroutine[Any, Any, Any]], *given: Any, **named: Any) -> Any:
        self._at -= 1
        struck = self._at == 0
        if struck and self._when == "before":
            self._strike()
        committed = await method(*given, **named)
        if struck and self._when == "after":
            self._strike()
        return committed


def model() -> StrictModel:
    """Return a model that answers by what it is told alone, so that it says the same however often it is asked."""

    def answer(request: ModelRequest) -> Reply:
        if any(message.role == "tool" for message in request.messages):
            return Reply("All done.", chunks=4, usage=(10, 2))
        return Reply("On it.", chunks=3, reasoning="I will pay", signature="s", calls=CALLS, usage=(90, 5))

    return StrictModel(answer, summary=Reply("What was asked: pay.", usage=(50, 7)), context_limit=100)


def tools(world: Path, strike: Strike, *, deadly: str | None = None) -> list[Tool]:
    """Return tools that act on the outside world: a line in a file. The `deadly` one acts, then strikes."""

    def act(name: str, context: ToolContext) -> None:
        with world.open("a") as lines:
            lines.write(f"{name} {context.idempotency_key}\n")
        if name == deadly:
            strike()

    @tool(crash="at_most_once")
    async def pay(context: ToolContext) -> str:
        """Pay."""
        act("pay", context)
        return "paid"

    @tool(crash="at_least_once")
    async def note(context: ToolContext) -> str:
        """Note it down."""
        act("note", context)
        return "noted"

    return [pay, note]


async def live(engine: Engine) -> Chat:
    """Be a client that does not give up: begin, or go on wherever the chat is."""
    known = (await engine.list_chats()).items
    chat = known[0] if known else await engine.create_chat(system="Be brief.", client_tools=[ASK])
    await engine.send_message(chat.id, "Pay, please.", client_id="the only one")
    rested = await engine.wait(chat.id)
    if rested.state is ChatState.requires_action:
        await engine.submit_tool_results(chat.id, [ToolResult("ask", "agreed")])
        rested = await engine.wait(chat.id, until=[ChatState.waiting, ChatState.error])
    return rested


async def live_until(database: Path, at: int, when: When, deadly: str | None) -> None:
    """Live the life in this process, which dies on the way if it gets to the point."""
    store = Doomed(database, at, when, die)
    acting = tools(database.with_suffix(".world"), die, deadly=deadly)
    async with Engine(store, model=model(), tools=acting, settings=QUICK) as engine:
        await live(engine)


def die() -> None:
    """End this process with no cleanup at all."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def is_killed(database: Path, at: int, when: When, *, deadly: str | None = None) -> bool:
    """Live the life in a process of its own; return whether it was killed."""
    pid = os.fork()
    if pid == 0:
        anyio.run(live_until, database, at, when, deadly)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{database.name}: the life itself failed")
    return os.WIFSIGNALED(status)


def points(folder: Path) -> Iterator[tuple[str, bool]]:
    """Die around each commit in turn until a process lives to the end; in the midst of each tool; again and again."""
    for at in itertools.count(1):
        killed = [is_killed(folder / f"{at}-{when}.db", at, when) for when in ("before", "after")]
        yield from ((f"{at}-{when}", dead) for when, dead in zip(("before", "after"), killed, strict=True))
        if not any(killed):
            break
    for name in ("pay", "note"):
        yield f"in-{name}", is_killed(folder / f"in-{name}.db", -1, "before", deadly=name)
    for life in range(1, MANY_LIVES):
        killed_again = is_killed(folder / "worn.db", 6, "after")
        yield f"worn-{life}", killed_again
        if not killed_again:
            break


if __name__ == "__main__":
    for point, killed in points(Path(sys.argv[1])):
        print(json.dumps({"point": point, "killed": killed}), flush=True)  # noqa: T201 - what the tests read
