"""Commits are logged line by line and published, even if their caller is cancelled meanwhile."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from msgspec.structs import replace

from support.life import NOW, local, parts_of, streaming
from support.runtimes import runtime_of
from support.stores import Delegate, stored_at
from turnwise.engine.observers.observer import Observer, Observers
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.transactions.chat_writer import ChatWriter, UnitOfWork
from turnwise.states.arguments import StepReply
from turnwise.states.decide import Decision
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Limits, Profile
from turnwise.states.messages import TextPart
from turnwise.states.triggers import (
    Claimed,
    Create,
    LeaseExpired,
    Released,
    Renamed,
    Repaired,
    SendMessage,
    StepFinished,
    TransitionContext,
    Trigger,
)
from turnwise.testing import ManualClock


class Watcher(Observer):
    def __init__(self) -> None:
        self.seen: list[Trigger] = []

    def transitioned(self, decision: Decision) -> None:
        self.seen.append(decision.trigger.name)


@asynccontextmanager
async def applying(store: Any) -> AsyncIterator[tuple[ChatWriter, Watcher, list[int]]]:
    """Open a writer; return its observer's transitions and the published versions."""
    watcher, announced = Watcher(), list[int]()
    broadcaster = Broadcaster()
    broadcaster.observe(lambda facts: announced.append(facts.version))
    await store.open()
    try:
        yield ChatWriter(store, broadcaster, lambda _: Limits(), Observers((watcher,))), watcher, announced
    finally:
        await store.close()


def held_by_a_worker(unit: UnitOfWork) -> None:
    """Make a worker hold a new chat."""
    unit.fire(Create(profile=Profile(created_at=unit.now)))
    unit.fire(SendMessage(parts=(TextPart(text="hi"),)))
    unit.fire(Claimed(worker="w"), actor="worker:w")


EXPIRED: Final = LeaseExpired(token=1)
REPAIR: Final = Repaired(error=ErrorInfo(kind="repaired", message="found in state 'dreaming'"))


def damage(database: Path) -> None:
    """Write an unknown state, as manual SQL could; such a chat can be repaired."""
    with closing(sqlite3.connect(database)) as on, on:
        assert on.execute("UPDATE chats SET state = 'dreaming' WHERE id = 'c'").rowcount == 1


async def test_decisions_hold_actor_and_reason(database: Path) -> None:
    """The unit's actor is the default; a reason belongs to one decision."""

    def planned(unit: UnitOfWork) -> None:
        unit.fire(Create(profile=Profile(created_at=unit.now)))
        unit.fire(Renamed(title="a"), actor="bob")
        unit.fire(Renamed(title="b"), reason="it is better")
        unit.fire(Renamed(title="c"), actor="bob", reason="it is best")
        assert unit.fire(Renamed(title="d")).profile.title == unit.facts.profile.title == "d"

    async with applying(stored_at(database)) as (writer, _, _):
        await writer.create("c", planned, actor="ann")
        expected = [("ann", None), ("bob", None), ("ann", "it is better"), ("bob", "it is best"), ("ann", None)]
        assert [(record.actor, record.reason) for record in await writer.store.audit("c")] == expected


async def test_each_commit_is_announced_once(database: Path) -> None:
    async with applying(stored_at(database)) as (writer, watcher, announced):
        await writer.create("c", held_by_a_worker, actor="ann")
        assert watcher.seen == ["create", "send_message", "claimed"]
        assert announced == [3]
        nothing = await writer.change("c", lambda _: None, actor="ann")
        assert (nothing.decisions, len(watcher.seen), announced) == ((), 3, [3])
        await writer.change("c", Released(token=1), actor="worker:w")
        (claimed,) = await writer.claim(Claimed(worker="v"), actor="worker:v", runs={"default": ()}, limit=5)
        assert claimed.facts.lease is not None
        assert (watcher.seen[3:], announced) == (["released", "claimed"], [3, 4, 5])
        damage(database)
        await writer.repair("c", REPAIR, actor="ann")
        assert (watcher.seen[5:], announced) == (["repaired"], [3, 4, 5, 6])


