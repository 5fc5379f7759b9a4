"""Watches all chats: yields each chat that changes. One reader of the store serves all streams of the process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from turnwise.engine.config.results import ChatChange, chat_of
from turnwise.engine.isolation.clock import Clock
from turnwise.engine.isolation.tasks import Tasks
from turnwise.engine.subscriptions.broadcast import Broadcaster, Subscription
from turnwise.engine.subscriptions.changes import ChangeReader, SeenChange
from turnwise.engine.subscriptions.follow import explain_closing
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.tombstone import mark_of
from turnwise.states.errors import StoreError

_GATHER_S: Final = 0.02
"""Seconds in which changes gather, to be read together."""
_POLL_INTERVAL_S: Final = 1.0
_RESET: Final = ChatChange(number=0, chat_id="", chat=None)


class _Watcher:
    """One stream: the newest change of each chat that it has not taken yet."""

    def __init__(self) -> None:
        self._changes: dict[str, ChatChange] = {}
        self._bell = asyncio.Event()
        self._failure: Exception | None = None

    def put(self, change: ChatChange) -> None:
        self._changes.pop(change.chat_id, None)  # so that it comes last
        self._changes[change.chat_id] = change
        self._bell.set()

    def fail(self, failure: Exception) -> None:
        self._failure = failure
        self._bell.set()

    async def take(self) -> list[ChatChange]:
        """Return the changes, once there are some, or raise the error of `fail`."""
        await self._bell.wait()
        if not self._changes and self._failure is not None:
            raise self._failure
        taken, self._changes = self._changes, {}
        if self._failure is None:
            self._bell.clear()
        return [*taken.values()]


class ChatFeed:
    """Reads the changes of all chats while there are streams, and distributes them."""

    def __init__(self, store: ChatStore, broadcaster: Broadcaster, clock: Clock, tasks: Tasks) -> None:
        self._store = store
        self._broadcaster = broadcaster
        self._clock = clock
        self._tasks = tasks
        self._watchers: defaultdict[str | None, dict[_Watcher, None]] = defaultdict(dict)
        """By owner; `None` for all owners."""
        self._ready: asyncio.Event | None = None
        """Set once the reader misses no change; `None` while it does not run."""

    @contextmanager
    def _listening(self, owner: str | None) -> Iterator[tuple[_Watcher, asyncio.Event]]:
        watcher = _Watcher()
        self._watchers[owner][watcher] = None
        if self._ready is None:
            self._ready = asyncio.Event()
            self._tasks.start_soon(self._run, self._ready)
        try:
            yield watcher, self._ready
        finally:
            del self._watchers[owner][watcher]
            if not self._watchers[owner]:
                del self._watchers[owner]

    async def watch(
        self, *, owner: str | None, agent: str | None, after: int, follow: bool
    ) -> AsyncGenerator[ChatChange, None]:
        """Yield the chats that have changed since `after`, then each that changes."""
        wanted = _View(agent, resumed=after > 0)
        with explain_closing(self._broadcaster):
            if not follow:
                async for change in self._replay(owner, after, wanted):
                    yield change
                return
            with self._listening(owner) as (watcher, ready):
                await ready.wait()  # the watcher gets all commits from now on, besides the replay
                async for change in self._replay(owner, after, wanted):
                    yield change
                while True:
                    for change in await watcher.take():
                        shown = wanted.shown(change)
                        if shown is not None:
                            yield shown

    async def _replay(self, owner: str | None, after: int, wanted: _View) -> AsyncGenerator[ChatChange, None]:
        reader = ChangeReader(self._store, after, owner=owner)
        while reader.more:
            found = await reader.read()
            if found is None:
                wanted.reset()
                yield _RESET
                continue
            for seen in found:
                of = seen.change
                is_theirs = owner is None or of.whose is None or of.whose == mark_of(of.chat_id, owner)
                shown = wanted.shown(_change_of(seen)) if is_theirs else None
                if shown is not None:
                    yield shown

    async def _run(self, ready: asyncio.Event) -> None:
        try:
            with explain_closing(self._broadcaster), self._broadcaster.listen_to_all() as bell:
                reader: ChangeReader | None = None
                while self._watchers:
                    try:
                        if reader is None:
                            reader = await ChangeReader.at_end(self._store)
                            ready.set()
                        await self._read(reader)
                    except StoreError as error:
                        if not error.passing:
                            raise
                    if reader is None or not reader.more:
                        await self._wait(bell)
        except Exception as error:  # noqa: BLE001 - the streams raise it
            for watchers in self._watchers.values():
                for watcher in watchers:
                    watcher.fail(error)
        finally:
            ready.set()
            self._ready = None

    async def _read(self, reader: ChangeReader) -> None:
        found = await reader.read()
        if found is None:
            reader.more = True
            for watchers in self._watchers.values():
                for watcher in watchers:
                    watcher.put(_RESET)
        for seen in found or ():
            change = _change_of(seen)
            for watcher in self._those_who_want(seen):
                watcher.put(change)

    def _those_who_want(self, seen: SeenChange) -> Iterator[_Watcher]:
        change = seen.change
        yield from self._watchers.get(None, ())
        if change.whose is not None:
            for owner, watchers in self._watchers.items():
                if owner is not None and mark_of(change.chat_id, owner) == change.whose:
                    yield from watchers
        elif change.chat is not None:
            owner = change.owner
            if owner is not None:
                yield from self._watchers.get(owner, ())

    async def _wait(self, bell: Subscription) -> None:
        timer = self._clock.call_later(_POLL_INTERVAL_S, bell.ring)
        try:
            await bell.wait()
        finally:
            timer.cancel()
        await anyio.sleep(_GATHER_S)


class _View:
    """The chats that a stream shows: those of an agent, or all."""

    def __init__(self, agent: str | None, *, resumed: bool) -> None:
        self._agent = agent
        self._shown: set[str] | None = None if resumed else set()
        """The chats that were shown; `None` for a resumed stream, which may have shown any."""

    def reset(self) -> None:
        self._shown = set()

    def shown(self, change: ChatChange) -> ChatChange | None:
        """Return the change to show: a chat, or its disappearance; `None` for nothing."""
        chat, shown = change.chat, self._shown
        if not change.chat_id:
            self.reset()
            return change
        if chat is not None and self._agent in (None, chat.agent):
            if shown is not None:
                shown.add(change.chat_id)
            return change
        if shown is not None and change.chat_id not in shown:
            return None
        if shown is not None:
            shown.discard(change.chat_id)
        return ChatChange(number=change.number, chat_id=change.chat_id, chat=None)


def _change_of(seen: SeenChange) -> ChatChange:
    change = seen.change
    return ChatChange(
        number=seen.resume, chat_id=change.chat_id, chat=None if change.chat is None else chat_of(change.chat)
    )
