"""No change of a chat is skipped: a reader of all chats gets each change, from any starting point.

Seen red: a reader that takes the last number as settled while an older transaction is under way; a consumer whose
position passes events that are being handled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from support.exploring import seeds, seeds_until
from turnwise import Chat, Engine, Event, StoreError
from turnwise.engine.config.settings import Settings
from turnwise.engine.subscriptions.changes import ChangeReader
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.reading import Numbers, StoredChange
from turnwise.persistence.sqlite import SQLiteStore
from turnwise.providers.scripted import Reply, ScriptedModel

pytestmark = pytest.mark.hypothesis


class Transactions:
    """Commit numbers as PostgreSQL assigns them: a transaction has an id, then a number, then it ends."""

    def __init__(self) -> None:
        self.next_id = 10
        self.last = 0
        self.open: dict[int, dict[str, int]] = {}
        """The chats and numbers of each open transaction, by its id."""
        self.chats: dict[str, int] = {}

    def begin(self, _: Random) -> None:
        self.open[self.next_id] = {}
        self.next_id += 1

    def change(self, random: Random) -> None:
        locked = {chat for one in self.open.values() for chat in one}
        free = sorted({f"c{number}" for number in range(8)} - locked)
        if self.open and free:
            self.last += 1
            self.open[random.choice([*self.open])][random.choice(free)] = self.last

    def end(self, random: Random) -> None:
        if self.open:
            ended = self.open.pop(random.choice([*self.open]))
            self.chats.update(ended if random.random() < 0.8 else {})

    async def numbers(self) -> Numbers:
        return Numbers(max(self.chats.values(), default=0), min(self.open, default=self.next_id), self.next_id)

    async def changes(self, *, after: int, limit: int, seen: Collection[int], owner: None) -> list[StoredChange]:
        found = sorted((number, chat) for chat, number in self.chats.items() if number > after and number not in seen)
        return [StoredChange(number, chat, None, "") for number, chat in found[:limit]]

    async def change_numbers(self, *, after: int) -> frozenset[int]:
        return frozenset(number for number in self.chats.values() if number > after)


async def test_late_commits_are_not_skipped() -> None:
    """A reader that resumes at a number gets every change since, and one that never stopped gets all."""
    met: Counter[str] = Counter()
    for seed in seeds(300):
        random, them = Random(seed), Transactions()  # noqa: S311
        store = cast("ChatStore", them)
        reader, view = ChangeReader(store, 0), dict[str, int]()
        resumable: list[tuple[int, dict[str, int]]] = [(0, {})]
        for _ in range(60):
            getattr(them, random.choice(["begin", "change", "change", "end"]))(random)
            if random.random() < 0.5:
                before = len(them.open)
                for seen in await reader.read(random.choice([1, 2, 100])) or ():
                    met["late"] += seen.change.number < max(view.values(), default=0)
                    met["unsettled"] += seen.resume < seen.change.number
                    met["under way"] += before > 0
                    view[seen.change.chat_id] = seen.change.number
                    resumable.append((seen.resume, dict(view)))
        while them.open:
            them.end(random)
        for number, known in [*resumable, (reader.settled, view)]:
            again = ChangeReader(store, number) if known is not view else reader
            again.more = True
            while again.more:
                known.update({seen.change.chat_id: seen.change.number for seen in await again.read(3) or ()})
            assert known == them.chats, (seed, number)
    assert min(met["late"], met["unsettled"], met["under way"]) >= 50, met


QUICK = Settings(poll_interval=0.05, lease=0.1, renew_every=0.03)


@asynccontextmanager
async def two_processes(path: Path) -> AsyncIterator[list[Engine]]:
    model = ScriptedModel(lambda _: Reply("yes"))
    async with (
        Engine(SQLiteStore(path), model=model, settings=QUICK) as one,
        Engine(SQLiteStore(path), model=model, settings=QUICK) as other,
    ):
        yield [one, other]


def note(view: dict[str, tuple[Any, ...]], change: Any) -> None:
    chat: Chat | None = change.chat
    if chat is None:
        view.pop(change.chat_id, None)
    else:
        view[chat.id] = (chat.state, chat.title, chat.queued, chat.turn, chat.version)


async def test_resumed_watch_ends_with_the_same_view(tmp_path: Path) -> None:
    """Two processes change chats; one watcher never stops, others resume at each number that it got."""
    met: Counter[str] = Counter()
    async with two_processes(tmp_path / "chats.db") as engines:
        view: dict[str, tuple[Any, ...]] = {}
        resumable: list[tuple[int, dict[str, tuple[Any, ...]]]] = [(0, {})]

        async def watch() -> None:
            async for change in engines[0].watch(owner="ada"):
                note(view, change)
                met["gone"] += change.chat is None
                met["number"] += 1
                resumable.append((change.number, dict(view)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for seed in seeds_until(met, {"step": 50, "gone": 1, "number": 25}, lives=16):
                random = Random(seed)  # noqa: S311
                for _ in range(6):
                    await live(random, random.choice(engines))
                    met["step"] += 1
            for chat in (await engines[0].list_chats(owner="ada", limit=1000)).items:
                await engines[0].wait(chat.id)  # or a turn would end while the views are compared
            with anyio.fail_after(120):
                while view != await shown(engines[1], 0, {}):  # noqa: ASYNC110 - what another process does rings no bell
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        # From 0 on all begins anew: what a reader knows by then may be gone.
        ends = [await shown(engines[1], number, known if number else {}) for number, known in resumable]
        chats = await engines[0].list_chats(owner="ada", limit=1000)
        assert all(end == view for end in ends)
        assert {*view} == {chat.id for chat in chats.items}


async def shown(engine: Engine, after: int, known: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    view = dict(known)
    async for change in engine.watch(owner="ada", after=after, follow=False):
        note(view, change)
    return view


async def live(random: Random, engine: Engine) -> None:
    page = await engine.list_chats(owner=random.choice(["ada", "ada", "bob"]), limit=5)
    resting = [chat for chat in page.items if chat.state == "waiting" and not chat.archived]
    if not resting or random.random() < 0.3:
        await engine.create_chat(owner=random.choice(["ada", "ada", "bob"]), message="hi")
        return
    chat = random.choice(resting)
    match random.randrange(4):
        case 0:
            await engine.rename(chat.id, f"title {random.random()}")
        case 1:
            await engine.delete_chat(chat.id)
        case 2:
            await engine.ask(chat.id, "more")
        case 3:
            await engine.archive(chat.id)


async def test_consumer_gets_every_event_whatever_is_killed(tmp_path: Path) -> None:
    """Two processes write; consumers are killed repeatedly, with all later calls to the store lost."""
    met: Counter[str] = Counter()
    sessions: list[dict[str, list[int]]] = []
    random = Random(1)  # noqa: S311
    dying: set[Engine] = set()
    async with two_processes(tmp_path / "chats.db") as engines:
        for engine in engines:
            let_die(engine, dying)
        for kill in range(56):
            engine = random.choice(engines)
            session: dict[str, list[int]] = {}
            sessions.append(session)

            async def handle(event: Event, session: dict[str, list[int]] = session) -> None:
                await anyio.lowlevel.checkpoint()
                session.setdefault(event.chat_id, []).append(event.seq)

            consuming = asyncio.create_task(engine.consume("all", handle))
            await live(random, random.choice(engines))
            await handled(random.randrange(4), session)
            if kill == 55:  # the last one lives
                with anyio.fail_after(120):
                    while await missing(engines[0], sessions):  # noqa: ASYNC110 - of two processes
                        await anyio.sleep(0.02)
            dying.add(engine)
            met["killed at work"] += bool(session)
            met["kills"] += 1
            consuming.cancel()
            await asyncio.wait([consuming])
            dying.clear()
    together = Counter((chat, seq) for one in sessions for chat, seqs in one.items() for seq in seqs)
    met["again"] = sum(count > 1 for count in together.values())
    assert all(seqs == sorted({*seqs}) for one in sessions for seqs in one.values())
    assert met["kills"] >= 50, met
    assert met["killed at work"] >= 10, met


async def handled(count: int, session: dict[str, list[int]]) -> None:
    """Wait until a consumer has handled so many events; there may be fewer."""
    with anyio.move_on_after(2):
        while sum(map(len, session.values())) < count:  # noqa: ASYNC110 - any may be the last one
            await anyio.sleep(0.002)


def let_die(engine: Engine, dying: set[Engine]) -> None:
    """Drop the consumers' calls to the store while the engine dies."""
    store = engine._store._store  # type: ignore[attr-defined]
    for name in ("advance_consumer", "release_consumer"):
        method = getattr(store, name)

        async def call(*args: Any, method: Any = method, **options: Any) -> Any:
            if engine in dying:
                raise StoreError("it is dead")
            return await method(*args, **options)

        setattr(store, name, call)


async def missing(engine: Engine, sessions: list[dict[str, list[int]]]) -> bool:
    for chat in (await engine.list_chats(limit=1000)).items:
        seen = {seq for one in sessions for seq in one.get(chat.id, ())}
        durable = {event.seq async for event in engine.events(chat.id, follow=False) if not event.fleeting}
        if not durable <= seen or chat.state != "waiting":
            return True
    return False
