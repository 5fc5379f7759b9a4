"""Commits: each is logged line by line and announced, even if its caller is cancelled meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
import structlog

from support.stores import Delegate, stored_at
from turnwise.engine.apply import Applier, Chain
from turnwise.engine.follow.broadcast import Broadcaster
from turnwise.engine.observers.observer import Observer, Observers
from turnwise.states.decide import Decision
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Limits, Profile
from turnwise.states.messages import TextPart
from turnwise.states.names import Trigger
from turnwise.states.triggers import (
    AttemptStarted,
    Claimed,
    Create,
    LeaseExpired,
    Released,
    Renamed,
    Repaired,
    SendMessage,
)


class Watcher(Observer):
    """An observer that remembers every transition."""

    def __init__(self) -> None:
        self.seen: list[Trigger] = []

    def transitioned(self, decision: Decision) -> None:
        self.seen.append(decision.trigger)


@asynccontextmanager
async def applying(store: Any) -> AsyncIterator[tuple[Applier, Watcher, list[int]]]:
    """Open an applier; tell what its observer sees, and the versions that were announced to who listens."""
    watcher, announced = Watcher(), list[int]()
    broadcaster = Broadcaster()
    broadcaster.observe(lambda facts: announced.append(facts.version))
    await store.open()
    try:
        yield Applier(store, broadcaster, lambda _: Limits(), Observers((watcher,))), watcher, announced
    finally:
        await store.close()


def held_by_a_worker(chain: Chain) -> None:
    """Bring a new chat to where a worker holds it."""
    chain.fire(Create(profile=Profile(created_at=chain.now)))
    chain.fire(SendMessage(parts=(TextPart(text="hi"),)))
    chain.fire(Claimed(worker="w"), actor="worker:w")
    chain.fire(AttemptStarted(token=1), actor="worker:w")


EXPIRED: Final = LeaseExpired(token=1)
REPAIR: Final = Repaired(error=ErrorInfo(kind="repaired", message="found in state 'dreaming'"))


def damage(database: Path) -> None:
    """Write an unknown state, as a hand would: such a chat can be repaired."""
    with closing(sqlite3.connect(database)) as on, on:
        assert on.execute("UPDATE chats SET state = 'dreaming' WHERE id = 'c'").rowcount == 1


@contextmanager
def logged() -> Iterator[list[Any]]:
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as logs:
        yield logs
    structlog.reset_defaults()


async def test_decisions_hold_actor_and_reason(database: Path) -> None:
    """The chain's actor is the default; a reason belongs to its own decision."""

    def planned(chain: Chain) -> None:
        chain.fire(Create(profile=Profile(created_at=chain.now)))
        chain.fire(Renamed(title="a"), actor="bob")
        chain.fire(Renamed(title="b"), reason="it is better")
        chain.fire(Renamed(title="c"), actor="bob", reason="it is best")
        assert chain.fire(Renamed(title="d")).profile.title == chain.facts.profile.title == "d"

    async with applying(stored_at(database)) as (applier, _, _):
        await applier.create("c", planned, actor="ann")
        assert [(record.actor, record.reason) for record in await applier.store.audit("c")] == [
            ("ann", None),
            ("bob", None),
            ("ann", "it is better"),
            ("bob", "it is best"),
            ("ann", None),
        ]


async def test_each_commit_is_announced_once(database: Path) -> None:
    async with applying(stored_at(database)) as (applier, watcher, announced):
        await applier.create("c", held_by_a_worker, actor="ann")
        assert watcher.seen == ["create", "send_message", "claimed", "attempt_started"]
        assert announced == [4]
        nothing = await applier.change("c", lambda _: None, actor="ann")
        assert (nothing.decisions, len(watcher.seen), announced) == ((), 4, [4])
        await applier.change("c", Released(token=1), actor="worker:w")
        (claimed,) = await applier.claim(Claimed(worker="v"), actor="worker:v", runs={"default": ()}, limit=5)
        assert claimed.facts.lease is not None
        assert (watcher.seen[4:], announced) == (["released", "claimed"], [4, 5, 6])
        damage(database)
        await applier.repair("c", REPAIR, actor="ann")
        assert (watcher.seen[6:], announced) == (["repaired"], [4, 5, 6, 7])


async def test_each_commit_has_its_own_salt(database: Path) -> None:
    """Two chats that say the same do not look the same in their records."""
    decisions: list[Decision] = []
    async with applying(stored_at(database)) as (applier, _, _):
        for chat_id in ("c", "d"):
            decisions += (await applier.create(chat_id, held_by_a_worker, actor="ann")).decisions
    salts = [decision.salt for decision in decisions]
    assert len(set(salts)) == 2
    assert len(set(salts[:4])) == 1
    assert all(len(bytes.fromhex(salt)) == 16 for salt in salts)


class Slow(Delegate):
    """A store that has committed before it answers."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.committed, self.answer = anyio.Event(), anyio.Event()

    def __getattr__(self, name: str) -> Any:
        method = super().__getattr__(name)
        if name not in WAYS:
            return method

        async def slowly(*given: Any, **options: Any) -> Any:
            outcome = await method(*given, **options)
            self.committed.set()
            await self.answer.wait()
            return outcome

        return slowly


WAYS: Final[dict[str, Callable[[Applier], Any]]] = {
    "create": lambda applier: applier.create("new", held_by_a_worker, actor="ann"),
    "change": lambda applier: applier.change("c", EXPIRED, actor="ann"),
    "repair": lambda applier: applier.repair("c", REPAIR, actor="ann"),
    "claim": lambda applier: applier.claim(Claimed(worker="v"), actor="ann", runs={"default": ()}, limit=1),
}


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_caller_hides_no_commit(database: Path, way: str) -> None:
    store = Slow(stored_at(database))
    async with applying(store) as (applier, watcher, announced):
        store.answer.set()
        await applier.create("c", held_by_a_worker, actor="ann")
        if way == "claim":
            await applier.change("c", Released(token=1), actor="worker:w")
        if way == "repair":
            damage(database)
        seen = len(watcher.seen)
        store.committed, store.answer = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(WAYS[way], applier)
            await store.committed.wait()
            tasks.cancel_scope.cancel()
            store.answer.set()
        assert len(watcher.seen) > seen
        assert len(announced) == (3 if way == "claim" else 2)
