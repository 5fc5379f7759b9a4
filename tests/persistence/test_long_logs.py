"""A chat with more than a thousand events, with gaps where pruning took some: read in pages, followed, folded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
from msgspec.structs import replace

from support.sql_by_hand import by_hand
from turnwise import Engine, Event, Settings, fold
from turnwise.engine.follow.broadcast import MAX_BUFFERED
from turnwise.engine.follow.follow import EVENTS_PER_READ
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.arguments import Erasing
from turnwise.states.events import PartEvent
from turnwise.states.names import ChatState
from turnwise.states.triggers import MessageErased

pytestmark = pytest.mark.anyio

PARTS: Final = 2 * EVENTS_PER_READ + 30
"""More than two pages, and more than a listener keeps."""
BATCH: Final = 100
SAID: Final = "".join(f"{number} " for number in range(PARTS))


@pytest.fixture
async def store(either_url: str) -> AsyncIterator[ChatStore]:
    store = store_from_url(either_url, durability="normal", now=None)
    await store.open()
    yield store
    await store.close()


async def _shown(store: ChatStore) -> None:
    """Show a reply of very many parts, so far."""
    await plans.created(store, "chat", plans.send("count"), plans.claim(), plans.start())
    for first in range(0, PARTS, BATCH):
        batch = [part(f"{number} ") for number in range(first, min(first + BATCH, PARTS))]
        await store.journal("chat", 1, ChatState.streaming, batch)


async def _lived(store: ChatStore) -> None:
    """End that reply, and live another turn after it."""
    await _shown(store)
    await store.change("chat", plans.plan(plans.reply(SAID)))
    for move in plans.turn("and now?", "Enough."):
        await store.change("chat", plans.plan(move))


async def _prune(store: ChatStore) -> int:
    deleted, after = 0, ""
    while True:
        pruned = await store.prune(keep=0, after=after, limit=BATCH)
        deleted += pruned.parts
        if pruned.after is None:
            return deleted
        after = pruned.after


async def _paged(store: ChatStore, *, after: int, limit: int) -> list[Event]:
    """Read to the end, page by page."""
    told: list[Event] = []
    while page := await store.events("chat", after=told[-1].seq if told else after, limit=limit):
        assert len(page) <= limit
        assert page[0].seq > (told[-1].seq if told else after)
        told += page
    return told


async def _followed(engine: Engine, after: int) -> list[Event]:
    return [event async for event in engine.events("chat", after=after, follow=False)]


def _engine(store: ChatStore) -> Engine:
    return Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False))


async def test_pages_and_followers_tell_all_of_it_once(store: ChatStore) -> None:
    """However the pages fall, also where one ends exactly at the last event."""
    await _lived(store)
    whole = await store.events("chat", after=0, limit=10_000)
    assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
    assert len(whole) > MAX_BUFFERED
    for limit in (7, EVENTS_PER_READ, len(whole), len(whole) - 1):
        assert await _paged(store, after=0, limit=limit) == whole
    async with _engine(store) as engine:
        for after in (0, 1, EVENTS_PER_READ - 1, EVENTS_PER_READ, len(whole) - EVENTS_PER_READ, len(whole)):
            assert await _followed(engine, after) == whole[after:]
    assert [message.text for message in fold(whole).messages] == ["count", SAID, "and now?", "Enough."]


async def test_a_gap_of_more_than_two_pages_is_stepped_over(store: ChatStore) -> None:
    """Whoever comes back after any number inside it goes on behind it, and folds to the same transcript."""
    await _lived(store)
    whole = await store.events("chat", after=0, limit=10_000)
    gone = [event.seq for event in whole if isinstance(event, PartEvent)]
    assert await _prune(store) == len(gone) == PARTS
    left = [event for event in whole if event.seq not in gone]
    async with _engine(store) as engine:
        for after in (0, gone[0] - 1, gone[0], gone[EVENTS_PER_READ], gone[-1], gone[-1] + 1, whole[-1].seq):
            rest = [event for event in left if event.seq > after]
            assert await _paged(store, after=after, limit=3) == rest
            assert await _followed(engine, after) == rest
            assert fold(rest, fold(whole[:after])) == fold(whole)


async def test_gaps_at_the_edges_of_pages_end_no_reading(store: ChatStore, either_url: str) -> None:
    """Every other event is gone, and all of them around the end of the first page: a page is counted in events."""
    await _lived(store)
    whole = await store.events("chat", after=0, limit=10_000)
    table = "events" if either_url.startswith("sqlite") else "partial_events"
    odd = f"(seq % 2 = 1 OR seq BETWEEN {EVENTS_PER_READ - 9} AND {EVENTS_PER_READ + 9})"
    await by_hand(either_url, f"DELETE FROM {table} WHERE kind = 'part' AND {odd}")  # noqa: S608 - ours
    gone = {
        event.seq
        for event in whole
        if isinstance(event, PartEvent) and (event.seq % 2 or abs(event.seq - EVENTS_PER_READ) < 10)
    }
    left = [event for event in whole if event.seq not in gone]
    assert len(left) > EVENTS_PER_READ
    async with _engine(store) as engine:
        for after in (0, EVENTS_PER_READ - 10, EVENTS_PER_READ, left[EVENTS_PER_READ - 1].seq):
            rest = [event for event in left if event.seq > after]
            assert await _paged(store, after=after, limit=EVENTS_PER_READ) == rest
            assert await _followed(engine, after) == rest


async def test_a_reader_that_is_overtaken_by_pruning_and_by_more_than_it_keeps_misses_nothing(store: ChatStore) -> None:
    """It stands in the first page while the reply ends, is pruned, and a thousand parts of the next one come."""
    await _shown(store)
    async with _engine(store) as engine:
        reader = engine.events("chat")
        read = [await anext(reader) for _ in range(EVENTS_PER_READ // 2)]
        await store.change("chat", plans.plan(plans.reply(SAID)))
        await _prune(store)
        for move in plans.turn("and now?", "Enough."):
            await store.change("chat", plans.plan(move))
        kept = await store.events("chat", after=0, limit=10_000)
        async for event in reader:
            read.append(event)
            if event.seq == kept[-1].seq:
                break
        await reader.aclose()
    assert [event.seq for event in read] == sorted({event.seq for event in read})
    assert {event.seq for event in kept} <= {event.seq for event in read}
    assert fold(read) == fold(kept)


async def test_erasing_in_a_long_log_leaves_numbers_and_what_was_not_meant(store: ChatStore) -> None:
    """The parts of the erased reply go, its message is blank, and pages step over the gap."""
    await _lived(store)
    whole = await store.events("chat", after=0, limit=10_000)
    answer = next(message for message in await store.history("chat") if message.text == SAID)
    blank = replace(answer, parts=(), erased=True)
    await store.change("chat", plans.plan(plans.move(MessageErased(erasing=Erasing(messages=(blank,))))))
    parts = {event.seq for event in whole if isinstance(event, PartEvent)}
    left = await _paged(store, after=0, limit=EVENTS_PER_READ)
    assert [event.seq for event in left if event.seq <= whole[-1].seq] == [
        event.seq for event in whole if event.seq not in parts
    ]
    assert SAID not in repr(left)
    async with _engine(store) as engine:
        assert await _followed(engine, min(parts)) == [event for event in left if event.seq > min(parts)]
        assert (await engine.verify("chat")).ok


async def test_pruning_again_finds_nothing_and_new_numbers_follow_the_old(store: ChatStore) -> None:
    """No number of a pruned event is given again."""
    await _lived(store)
    last = (await store.facts("chat")).last_seq
    await _prune(store)

    assert (await store.change("chat", plans.plan(plans.send("again")))).events[0].seq == last + 1
    assert await _prune(store) == 0
