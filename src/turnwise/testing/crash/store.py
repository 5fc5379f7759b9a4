"""The store of a life that can be killed: every commit is a point, and afterwards nothing is read or written."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, cast

import anyio

from turnwise.persistence.blobs.protocol import FileStore
from turnwise.persistence.protocol import ChatStore, Committed, Permission, Plan
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.budgets import Funds
from turnwise.states.decide import Decision
from turnwise.states.events import Event
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.testing.crash.life import EngineRun, Killed

_PLANNED: Final = ("change", "create", "repair", "import_chat", "claim")
"""The methods of which a plan decides what is committed."""

_SHARED: Final = ("change_budget", "advance_consumer", "set_aside", "deliver_again", "delivered_after_all")
"""The methods that commit what belongs to no chat, and do so at the same moments of every run."""


class _Struck(Exception):
    """A transaction was ended by the kill: a plan that raises writes nothing."""


class MortalStore:
    """A store of a process that can be killed. `acknowledged` lists what it has confirmed to the engine."""

    def __init__(self, store: ChatStore, life: EngineRun) -> None:
        self._store = store
        self._life = life
        self.acknowledged: list[tuple[str, int, str]] = []
        """The chat, version and trigger of each transition that was confirmed to the engine."""
        self.was_opened = False
        self.commits = 0
        """The commits under way: others may read one before it is confirmed to the engine."""
        self._position: int | None = None
        """The position of a consumer that was stored last."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name in _PLANNED:
            return partial(self._commit, method)
        if name in _SHARED:
            return partial(self._share, name, method)
        return partial(self._call, method) if inspect.iscoroutinefunction(method) else method

    async def open(self) -> None:
        """Open the store; once it is, this notes that the engine was given it."""
        await self._call(self._store.open)
        self.was_opened = True

    async def close(self) -> None:
        """Leave the store open: its owner closes it."""

    def attend(self, worker: str) -> None:
        """Show no other process that this worker lives: there is none."""

    async def watch(self) -> AsyncIterator[str | None]:
        """Yield one hint: no other process changes anything."""
        yield None
        await anyio.sleep_forever()

    def file_store(self) -> FileStore:
        """Return the store's own file store, likewise cut off by a kill."""
        return cast("FileStore", _MortalFiles(self._store.file_store(), self._life))

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event], *, worker: str | None = None
    ) -> tuple[Event, ...]:
        """Store events of a running job; around it are two points, if there are any."""
        where = f"the events {', '.join(event.kind for event in shown)} in {self._life.points.chat(chat_id)}"
        if shown:
            await self._life.reach(f"before {where}")
        stored: tuple[Event, ...] = await self._call(
            self._store.append_events, chat_id, token, state, shown, worker=worker
        )
        if shown:
            await self._life.reach(f"after {where}")
        return stored

    async def delete(self, chat_id: str, permit: Permission, *, actor: str) -> Tombstone:
        """Delete a chat; around it are two points."""
        where = f"the deletion of {self._life.points.chat(chat_id)}"
        await self._life.reach(f"before {where}")
        left: Tombstone = await self._call(self._store.delete, chat_id, permit, actor=actor)
        await self._life.reach(f"after {where}")
        return left

    async def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await self._life.outside(partial(method, *args, **options))

    async def _share(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        position = options.get("position", -1)
        if position == self._position:  # the lease is prolonged: how often, depends on the time that passes
            return await self._call(method, *args, **options)
        await self._life.reach(f"before {name}")
        done = await self._call(method, *args, **options)
        await self._life.reach(f"after {name}")
        self._position = options.get("position", self._position)
        return done

    async def _commit(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.commits += 1
        try:
            return await self._commit_and_pass(method, *args, **options)
        finally:
            self.commits -= 1

    async def _commit_and_pass(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        struck: list[str] = []
        given = [self._mortal(one, struck) if callable(one) else one for one in args]
        try:
            done = await self._call(method, *given, **options)
        except _Struck:
            done = None
        if struck:  # a claim goes on with other chats, and raises nothing
            await self._life.reach(struck[0])
            raise Killed
        for committed in done if isinstance(done, list) else [done]:
            await self._pass(committed)
        return done

    def _mortal(self, plan: Plan, struck: list[str]) -> Plan:
        points = self._life.points

        def decide(facts: Facts, now: datetime, *funds: Funds) -> Sequence[Decision]:
            decisions = plan(facts, now, *funds)
            point = points.commit("before", facts.chat_id, decisions)
            if decisions and points.is_next(point):
                struck.append(point)
                raise _Struck
            return decisions

        return decide

    async def _pass(self, committed: Committed) -> None:
        if not committed.decisions:
            return
        points, chat_id = self._life.points, committed.facts.chat_id
        points.reach(points.commit("before", chat_id, committed.decisions))
        await self._life.reach(points.commit("after", chat_id, committed.decisions))
        self.acknowledged += [
            (chat_id, decision.facts.version, decision.trigger.name) for decision in committed.decisions
        ]


class _MortalFiles:
    """A file store of a process that can be killed."""

    def __init__(self, files: FileStore, life: EngineRun) -> None:
        self._files = files
        self._life = life

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._files, name)
        return partial(self._call, method) if inspect.iscoroutinefunction(method) else method

    async def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await self._life.outside(partial(method, *args, **options))

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield a blob piece by piece."""
        pieces = self._files.read(digest)
        while True:
            piece = await self._life.outside(partial(_next_piece, pieces))
            if piece is None:
                return
            yield piece


async def _next_piece(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)
