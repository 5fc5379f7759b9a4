"""A worker or a client as a process that may be doomed. The model's reply depends on the request alone."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from turnwise import (
    Agent,
    ClientTool,
    CompactionPolicy,
    Engine,
    RetryPolicy,
    Settings,
    ToolContext,
    ToolResult,
    delegate,
    tool,
)
from turnwise.cli.worker import run_until_stopped
from turnwise.engine.tools.declare import Tool
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.protocol import ModelReply, ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing.strict import faults_in

ASK = ClientTool("ask", "Ask the person.", {"type": "object"})
ORDER = "Please:"
"""The start of a message that asks for work. Its words are tools to call, or `full`, `flaky`, `slow` and `stuck`."""
_CALLABLE = ("pay", "note", "book", "ask")
_HANDED: Final = {
    "delegate": Call("ask_hand", {"task": f"{ORDER} note book"}),
    "start": Call("start_hand", {"task": f"{ORDER} pay slow"}),
}
"""Words for work that subagents do."""
_WRITES = ("create", "change", "claim", "append_events", "renew", "prune")


@dataclass
class Doom:
    """The point at which this process dies without cleanup, or freezes, on the nth visit."""

    place: str = "nowhere"
    times: int = 1
    signal: signal.Signals = signal.SIGKILL

    def at(self, place: str) -> None:
        """Die if this is the point and the nth visit."""
        self.times -= place == self.place
        if place == self.place and self.times == 0:
            os.kill(os.getpid(), self.signal)


@dataclass(frozen=True)
class Place:
    """Paths of a process: its store, the file of its acts outside, and its log."""

    url: str
    folder: Path
    lease: float = 1.5
    shutdown_grace: float = 0.1
    keep_parts: float | None = None
    host: str = ""
    """The machine name that a process reports; by default its own."""

    @property
    def world(self) -> Path:
        """The acts outside, one line each."""
        return self.folder / "world"

    @property
    def words(self) -> Path:
        """The log of the processes."""
        return self.folder / "words"

    def settings(self, *, run_worker: bool = True) -> Settings:
        """Return settings with short times between two possible faults."""
        return Settings(
            run_worker=run_worker,
            lease=self.lease,
            renew_every=self.lease / 3,
            poll_interval=0.1,
            shutdown_grace=self.shutdown_grace,
            coalesce=0.005,
            retry=RetryPolicy(first_delay=0.02),
            compaction=CompactionPolicy(context_limit=100),
            keep_parts=self.keep_parts,
        )


class DoomedStore:
    """A store whose process may die right before or right after a commit."""

    def __init__(self, store: ChatStore, doom: Doom) -> None:
        self._store = store
        self._doom = doom

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return functools.partial(self._write, method) if name in _WRITES else method

    async def _write(self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **named: Any) -> Any:
        self._doom.at("before a commit")
        self._doom.at(f"before {method.__name__}")
        committed = await method(*args, **named)
        self._doom.at("after a commit")
        return committed


class ObedientModel(ScriptedModel):
    """Follows the last message; it has no memory, so every process answers alike."""

    def __init__(self, act: Callable[..., None], doom: Doom) -> None:
        super().__init__(self._answer, summary=Reply("What was asked was done.", usage=(50, 7), delay=0.002))
        self._act = act
        self._doom = doom

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Reply; the process may die here."""
        self._doom.at("in a compaction")
        return await super().generate(request)

    def _answer(self, request: ModelRequest) -> Reply:
        for fault in faults_in(request):
            self._act("fault", fault)
        last = request.messages[-1]
        if _has_to_wait(request):
            return Reply("They are at it.", calls=[Call("wait_for_subagents", {})], usage=(15, 4), delay=0.002)
        if last.role != "user" or not last.text.startswith(ORDER):
            return Reply("All that was asked is done.", chunks=9, usage=(20, 6), delay=0.002)
        words = last.text.split()
        return Reply(
            f"On it, for the {request.attempt}. time.",
            chunks=2,
            calls=[_HANDED.get(word, Call(word, {})) for word in words if word in (*_CALLABLE, *_HANDED)],
            usage=(90 if "full" in words else 10, 5),
            delay=0.05 if "slow" in words else 0.002,
            error_after=2 if "flaky" in words and request.attempt == 1 else None,
            stall_after=1 if "stuck" in words and request.attempt == 1 else None,
        )


