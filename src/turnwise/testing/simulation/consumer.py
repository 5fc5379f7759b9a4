"""The durable consumer of a simulation: every process offers to run it, and it has to get every event, in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

import anyio.lowlevel

from turnwise.engine.engine import Engine
from turnwise.engine.isolation.clock import sleep
from turnwise.engine.subscriptions.consumer import DURABLE_KINDS
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import StoreError
from turnwise.states.events import Event
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation.actors import Outside
from turnwise.testing.simulation.checks import StoredRows

NAME: Final = "simulated"


class Consumer:
    """Notes the events of all chats, and sometimes refuses one."""

    def __init__(self, random: Random, clock: ManualClock, outside: Outside) -> None:
        self._random = random
        self._clock = clock
        self._outside = outside
        self._tried: dict[str, list[int]] = defaultdict(list)
        """The events of each chat in the order in which they were delivered first."""
        self._taken: dict[str, set[int]] = defaultdict(set)
        self._poisoned: set[tuple[str, int]] = set()
        """The events, by chat, that the handler refuses as long as the world is not calm."""
        self.met: Counter[str] = Counter()
        """How often each check had something to look at."""

    async def run(self, engine: Engine) -> None:
        """Deliver on a process until it ends; begin again when the store has failed."""
        while True:
            try:
                await engine.consume(NAME, self._handle, delays=(1, 20))
            except StoreError:
                await sleep(self._clock, 1)

    async def _handle(self, event: Event) -> None:
        tried, seq = self._tried[event.chat_id], event.seq
        if seq not in self._taken[event.chat_id] and seq not in tried:
            tried.append(seq)
            self._poisoned |= {(event.chat_id, seq)} if self._random.random() < 0.05 else set()
        for _ in range(self._random.randrange(3)):
            await anyio.lowlevel.checkpoint()
        poisoned = (event.chat_id, seq) in self._poisoned
        if not self._outside.calm and (poisoned or self._random.random() < 0.03):
            self.met["deliveries that were refused"] += poisoned
            raise ValueError("the consumer failed")
        self._taken[event.chat_id].add(seq)

    async def has_all(self, engine: Engine, store: ChatStore, chats: Sequence[str]) -> bool:
        """Let what was refused come again; return whether nothing of these chats is on its way."""
        last = (await store.numbers()).last
        position = [one.position for one in await engine.consumers() if one.name == NAME]
        refused = [one for one in await engine.undelivered(NAME) if one.chat_id in chats]
        if any(not one.due for one in refused):
            await engine.deliver_again(NAME)
        return not refused and position == [last]

    def problems(self, chat: StoredRows) -> Iterator[str]:
        """Yield where the handler lacks events of a chat, or got one for the first time after a later one."""
        chat_id = chat.facts.chat_id
        stored = [event.seq for event in chat.events if event.kind in DURABLE_KINDS]
        tried = self._tried[chat_id]
        self.met["events that were consumed"] += len(stored)
        lost = sorted({*stored} - self._taken[chat_id])
        if lost:
            yield f"the consumer lacks the events {lost}"
        if tried != sorted(tried):
            yield f"the consumer got its events in the order {tried}"
