"""Fair claims: rounds by weight, oldest first within a key, caps that hold, and no idle worker.

Seen red: a claim that always begins with the first key; a cap that is compared with `>`; counts that leave out what a
claim has just taken; a claim with caps on PostgreSQL that does not wait for another; keys ordered by the newest chat.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.exploring import seeds_until
from support.lives import SLOW_STORES, named
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.shares import Caps, Shares
from turnwise.states import triggers as t
from turnwise.states.facts import Limits
from turnwise.states.messages import TextPart
from turnwise.states.names import LEASED, ChatState
from turnwise.states.values.digests import digest
from turnwise.testing.conformance import plans

pytestmark = pytest.mark.hypothesis
OWNERS = (None, "ann", "bob", "cyd", "Ö")
WEIGHTS = {"ann": 3.0, "bob": 0.5}
TURNS = {"": 2, "ann": 6, "bob": 1, "cyd": 2, "Ö": 2}
RUNS = ({"a": (), "b": ()}, {"a": ()}, {"a": (), "b": ()})
"""The workers' agents: the second worker has only one of them."""


class Chat:
    def __init__(self, name: str, owner: str | None, agent: str) -> None:
        self.name, self.key, self.agent, self.model = name, owner or "", agent, f"p:{agent}"
        self.state = "waits"
        self.since = 0
        self.worker = -1


