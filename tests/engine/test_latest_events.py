"""The latest events: given to whoever begins to follow, without a gap, and forgotten once others may know better."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from support.exploring import examples
from support.shelf import Shelf, stands
from turnwise.engine.follow.broadcast import Listener
from turnwise.engine.follow.follow import follow
from turnwise.engine.follow.latest_events import Latest, LatestEvents
from turnwise.persistence.protocol import Committed
from turnwise.states.decide import Decision
from turnwise.states.events import Event, StatusEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState, Trigger


def events(*numbers: int) -> list[Event]:
    return [StatusEvent(seq=number, chat_id="c", state=ChatState.pending) for number in numbers]


def busy(version: int, last_seq: int) -> Facts:
    return stands(ChatState.streaming, version=version, last_seq=last_seq)


def stored(latest: LatestEvents, *numbers: int, chat_id: str = "c") -> None:
    latest.add(chat_id, events(*numbers), latest.of(chat_id))


def remembered(latest: LatestEvents, after: int, chat_id: str = "c") -> list[int]:
    return [event.seq for event in latest.after(chat_id, after)]


# What is kept


@given(order=st.permutations(range(1, 9)), sizes=st.lists(st.integers(1, 2), min_size=8, max_size=8))
def test_latest_events_have_no_gap_in_any_order(order: list[int], sizes: list[int]) -> None:
    firsts = [1 + sum(sizes[: number - 1]) for number in range(1, 9)]
    latest, told = LatestEvents(), 0
    for number in order:
        last = firsts[number - 1] + sizes[number - 1] - 1
        told = max(told, last)
        stored(latest, *range(firsts[number - 1], last + 1))
        for after in range(told + 1):
            assert remembered(latest, after) in ([], list(range(after + 1, told + 1)))
    if order == sorted(order):
        assert remembered(latest, 0)


def test_latest_events_are_bounded() -> None:
    latest = LatestEvents()
    stored(latest, *range(1, 17))
    assert remembered(latest, 0) == list(range(1, 17))
    stored(latest, 17)
    assert (remembered(latest, 0), remembered(latest, 1)) == ([], list(range(2, 18)))
    stored(latest, 1, chat_id="other")
    for number in range(1022):
        stored(latest, 1, chat_id=f"{number}")
    stored(latest, 18)  # it is the newest now
    assert remembered(latest, 17) == [18]
    stored(latest, 1, chat_id="one more")
    assert (remembered(latest, 0, "other"), remembered(latest, 17), remembered(latest, 0, "0")) == ([], [18], [1])


def test_forgotten_chat_keeps_no_late_commit() -> None:
    latest = LatestEvents()
    before = latest.of("c")
    latest.forget("c")
    stored(latest, 1)
    latest.add("c", events(2), before)
    assert remembered(latest, 0) == []


# Who begins to follow


async def told(shelf: Shelf, *, after: int, live: bool = True, **options: Any) -> tuple[list[int], int]:
    """Follow until nothing moves; return what was told, and how often events were read for it."""
    shelf.limits = []
    seen: list[int] = []

    async def go_on() -> None:
        following = follow(shelf.store, shelf.broadcaster, "c", after=after, live=live, **options)
        async for event in following:
            seen.append(event.seq)  # noqa: PERF401

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    return seen, len(shelf.limits)


def under_way() -> Shelf:
    """A chat of seven events, of which this process has just committed the last four."""
    shelf = Shelf(events(1, 2, 3), busy(1, 3))
    shelf.commit(busy(2, 5), *events(4, 5))
    shelf.commit(busy(3, 7), *events(6, 7))
    return shelf


@pytest.mark.parametrize("until_rest", [False, True])
@pytest.mark.parametrize("after", [3, 5])
async def test_follower_of_own_commits_reads_nothing(
    after: int,
    until_rest: bool,  # noqa: FBT001
) -> None:
    expected = [number for number in (4, 5, 6, 7) if number > after]
    assert await told(under_way(), after=after, until_rest=until_rest) == (expected, 0)


@pytest.mark.parametrize(("after", "expected"), [(2, [3, 4, 5, 6, 7]), (7, []), (9, [])])
async def test_older_events_are_read_from_the_store(after: int, expected: list[int]) -> None:
    assert await told(under_way(), after=after) == (expected, 1)


@pytest.mark.parametrize("hinted", ["c", None])
async def test_hint_forces_a_read(hinted: str | None) -> None:
    shelf = under_way()
    shelf.put(busy(4, 8), *events(8))
    shelf.broadcaster.hint(hinted)
    assert await told(shelf, after=5) == ([6, 7, 8], 1)


async def test_erased_events_are_not_handed_out() -> None:
    shelf = under_way()
    latest = shelf.broadcaster.latest.of("c")
    erased = shelf.put(busy(4, 8), *events(8))
    decision = Decision(Trigger.message_erased, "streaming", ChatState.streaming, erased.facts, (), (), "client", None)
    shelf.broadcaster.deliver(replace(erased, decisions=(decision,)), latest, hints=0)
    assert await told(shelf, after=5) == ([6, 7, 8], 1)


# Whoever tells what, and when


class Telling:
    """A chat that this process and another one change; what is told of it, and hinted at, comes when it likes."""

    def __init__(self) -> None:
        self.shelf = Shelf(events(1), busy(1, 1))
        self.begun: list[tuple[Latest, int]] = []
        self.untold: list[tuple[Committed, Latest, int]] = []
        self.hints = 0
        self.seen: list[int] = []
        self.after: int | None = None
        self.listeners: list[Listener] = []
        self.listening = ExitStack()

    def commit(self) -> Committed:
        number = len(self.shelf.stored) + 1
        return self.shelf.put(busy(number, number), *events(number))

    def do(self, step: str, place: int, tasks: TaskGroup | None) -> None:
        broadcaster = self.shelf.broadcaster
        match step:
            case "begun":
                self.begun.append((broadcaster.latest.of("c"), broadcaster.hints))
            case "ours" if self.begun:
                self.untold.append((self.commit(), *self.begun.pop(place % len(self.begun))))
            case "theirs":
                self.commit()
                self.hints += 1
            case "told" if self.untold:
                committed, latest, hints = self.untold.pop(place % len(self.untold))
                broadcaster.deliver(committed, latest, hints=hints)
            case "hinted" if self.hints:
                self.hints -= 1
                broadcaster.hint("c")
            case "listen":
                self.listeners.append(self.listening.enter_context(broadcaster.listen("c")))
            case "follow" if self.after is None and tasks is not None:
                self.after = max(len(self.shelf.stored) - place, 0)
                tasks.start_soon(self.follow, self.after)

    async def follow(self, after: int) -> None:
        async for event in follow(self.shelf.store, self.shelf.broadcaster, "c", after=after, live=True):
            self.seen.append(event.seq)


STEPS = ["begun", "begun", "ours", "ours", "theirs", "told", "told", "hinted", "follow", "listen"]


@settings(max_examples=examples(150))
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=20), last=st.integers(1, 3))
def test_follower_sees_every_event_once(steps: list[tuple[str, int]], last: int) -> None:
    """And no listener is left with facts that are older than what is stored: nobody would tell it of newer ones."""

    async def live() -> None:
        telling = Telling()
        telling.do("listen", 0, None)
        async with anyio.create_task_group() as tasks:
            for step, place in steps:
                telling.do(step, place, tasks)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            while telling.untold:
                telling.do("told", 0, tasks)
            while telling.hints:
                telling.do("hinted", 0, tasks)
            telling.do("follow", last, tasks)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert telling.after is not None
        newest = len(telling.shelf.stored)
        assert telling.seen == [*range(telling.after + 1, newest + 1)]
        assert {listener.facts.version for listener in telling.listeners if listener.facts is not None} <= {newest}
        telling.listening.close()

    anyio.run(live)
