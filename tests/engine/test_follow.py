"""Following a chat: every event once and in order, an end where the chat rests, and no look too many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from support.shelf import Shelf, stands
from turnwise import ChatNotFound, EngineClosed, StoreError
from turnwise.engine.follow.follow import follow, wait_for
from turnwise.states.events import Event, StatusEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState


def events(first: int, last: int) -> list[Event]:
    return [StatusEvent(seq=number, chat_id="c", state=ChatState.pending) for number in range(first, last + 1)]


def busy(version: int, last_seq: int) -> Facts:
    return stands(ChatState.streaming, version=version, last_seq=last_seq)


def at_rest(version: int, last_seq: int) -> Facts:
    return stands(ChatState.waiting, version=version, last_seq=last_seq)


async def read(shelf: Shelf, *, after: int = 0, **options: Any) -> list[int]:
    """Return the numbers of the events up to the end."""
    return [event.seq async for event in follow(shelf.store, shelf.broadcaster, "c", after=after, **options)]


@asynccontextmanager
async def following(shelf: Shelf, *, after: int = 0, **options: Any) -> AsyncIterator[list[int]]:
    """Let somebody follow meanwhile, and see what was told once nothing moves any more."""
    told: list[int] = []

    async def go_on() -> None:
        async for event in follow(shelf.store, shelf.broadcaster, "c", after=after, live=True, **options):
            told.append(event.seq)  # noqa: PERF401

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        await anyio.wait_all_tasks_blocked()
        yield told
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


def refuse(error: Exception) -> Any:
    def raise_it() -> None:
        raise error

    return raise_it


@pytest.mark.parametrize(("count", "after"), [(0, 0), (1, 0), (7, 3), (7, 7), (500, 0), (1203, 0), (1000, 1)])
async def test_stored_events_are_read_in_pages(count: int, after: int) -> None:
    shelf = Shelf(events(1, count))
    assert await read(shelf, after=after, live=False) == list(range(after + 1, count + 1))
    assert max(shelf.limits) < 1000
    assert len(shelf.limits) <= 1 + (count - after) // 400


async def test_following_an_unknown_chat_fails() -> None:
    shelf = Shelf()
    shelf.before_facts = refuse(ChatNotFound("c"))
    for options in ({"live": False}, {"live": True}, {"live": True, "until_rest": True}):
        with pytest.raises(ChatNotFound):
            await read(shelf, **options)


async def test_own_commits_need_no_read() -> None:
    shelf = Shelf(events(1, 3))
    async with following(shelf) as told:
        assert told == [1, 2, 3], "a chat at rest is followed, too"
        looks = len(shelf.limits)
        shelf.commit(busy(2, 5), *events(4, 5))
        await anyio.wait_all_tasks_blocked()
        shelf.commit(at_rest(3, 6), *events(6, 6))
        await anyio.wait_all_tasks_blocked()
        assert told == [1, 2, 3, 4, 5, 6]
        assert len(shelf.limits) == looks


async def test_foreign_commits_are_read_after_hint_or_gap() -> None:
    shelf = Shelf(events(1, 1))
    async with following(shelf) as told:
        shelf.put(busy(2, 2), *events(2, 2))
        shelf.broadcaster.hint("c")
        await anyio.wait_all_tasks_blocked()
        assert told == [1, 2]
        shelf.put(busy(3, 4), *events(3, 4))
        shelf.commit(busy(4, 5), *events(5, 5))
        await anyio.wait_all_tasks_blocked()
        assert told == [1, 2, 3, 4, 5]


# Until it rests


async def test_resting_chat_is_read_once() -> None:
    shelf = Shelf(events(1, 3), at_rest(4, 3))
    assert await read(shelf, live=True, until_rest=True) == [1, 2, 3]
    assert (len(shelf.limits), shelf.asked) == (1, 1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("known", [0, 1])
async def test_commit_between_two_reads_is_not_missed(known: int, version: int) -> None:
    shelf = Shelf(events(1, known), busy(version, known))

    def come_to_rest() -> None:
        if len(shelf.stored) == known:
            shelf.put(at_rest(version, known + 2), *events(known + 1, known + 2))

    shelf.before_facts = come_to_rest
    assert await read(shelf, live=True, until_rest=True) == list(range(1, known + 3))


async def test_until_rest_ends_when_the_chat_rests() -> None:
    shelf = Shelf(events(1, 1), busy(1, 1))
    async with following(shelf, until_rest=True) as told:
        shelf.commit(busy(2, 2), *events(2, 2))
        await anyio.wait_all_tasks_blocked()
        assert told == [1, 2]
        shelf.commit(at_rest(3, 4), *events(3, 4))
        await anyio.wait_all_tasks_blocked()
        shelf.commit(busy(4, 5), *events(5, 5))
    assert told == [1, 2, 3, 4]


@pytest.mark.parametrize("way", ["follow", "wait"])
async def test_late_own_commit_hides_no_foreign_one(way: str) -> None:
    """The hint at the later one came before: no other will."""
    shelf = Shelf(events(1, 1), busy(1, 1))
    told: list[int] = []

    async def go_on() -> None:
        if way == "wait":
            told.append((await wait_for(shelf.store, shelf.broadcaster, "c", lambda facts: facts.resting)).version)
            return
        async for event in follow(shelf.store, shelf.broadcaster, "c", after=0, live=True, until_rest=True):
            told.append(event.seq)  # noqa: PERF401

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            await anyio.wait_all_tasks_blocked()
            tell = shelf.committing(busy(2, 2), *events(2, 2))
            shelf.put(at_rest(3, 3), *events(3, 3))
            shelf.broadcaster.hint("c")
            tell()
    assert told == ([1, 2, 3] if way == "follow" else [3])


# Waiting for a state


async def test_wait_for_returns_first_matching_facts() -> None:
    shelf = Shelf(facts=busy(1, 0))
    found: list[int] = []

    async def wait() -> None:
        found.append((await wait_for(shelf.store, shelf.broadcaster, "c", lambda facts: facts.version >= 3)).version)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        shelf.commit(busy(2, 0))
        await anyio.wait_all_tasks_blocked()
        assert found == []
        shelf.put(at_rest(3, 0))
        shelf.broadcaster.hint(None)
    assert found == [3]
    await wait()
    assert found == [3, 3]


async def test_at_once_raises_where_it_would_wait() -> None:
    told: list[int] = []
    shelf = Shelf(events(1, 2), busy(1, 2))
    following = follow(shelf.store, shelf.broadcaster, "c", after=0, live=True, until_rest=True, at_once=True)
    with pytest.raises(TimeoutError):
        [told.append(event.seq) async for event in following]
    assert told == [1, 2]
    with pytest.raises(TimeoutError):
        await wait_for(shelf.store, shelf.broadcaster, "c", lambda facts: facts.resting, at_once=True)

    shelf.put(at_rest(2, 3), *events(3, 3))
    assert await read(shelf, live=True, until_rest=True, at_once=True) == [1, 2, 3]
    facts = await wait_for(shelf.store, shelf.broadcaster, "c", lambda facts: facts.resting, at_once=True)
    assert facts.version == 2


# The end of the engine


@pytest.mark.parametrize("way", ["events", "facts"])
@pytest.mark.parametrize("reason", ["shut down", None])
async def test_closed_store_ends_its_readers(way: str, reason: str | None) -> None:
    shelf = Shelf(facts=busy(1, 0))
    setattr(shelf, f"before_{way}", refuse(StoreError("the store is gone")))
    if reason is not None:
        shelf.broadcaster.close(reason)
    with pytest.raises(EngineClosed if reason else StoreError, match=reason or "gone") as refused:
        await read(shelf, live=True)
    assert isinstance(refused.value, EngineClosed) == bool(reason)
    if way == "facts":
        with pytest.raises(EngineClosed if reason else StoreError, match=reason or "gone"):
            await wait_for(shelf.store, shelf.broadcaster, "c", lambda facts: facts.resting)


async def test_closed_engine_delivers_stored_events() -> None:
    shelf = Shelf(events(1, 2), busy(1, 2))
    shelf.broadcaster.close("shut down")
    told: list[int] = []

    async def go_on() -> None:
        async for event in follow(shelf.store, shelf.broadcaster, "c", after=0, live=True):
            told.append(event.seq)  # noqa: PERF401

    with pytest.raises(EngineClosed, match="shut down"):
        await go_on()
    assert told == [1, 2]
