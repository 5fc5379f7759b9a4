"""Puts and removals of one blob in a bucket, in drawn orders of requests, with crashes."""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any, Final

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from support.exploring import examples
from turnwise import BucketFiles
from turnwise.persistence.blobs import bucket
from turnwise.persistence.blobs.protocol import Blob, BlobGone
from turnwise.testing.conformance.files import blob_of, of, read

CONTENT: Final = b"three"
"""Read in three ranges of two bytes at most."""
DIGEST: Final = blob_of(CONTENT).digest
ACTOR: Final = ContextVar[str | None]("ACTOR", default=None)


class Killed(BaseException):
    """The process is gone: none of its code may run."""


class Turns:
    """Lets one actor at a time make its next request, until it is killed."""

    def __init__(self) -> None:
        self._waiting: dict[str, anyio.Event] = {}
        self._left: dict[str, int] = {}
        self._at_rest: set[str] = set()
        self._moved = anyio.Event()
        self._over = anyio.Event()

    async def run(self, actor: str, work: Callable[[], Awaitable[None]], requests: int) -> None:
        """Do an actor's work; kill it before its next request after that many."""
        ACTOR.set(actor)
        self._left[actor] = requests
        try:
            await work()
        except Killed:
            return
        self._rest(actor)

    async def turn(self) -> None:
        """Wait for the caller's turn, if it is an actor."""
        actor = ACTOR.get()
        if actor is None:
            return
        if self._over.is_set():
            raise Killed
        if not self._left[actor]:
            self._rest(actor)
            await self._over.wait()
            raise Killed
        self._left[actor] -= 1
        event = self._waiting[actor] = anyio.Event()
        self._moved.set()
        await event.wait()
        if self._over.is_set():
            raise Killed

    def _rest(self, actor: str) -> None:
        self._at_rest.add(actor)
        self._moved.set()

    async def play(self, actors: set[str], random: Random, look: Callable[[], Awaitable[None]]) -> None:
        """Give turns in a drawn order until all actors are done or dead; check everything in between."""
        try:
            await self._play(actors, random, look)
        finally:
            self._over.set()
            for event in self._waiting.values():
                event.set()

    async def _play(self, actors: set[str], random: Random, look: Callable[[], Awaitable[None]]) -> None:
        actor, turns = "", 0
        while True:
            while self._waiting.keys() | self._at_rest != actors:
                self._moved = anyio.Event()
                await self._moved.wait()
            if turns == 0 or actor not in self._waiting:
                await look()
                if not self._waiting:
                    return
                actor, turns = random.choice(sorted(self._waiting)), random.choice([random.randrange(1, 13), 99])
            turns -= 1
            self._waiting.pop(actor).set()


class TurnStore(MemoryStore):
    """A memory store with one request at a time."""

    turns: Turns

    async def put_async(self, *args: Any, **options: Any) -> Any:
        await self.turns.turn()
        return await super().put_async(*args, **options)

    async def get_async(self, *args: Any, **options: Any) -> Any:
        await self.turns.turn()
        return await super().get_async(*args, **options)

    async def get_range_async(self, *args: Any, **options: Any) -> Any:
        await self.turns.turn()
        return await super().get_range_async(*args, **options)

    async def delete_async(self, paths: str | Sequence[str]) -> None:
        for path in paths:  # no store promises to delete several at once
            await self.turns.turn()
            await super().delete_async([path])

    def list(self, *args: Any, **options: Any) -> Any:
        return _Listing(self.turns, partial(super().list, *args, **options))


class _Listing:
    """Lists at its turn: the stream of a memory store shows the time of its creation."""

    def __init__(self, turns: Turns, stream: Callable[[], Any]) -> None:
        self._turns = turns
        self._stream = stream

    async def collect_async(self) -> Any:
        await self._turns.turn()
        return await self._stream().collect_async()


class World:
    """The referrers of the blob, and its rightful readers."""

    def __init__(self, files: BucketFiles, turns: Turns) -> None:
        self.files = files
        self.turns = turns
        self.held: set[str] = set()
        self.readable: set[str] = set()
        self.let_go: set[str] = set()

    async def put(self, chat: str) -> None:
        async def note(_: Blob) -> None:
            await self.turns.turn()
            if chat not in self.let_go:
                self.held.add(chat)

        await self.files.put(of(CONTENT, at_once=1), note)
        self.readable |= self.held & {chat}

    async def leave(self, chat: str) -> None:
        await self.turns.turn()
        self.let_go.add(chat)
        self.held.discard(chat)
        self.readable.discard(chat)
        await self.files.remove(DIGEST, self.is_unreferenced)

    async def is_unreferenced(self) -> bool:
        await self.turns.turn()
        return not self.held

    async def read(self, _: str) -> None:
        """Read to the end, or find nothing; the latter only if the blob was unreferenced at some time."""
        stays = "stays" in self.readable
        try:
            assert await read(self.files, DIGEST) == CONTENT
        except BlobGone:
            assert not stays

    async def check(self) -> None:
        """Check that referenced blobs are readable, and that only complete ones are."""
        try:
            assert await read(self.files, DIGEST) == CONTENT
            assert await self.files.size(DIGEST) == len(CONTENT)
        except BlobGone:
            assert not self.readable
            assert await self.files.size(DIGEST) is None


async def live(random: Random) -> None:
    store = TurnStore()
    store.turns = turns = Turns()
    files = BucketFiles(store)
    await files.open()
    world = World(files, turns)
    first = random.choice(["stays", "goes", "nobody"])
    if first != "nobody":
        await world.put(first)
    plans = [(random.choice(["put", "leave", "read"]), random.choice("ab")) for _ in range(random.choice([1, 2]))]
    plans += [("put", "c"), ("leave", "goes")]
    actors = {f"{number}": plan for number, plan in enumerate(plans)}
    async with anyio.create_task_group() as tasks:
        for actor, (act, chat) in actors.items():
            dies = act != "read" and random.random() < 0.2
            work: Any = getattr(world, act)
            tasks.start_soon(
                turns.run, actor, lambda work=work, chat=chat: work(chat), random.randrange(15) if dies else -1
            )
        await turns.play({*actors}, random, world.check)
    await emptied(world, store)


async def emptied(world: World, store: MemoryStore) -> None:
    """Drop all references: only the name of the bucket remains."""
    world.held.clear()
    await world.files.remove(DIGEST, world.is_unreferenced)
    assert [one["path"] for one in await MemoryStore.list(store).collect_async()] == ["name"]


@pytest.fixture(autouse=True, scope="module")
def small() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket, "PIECE", 2)
        yield


@settings(max_examples=examples(400))
@given(st.integers(0, 1 << 32))
def test_a_blob_stays_until_its_last_holder_leaves(seed: int) -> None:
    anyio.run(live, Random(seed))  # noqa: S311 - no secret