class World:
    """Three workers on one database, each with its own store."""

    def __init__(self, stores: Sequence[Any], random: Random, met: Counter[str]) -> None:
        self.stores, self.random, self.met = stores, random, met
        caps = [random.choice([None, None, n]) for n in (2, 3, 4)]
        self.caps = {kind: cap for kind, cap in zip(("key", "agent", "model"), caps, strict=True) if cap is not None}
        self.shares = [Shares(WEIGHTS, Caps(*caps)) for _ in stores]
        self.chats: dict[str, Chat] = {}
        self.ticks, self.names = count(1), count(1)
        self.passed = [defaultdict[str, Counter[str]](Counter) for _ in stores]

    def of(self, *states: str) -> list[Chat]:
        return [chat for chat in self.chats.values() if chat.state in states]

    def is_open(self, chat: Chat) -> bool:
        """Return whether no cap stops the claim of a chat."""
        works = self.of("works")
        return all(
            sum(getattr(one, kind) == getattr(chat, kind) for one in works) < cap for kind, cap in self.caps.items()
        )

    def claimable(self, worker: int) -> list[Chat]:
        return [chat for chat in self.of("waits") if chat.agent in RUNS[worker] and self.is_open(chat)]

    async def change(self, chat: Chat, *triggers: t.Trigger) -> None:
        limits = Limits(context_limit=1000, capped_model=chat.model)
        await self.stores[0].change(chat.name, plans.plan(*(plans.move(one, limits=limits) for one in triggers)))

    async def arrive(self) -> None:
        owner = self.random.choice([*OWNERS, *["ann"] * 5])
        chat = Chat(f"c{next(self.names)}", owner, self.random.choice("aab"))
        await self.stores[0].create(chat.name, plans.plan(plans.create(owner, chat.agent)))
        await self.change(chat, t.SendMessage(parts=(TextPart(text="hi"),), content_digest=digest("hi")))
        chat.since = next(self.ticks)
        self.chats[chat.name] = chat

    async def end(self, chat: Chat, how: str) -> None:
        """End a working chat: finished, interrupted, or released by a stopping or dead worker."""
        match how:
            case "ends":
                await self.stores[0].change(chat.name, plans.plan(plans.reply("done")))
                del self.chats[chat.name]
            case "stopped":
                await self.change(chat, t.Interrupt())
                await self.change(chat, t.Released(token=(await self.stores[0].facts(chat.name)).lease.token))
                chat.state = "stopped"
            case _:
                kind = t.Released if how == "released" else t.LeaseExpired
                await self.change(chat, kind(token=(await self.stores[0].facts(chat.name)).lease.token))
                chat.state, chat.since = "waits", next(self.ticks)

    async def claim(self, workers: Sequence[int]) -> None:
        if len(workers) > 1:
            self.passed = [defaultdict(Counter) for _ in self.stores]
        limits = [self.random.randint(1, 4) for _ in workers]
        stopped = len(self.of("stopped"))
        work = [
            self.stores[worker].claim(
                plans.plan(plans.claim(f"w{worker}")), runs=RUNS[worker], limit=limit, shares=self.shares[worker]
            )
            for worker, limit in zip(workers, limits, strict=True)
        ]
        claims = await asyncio.gather(*work)
        for worker, claimed in zip(workers, claims, strict=True):
            names = [committed.facts.chat_id for committed in claimed]
            settling = [name for name in names if self.chats[name].state == "stopped"]
            assert names[: len(settling)] == settling, "what has to settle comes first"
            for name in settling:
                self.met["settled first"] += 1
                await self.stores[0].change(name, plans.plan(plans.move(t.Settled(token=plans.HOLDER))))
                del self.chats[name]
            for name in names[len(settling) :]:
                self.take(worker, self.chats[name], alone=len(workers) == 1)
        if sum(map(len, claims)) < min(limits):
            assert not self.of("stopped"), stopped
        for worker, limit, claimed in zip(workers, limits, claims, strict=True):
            if len(claimed) < limit:
                assert not self.claimable(worker), "a worker is idle while a chat could work"
                self.met["held back"] += bool([c for c in self.of("waits") if c.agent in RUNS[worker]])
        await self.check_caps()

    def take(self, worker: int, chat: Chat, *, alone: bool) -> None:
        if alone:
            waiting = self.claimable(worker)
            assert chat in waiting, "a cap is exceeded"
            own = [one for one in waiting if one.key == chat.key]
            assert chat is min(own, key=lambda one: one.since), "an older chat of the owner waits"
            self.met["older first"] += len(own) > 1
            passed, keys = self.passed[worker], {one.key for one in waiting}
            for key in [*passed]:
                if key not in keys:
                    del passed[key]
            for key in keys - {chat.key}:
                passed[key][chat.key] += 1
                assert passed[key][chat.key] <= TURNS[chat.key], f"{key} is passed over"
                self.met["passed over"] += 1
        else:
            self.met["claimed at once"] += 1
        for passed in self.passed if alone else ():
            passed.pop(chat.key, None)
        chat.state, chat.worker = "works", worker

    async def check_caps(self) -> None:
        held = [
            row for state in LEASED for row in await self.stores[0].chats(state=ChatState(state), limit=99, after=None)
        ]
        assert {facts.chat_id for facts in held} == {chat.name for chat in self.of("works")}
        for kind, cap in self.caps.items():
            counts = Counter(getattr(chat, kind) for chat in self.of("works"))
            assert max(counts.values(), default=0) <= cap, (kind, counts, cap)
            self.met["at a cap"] += cap in counts.values()

    async def live(self) -> None:
        for _ in range(60):
            match self.random.choices(["arrive", "claim", "at once", "end", "die"], [14, 6, 3, 7, 1])[0]:
                case "arrive":
                    await self.arrive()
                case "claim":
                    await self.claim([self.random.randrange(3)])
                case "at once":
                    await self.claim([0, 1, 2])
                case "end":
                    for chat in self.of("works")[: self.random.randint(1, 3)]:
                        await self.end(chat, self.random.choice(["ends", "stopped", "stopped", "released"]))
                case "die":
                    dead = self.random.randrange(3)
                    for chat in [chat for chat in self.of("works") if chat.worker == dead]:
                        await self.end(chat, "died")
                        self.met["died"] += 1


def ticking() -> Any:
    """Return a clock whose times all differ."""
    ticks = count()
    return lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=next(ticks))


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_claims_are_fair_and_keep_to_caps(place: str, request: Any, tmp_path: Path) -> None:
    met, rare = Counter[str](), {"sqlite": 10, "postgres": 2}[place]
    frequent = dict.fromkeys(("passed over", "older first", "claimed at once", "at a cap", "held back"), 5 * rare)
    least = {**frequent, "died": rare, "settled first": rare}
    for seed in seeds_until(met, least, lives={"sqlite": 25, "postgres": 8}[place]):
        server = request.getfixturevalue("postgres") if place == "postgres" else None
        url = server.new_url(f"fair{seed}") if server else f"sqlite:///{tmp_path / f'{seed}.db'}"
        clock = ticking()
        async with AsyncExitStack() as stack:
            stores = [store_from_url(url, durability="normal", now=clock) for _ in range(3)]
            for store in stores:
                await store.open()
                stack.push_async_callback(store.close)
            with named(seed):
                await World(stores, Random(seed), met).live()  # noqa: S311 - no secret
