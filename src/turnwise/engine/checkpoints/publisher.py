"""The publisher of checkpoints, in the background. Turns neither wait for it nor fail by it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final

import anyio

from turnwise.engine.checkpoints.checkpoints import Checkpoints, Destination, NotPublished
from turnwise.engine.isolation.clock import Clock, wait_until
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.persistence.audit.checkpoints import Head
from turnwise.persistence.audit.signing import SigningKey
from turnwise.persistence.protocol import ChatStore, Committed
from turnwise.states.errors import ChatDeleted, ChatUnreadable, StoreError, TurnwiseError

BATCH: Final = 100
"""The most checkpoints that are published at once."""
FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 60.0
"""Seconds between two attempts, doubled after each that fails."""


class Publisher:
    """Publishes checkpoints of the chats that this process changes, to each destination on its own."""

    def __init__(self, checkpoints: Checkpoints, store: ChatStore, clock: Clock) -> None:
        self._checkpoints = checkpoints
        self._destinations = checkpoints.destinations
        self._outboxes = [Outbox(one, checkpoints.key, store, clock) for one in self._destinations]

    async def open(self) -> None:
        for destination in self._destinations:
            await destination.check()

    async def run(self) -> None:
        """Publish earlier unpublished commits, then those that are noted, until closed."""
        async with anyio.create_task_group() as tasks:
            for outbox in self._outboxes:
                tasks.start_soon(outbox.run, self._checkpoints.catch_up)

    async def close(self, grace: float) -> None:
        """Publish the rest, within so many seconds. The next engine publishes the remainder."""
        with anyio.move_on_after(grace):
            for outbox in self._outboxes:
                outbox.close()
            for outbox in self._outboxes:
                await outbox.ended.wait()

    def committed(self, committed: Committed) -> None:
        every, after = self._checkpoints.every, committed.facts
        if after.resting or (every is not None and after.version // every > committed.before.version // every):
            self.note(after.chat_id)

    def note(self, chat_id: str) -> None:
        for outbox in self._outboxes:
            outbox.add(chat_id)


class Outbox:
    """The chats to publish to one destination, each once."""

    def __init__(self, destination: Destination, key: SigningKey, store: ChatStore, clock: Clock) -> None:
        self._destination = destination
        self._key = key
        self._store = store
        self._clock = clock
        self._waiting: dict[str, None] = {}
        self._published: dict[str, int] = {}
        """The published versions of the chats to catch up with."""
        self._heads: Sequence[Head] = ()
        """The heads of the attempt under way."""
        self._bell = asyncio.Event()
        self._pause = asyncio.Event()
        """Ends the pause after an attempt that failed."""
        self._closed = False
        self._problem: str | None = None
        self.ended = asyncio.Event()

    def add(self, chat_id: str) -> None:
        self._waiting[chat_id] = None
        self._bell.set()

    def close(self) -> None:
        """Try the rest once more, at once, and end."""
        self._closed = True
        self._pause.set()
        self._bell.set()

    async def run(self, catch_up: int) -> None:
        """Publish until closed; first, unless `catch_up` is 0, earlier unpublished commits."""
        delay = FIRST_DELAY
        try:
            while catch_up or await self._has_work():
                try:
                    if catch_up:
                        await self._catch_up(catch_up)
                        catch_up = 0
                    await self._publish()
                except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                    self._log(error)
                    if self._closed:
                        return
                    self._pause = asyncio.Event()
                    await wait_until(self._pause, self._clock, self._clock.monotonic() + delay)
                    delay = min(2 * delay, LONGEST_DELAY)
                else:
                    delay = FIRST_DELAY
                    if self._problem is not None:
                        logger.info("checkpoints_published_again", to=self._destination.name)
                        self._problem = None
        finally:
            self.ended.set()

    async def _has_work(self) -> bool:
        """Wait for work or the end; return whether there is work."""
        while not (self._waiting or self._heads or self._closed):
            await self._bell.wait()
            self._bell = asyncio.Event()
        return bool(self._waiting or self._heads)

    async def _catch_up(self, limit: int) -> None:
        """Note the chats whose state has changed last."""
        recent = await self._store.ids(prefix="", limit=limit)
        self._published.update(await self._destination.published_versions(recent))
        self._waiting.update(dict.fromkeys(recent))

    async def _publish(self) -> None:
        while self._waiting or self._heads:
            if not self._heads:
                self._heads = await self._read([*islice(self._waiting, BATCH)])
            if self._heads:
                await self._destination.publish(self._heads, at=self._clock.now(), key=self._key)
                self._heads = ()

    async def _read(self, chat_ids: Sequence[str]) -> list[Head]:
        """Take noted chats, and return the heads of their logs; later commits note them again."""
        for chat_id in chat_ids:
            del self._waiting[chat_id]
        try:
            return [stands for chat_id in chat_ids if (stands := await self._head(chat_id)) is not None]
        except BaseException:
            self._waiting.update(dict.fromkeys(chat_ids))
            raise

    async def _head(self, chat_id: str) -> Head | None:
        """Return where a chat's log stands, or stood when the chat was deleted; `None` if there is nothing to publish.

        Raises:
            StoreError: the store is out of reach.
        """
        try:
            count, head = await self._store.head(chat_id)
        except ChatDeleted:
            tombstone = await self._store.tombstone(chat_id)
            if tombstone is None or tombstone.head is None:
                return None
            count, head = tombstone.records, tombstone.head
        except ChatUnreadable:
            return None
        except StoreError:
            raise
        except TurnwiseError:
            return None
        stands = Head(chat_id, count, head)
        return stands if stands.is_sound and self._published.get(chat_id) != count else None

    def _log(self, error: Exception) -> None:
        problem = str(error) if isinstance(error, TurnwiseError) else described(error)
        if problem != self._problem or self._closed:
            chats = len(self._waiting) + len(self._heads)
            logger.warning("checkpoints_not_published", to=self._destination.name, problem=problem, chats=chats)
            if not isinstance(error, NotPublished | StoreError):
                logger.exception("checkpoints_failed", to=self._destination.name)
        self._problem = problem