def _has_to_wait(request: ModelRequest) -> bool:
    """Return whether subagents that were started since the last message are still awaited."""
    called: list[str] = []
    for message in reversed(request.messages):
        if message.role == "user":
            break
        called += [call.name for call in message.calls]
    return "start_hand" in called and "wait_for_subagents" not in called


def tools(place: Place, act: Callable[..., None], doom: Doom) -> list[Tool]:
    """Return a tool of each kind. Each acts outside, and the process may die in it."""

    async def begin(name: str, context: ToolContext) -> None:
        act(name, context.chat_id, context.call_id, context.idempotency_key)
        doom.at(f"in {name}")
        await anyio.sleep(0.01)

    async def booked(context: ToolContext) -> str | None:
        doom.at("asking what became of a call")
        acts = [line.split() for line in place.world.read_text().splitlines()]
        return "booked before" if any(act[::3] == ["book", context.idempotency_key] for act in acts) else None

    @tool
    async def pay(context: ToolContext) -> str:
        """Pay, at most once."""
        await begin("pay", context)
        return "paid"

    @tool(crash="at_least_once", parallel_safe=True)
    async def note(context: ToolContext) -> str:
        """Note it down, at least once."""
        await begin("note", context)
        return "noted"

    @tool(crash="at_least_once", reconcile=booked)
    async def book(context: ToolContext) -> str:
        """Book, and know afterwards whether it was done."""
        await begin("book", context)
        return "booked"

    return [pay, note, book]


def work(place: Place, doom: Doom) -> None:
    _quietly(place, _work, doom)


def submit(place: Place, doom: Doom, chat_id: str) -> None:
    """Act as a client that answers every open call of a chat, twice."""
    _quietly(place, _submit, doom, chat_id)


def answers(calls: list[Any]) -> list[ToolResult]:
    """Return a client's answer, which is the same for every client."""
    return [ToolResult(call.call_id, f"agreed to {call.call_id}") for call in calls if call.name == "ask"]


def _quietly(place: Place, main: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
    log = os.open(place.words, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("turnwise").setLevel(logging.DEBUG)
    if place.host:
        socket.gethostname = lambda: place.host
    anyio.run(main, place, *args)


def engine_on(place: Place, doom: Doom, *, run_worker: bool) -> Engine:
    world = os.open(place.world, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def act(*words: str) -> None:
        os.write(world, f"{' '.join(words)}\n".encode())

    settings = place.settings(run_worker=run_worker)
    store: Any = DoomedStore(store_from_url(place.url, durability=settings.durability, now=None), doom)
    model, own = ObedientModel(act, doom), tools(place, act, doom)
    hand = Agent("hand", model, tools=own)
    lead = Agent("default", model, tools=[*own, delegate(hand), delegate(hand, background=True)])
    return Engine(store, agents=[lead, hand], settings=settings)


async def _work(place: Place, doom: Doom) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_die_with_the_parent)
        await run_until_stopped(engine_on(place, doom, run_worker=True))
        tasks.cancel_scope.cancel()


async def _submit(place: Place, doom: Doom, chat_id: str) -> None:
    async with engine_on(place, doom, run_worker=False) as engine:
        results = answers((await engine.get_chat(chat_id)).open_calls)
        if results:
            await engine.submit_tool_results(chat_id, results)
            await engine.submit_tool_results(chat_id, results)


async def _die_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        await anyio.wait_readable(parent.sentinel)
        os.kill(os.getpid(), signal.SIGKILL)