async def test_each_commit_has_its_own_salt(database: Path) -> None:
    """Equal contents in two chats have different digests."""
    decisions: list[Decision] = []
    async with applying(stored_at(database)) as (writer, _, _):
        for chat_id in ("c", "d"):
            decisions += (await writer.create(chat_id, held_by_a_worker, actor="ann")).decisions
    salts = [decision.salt for decision in decisions]
    assert len(set(salts)) == 2
    assert len(set(salts[:3])) == 1
    assert all(len(bytes.fromhex(salt)) == 16 for salt in salts)


class Slow(Delegate):
    """A store that commits before it answers."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.committed, self.answer = anyio.Event(), anyio.Event()

    def __getattr__(self, name: str) -> Any:
        method = super().__getattr__(name)
        if name not in WAYS:
            return method

        async def slowly(*args: Any, **options: Any) -> Any:
            outcome = await method(*args, **options)
            self.committed.set()
            await self.answer.wait()
            return outcome

        return slowly


WAYS: Final[dict[str, Callable[[ChatWriter], Any]]] = {
    "create": lambda writer: writer.create("new", held_by_a_worker, actor="ann"),
    "change": lambda writer: writer.change("c", EXPIRED, actor="ann"),
    "repair": lambda writer: writer.repair("c", REPAIR, actor="ann"),
    "claim": lambda writer: writer.claim(Claimed(worker="v"), actor="ann", runs={"default": ()}, limit=1),
}


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_caller_hides_no_commit(database: Path, way: str) -> None:
    store = Slow(stored_at(database))
    async with applying(store) as (writer, watcher, announced):
        store.answer.set()
        await writer.create("c", held_by_a_worker, actor="ann")
        if way == "claim":
            await writer.change("c", Released(token=1), actor="worker:w")
        if way == "repair":
            damage(database)
        seen = len(watcher.seen)
        store.committed, store.answer = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(WAYS[way], writer)
            await store.committed.wait()
            tasks.cancel_scope.cancel()
            store.answer.set()
        assert len(watcher.seen) > seen
        assert len(announced) == (3 if way == "claim" else 2)


# What is known to come next shares the commit


@pytest.mark.parametrize(
    ("worker", "deps", "started"),
    [
        ("w", {}, ["a"]),
        ("v", {}, []),
        ("w", {"made": "each time"}, []),
        ("w", {"made": "each time", "open": "default"}, ["a"]),
        ("w", {"made": "each time", "open": "another"}, []),
        ("w", {"stopping": "it may let the chat go next"}, []),
    ],
)
async def test_first_call_starts_in_the_commit_that_plans_it(
    database: Path, worker: str, deps: dict[str, str], started: list[str]
) -> None:
    """Exceptions are calls whose `deps` must be opened first, and workers that may release the chat."""
    clock = ManualClock(NOW)
    runtime = runtime_of(stored_at(database, clock), clock)
    runtime.worker_id, runtime.stopping = worker, "stopping" in deps
    runtime.deps = (lambda chat: chat) if "made" in deps else "a value"
    life = streaming()
    calls = tuple(replace(call, step=life.facts.step.number) for call in (local("a"), local("b", 1)))
    unit = UnitOfWork(life.facts, TransitionContext(now=NOW, limits=Limits(), actor="client"))
    token = life.facts.lease.token
    unit.fire(StepFinished(token=token, reply=StepReply(parts=parts_of(calls), calls=calls)))
    runtime.fire_next_triggers(unit, claim=True, deps_agent=deps.get("open"))
    follows = unit.decisions[1:]
    assert [(decision.trigger.name, decision.actor) for decision in follows] == [
        ("call_started", f"worker:{worker}") for _ in started
    ]
    assert [call.call_id for call in unit.facts.calls if call.status != "planned"] == started
