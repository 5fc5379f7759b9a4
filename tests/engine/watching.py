"""Ways to look on: at what a chat's events tell, and at the moment something is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import anyio

from turnwise import Engine, Event, Message, ModelRequest, ToolContext, fold, tool
from turnwise.engine.tools.declare import Tool
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Reply
from turnwise.states.events import CompactionEvent, PartEvent
from turnwise.testing.clock import ManualClock
from turnwise.testing.strict import StrictModel

OpenEngine = Callable[..., AbstractAsyncContextManager[Engine]]
MakeModel = Callable[..., StrictModel]
"""What the fixtures `open_engine` and `strict_model` give."""


class Delegate:
    """A store that does what another does, until a test overrides a method of it."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Started:
    """A scripted reply, and the moment at which the model is asked for it."""

    def __init__(self, reply: Reply | str = "") -> None:
        self.asked = anyio.Event()
        self._reply = reply

    def __call__(self, request: ModelRequest) -> Reply | str:
        self.asked.set()
        return self._reply


class Gate:
    """A tool that tells when it runs and ends only when it is let through."""

    def __init__(self, name: str = "work", **options: Any) -> None:
        self.entered = anyio.Event()
        self.open = anyio.Event()
        self.runs: list[ToolContext] = []
        self.cancelled = 0

        async def run(context: ToolContext) -> str:
            self.runs.append(context)
            self.entered.set()
            try:
                await self.open.wait()
            except BaseException:
                self.cancelled += 1
                raise
            return f"{name} done"

        self.tool: Tool = tool(name=name, description="Work until let go.", **options)(run)


async def log(engine: Engine, chat_id: str, *, after: int = 0) -> list[Event]:
    """Return the chat's events so far."""
    return [event async for event in engine.events(chat_id, after=after, follow=False)]


async def seen(engine: Engine, chat_id: str, kind: str, count: int = 1, **fields: Any) -> Any:
    """Wait until an event of that kind, with those fields, is told for the `count`th time, and return it."""
    async for event in engine.events(chat_id):
        if event.kind == kind and all(getattr(event, name) == wanted for name, wanted in fields.items()):
            count -= 1
            if not count:
                return event
    raise AssertionError("a followed chat has no end")


async def shown(engine: Engine, chat_id: str, text: str) -> None:
    """Wait until subscribers were shown `text` of a reply under way."""
    told = ""
    async for event in engine.events(chat_id):
        if isinstance(event, PartEvent):
            told += event.part.delta or ""
            if text in told:
                return


async def due_in(clock: ManualClock, seconds: float) -> None:
    """Wait until the next timer of the clock is due in so many seconds: what was seen may come before it is set."""
    while clock.next_timer != clock.now() + timedelta(seconds=seconds):
        await clock.advance(0)


async def pass_time(clock: ManualClock, seconds: float) -> None:
    """Let so much time pass once something waits for its end, and nothing for an earlier moment."""
    await due_in(clock, seconds)
    await clock.advance(seconds)


async def phases(engine: Engine, chat_id: str) -> list[str]:
    """Return how far each compaction of the chat came, in order."""
    return [event.phase for event in await log(engine, chat_id) if isinstance(event, CompactionEvent)]


async def assert_told_right(engine: Engine, chat_id: str) -> None:
    """Check that the events have no gap and fold to what the store holds."""
    events, chat = await log(engine, chat_id), await engine.get_chat(chat_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    transcript = fold(events)
    assert transcript.messages == await engine.messages(chat_id)
    assert (transcript.state or "waiting") == chat.state
    assert transcript.queue == tuple(await engine.queued(chat_id))
    if chat.state in {"waiting", "error", "requires_action", "interrupted"}:
        assert transcript.live == {}


def said(messages: Sequence[Message]) -> list[tuple[str, Any]]:
    """Return the messages as (role, text or output)."""
    return [(message.role, message.result.output if message.result else message.text) for message in messages]


def stored_at(path: Any, clock: ManualClock | None = None) -> SQLiteStore:
    """Return a store on a file, on the clock if one is given."""
    return SQLiteStore(path, now=clock.now) if clock is not None else SQLiteStore(path)
