"""The latest events: given to whoever begins to follow, without a gap, and forgotten once others may know better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from support.exploring import examples
from support.shelf import Shelf, stands
from turnwise.engine.follow.broadcast import Listener
from turnwise.engine.follow.follow import follow
from turnwise.engine.follow.latest_events import LatestEvents
from turnwise.persistence.protocol import Committed
from turnwise.states.decide import Decision
from turnwise.states.events import Event, StatusEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState, Trigger


def events(*numbers: int) -> list[Event]:
    return [StatusEvent(seq=number, chat_id="c", state=ChatState.pending) for number in numbers]


def busy(version: int, last_seq: int) -> Facts:
    return stands(ChatState.streaming, version=version, last_seq=last_seq)


def remembered(latest: LatestEvents, after: int, chat_id: str = "c") -> list[int] | None:
    known = latest.of(chat_id)
    found = known.after(after) if known is not None else None
    return None if found is None else [event.seq for event in found]


# What is kept


@given(order=st.permutations(range(1, 9)), sizes=st.lists(st.integers(1, 4), min_size=8, max_size=8))
def test_in_whatever_order_commits_are_told_what_is_given_has_no_gap(order: list[int], sizes: list[int]) -> None:
    firsts = [1 + sum(sizes[: number - 1]) for number in range(1, 9)]
    latest, told = LatestEvents(), 0
    for number in order:
        last = firsts[number - 1] + sizes[number - 1] - 1
        told = max(told, last)
        latest.add("c", events(*range(firsts[number - 1], last + 1)))
        for after in range(told + 1):
            assert remembered(latest, after) in (None, list(range(after + 1, told + 1)))
    if order == sorted(order):
        assert remembered(latest, max(told - 8, 0)) is not None


def test_the_last_32_events_of_1024_chats_are_kept() -> None:
    latest = LatestEvents()
    latest.add("c", events(*range(1, 33)))
    assert remembered(latest, 0) == list(range(1, 33))
    latest.add("c", events(33))
    assert (remembered(latest, 0), remembered(latest, 1)) == (None, list(range(2, 34)))
    latest.add("other", events(1))
    for number in range(1022):
        latest.add(f"{number}", events(1))
    latest.add("c", events(34))  # it is the newest now
    assert remembered(latest, 33) == [34]
    latest.add("one more", events(1))
    assert (remembered(latest, 0, "other"), remembered(latest, 33), remembered(latest, 0, "0")) == (None, [34], [1])


def test_the_newest_facts_count() -> None:
    latest = LatestEvents()
    known: list[int | None] = []
    for version in (None, 4, 6, 5, None):
        latest.add("c", (), None if version is None else busy(version, 0))
        found = latest.of("c")
        assert found is not None
        known.append(found.facts.version if found.facts is not None else None)
    assert known == [None, 4, 6, 6, 6]


def test_a_chat_is_forgotten_or_all() -> None:
    latest = LatestEvents()
    for chat_id in "abc":
        latest.add(chat_id, events(1))
    latest.forget("b")
    latest.forget("nobody's")
    assert [remembered(latest, 0, chat_id) for chat_id in "abc"] == [[1], None, [1]]
    latest.forget(None)
    assert [remembered(latest, 0, chat_id) for chat_id in "abc"] == [None, None, None]


# Who begins to follow


@pytest.fixture
def nobody_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count only the looks that do not come by themselves a moment later."""
    monkeypatch.setattr("turnwise.engine.follow.broadcast.LOOK_AGAIN_AFTER", 600)


async def told(shelf: Shelf, *, after: int, live: bool = True, **options: Any) -> tuple[list[int], int, int]:
    """Follow until nothing moves; return what was told, and how often events and facts were read for it."""
    shelf.limits, shelf.asked = [], 0
    seen: list[int] = []

    async def go_on() -> None:
        following = follow(shelf.store, shelf.broadcaster, "c", after=after, live=live, **options)
        async for event in following:
            seen.append(event.seq)  # noqa: PERF401 - each is seen as it comes

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    return seen, len(shelf.limits), shelf.asked


def under_way() -> Shelf:
    """A chat of seven events, of which this process has just committed the last four."""
    shelf = Shelf(events(1, 2, 3), busy(1, 3))
    shelf.commit(busy(2, 5), *events(4, 5))
    shelf.commit(busy(3, 7), *events(6, 7))
    return shelf


@pytest.mark.usefixtures("nobody_looks_again")
@pytest.mark.parametrize("until_rest", [False, True])
@pytest.mark.parametrize("after", [3, 5, 7, 9])
async def test_who_begins_after_a_commit_of_this_process_reads_no_database(
    after: int,
    until_rest: bool,  # noqa: FBT001
) -> None:
    expected = [number for number in (4, 5, 6, 7) if number > after]
    assert await told(under_way(), after=after, until_rest=until_rest) == (expected, 0, 0)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_who_wants_older_events_reads_them_and_goes_on() -> None:
    assert await told(under_way(), after=2) == ([3, 4, 5, 6, 7], 1, 0)


async def test_who_does_not_wait_for_more_reads_what_is_stored_now() -> None:
    shelf = under_way()
    shelf.put(busy(4, 8), *events(8))  # another process did, and its hint is under way
    assert (await told(shelf, after=5, live=False))[0] == [6, 7, 8]


@pytest.mark.usefixtures("nobody_looks_again")
@pytest.mark.parametrize("hinted", ["c", None])
async def test_after_a_hint_at_what_others_have_committed_the_database_is_read(hinted: str | None) -> None:
    shelf = under_way()
    shelf.put(busy(4, 8), *events(8))
    shelf.broadcaster.hint(hinted)
    assert await told(shelf, after=5) == ([6, 7, 8], 1, 0)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_a_hint_that_comes_later_brings_what_others_have_committed() -> None:
    shelf = under_way()
    shelf.put(busy(4, 8), *events(8))
    seen: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def go_on() -> None:
            async for event in follow(shelf.store, shelf.broadcaster, "c", after=5, live=True):
                seen.append(event.seq)  # noqa: PERF401 - each is seen as it comes

        tasks.start_soon(go_on)
        await anyio.wait_all_tasks_blocked()
        assert seen == [6, 7]
        shelf.broadcaster.hint("c")
        await anyio.wait_all_tasks_blocked()
        assert seen == [6, 7, 8]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("until_rest", [False, True])
async def test_a_commit_that_is_told_after_the_hint_at_a_later_one_hides_nothing(
    until_rest: bool,  # noqa: FBT001
) -> None:
    """The hint may come between the commit and its telling; then nobody says again that there is more."""
    shelf = under_way()
    late = shelf.put(busy(4, 8), *events(8))
    shelf.put(stands(ChatState.waiting, version=5, last_seq=9), *events(9))
    shelf.broadcaster.hint("c")
    shelf.broadcaster.deliver(late)
    seen: list[int] = []
    with anyio.move_on_after(30 if until_rest else 1):
        async for event in follow(shelf.store, shelf.broadcaster, "c", after=7, live=True, until_rest=until_rest):
            seen.append(event.seq)  # noqa: PERF401 - each is seen as it comes
    assert seen == [8, 9]


async def test_who_has_left_is_not_reminded(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, hinted = under_way(), 0

    def count(_: Listener) -> None:
        nonlocal hinted
        hinted += 1

    monkeypatch.setattr(Listener, "hint", count)
    for stays in (0, 0.2):
        with shelf.broadcaster.listen("c", after=5):
            await anyio.sleep(stays)
        await anyio.sleep(0.2)
        assert hinted == bool(stays)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_a_hint_at_another_chat_changes_nothing() -> None:
    shelf = under_way()
    shelf.broadcaster.hint("another")
    assert await told(shelf, after=5) == ([6, 7], 0, 0)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_what_others_committed_in_between_is_read() -> None:
    shelf = under_way()
    shelf.put(busy(4, 8), *events(8))
    shelf.commit(busy(5, 9), *events(9))
    assert await told(shelf, after=7) == ([8, 9], 1, 0)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_parts_that_were_stored_are_given_too() -> None:
    shelf = under_way()
    shelf.stored += events(8)
    shelf.broadcaster.show("c", events(8))
    assert await told(shelf, after=6) == ([7, 8], 0, 0)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_a_chat_that_came_to_rest_is_read() -> None:
    shelf = under_way()
    shelf.commit(stands(ChatState.waiting, version=4, last_seq=8), *events(8))
    assert await told(shelf, after=5, until_rest=True) == ([6, 7, 8], 1, 1)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_of_a_new_chat_the_first_events_are_known_but_that_it_rests_is_asked() -> None:
    shelf = Shelf(facts=stands(version=0))
    shelf.commit(stands(version=1, last_seq=1), *events(1))
    assert await told(shelf, after=0) == ([1], 0, 0)
    shelf.put(busy(2, 2), *events(2))
    seen, _, asked = await told(shelf, after=0, until_rest=True)
    assert (seen, asked > 0) == ([1], True)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_what_was_erased_is_given_to_nobody() -> None:
    shelf = under_way()
    erased = shelf.put(busy(4, 8), *events(8))
    decision = Decision(Trigger.message_erased, "streaming", ChatState.streaming, erased.facts, (), (), "client", None)
    shelf.broadcaster.deliver(replace(erased, decisions=(decision,)))
    assert await told(shelf, after=5) == ([6, 7, 8], 1, 0)


@pytest.mark.usefixtures("nobody_looks_again")
async def test_a_chat_that_was_deleted_is_asked_of_the_store() -> None:
    shelf = under_way()
    shelf.broadcaster.forget("c")
    assert (await told(shelf, after=5))[1] == 1


# Whoever tells what, and when


class Telling:
    """A chat that this process and another one change; what is told of it, and hinted at, comes when it likes."""

    def __init__(self) -> None:
        self.shelf = Shelf(events(1), busy(1, 1))
        self.untold: list[Committed] = []
        self.hints = 0
        self.seen: list[int] = []
        self.after: int | None = None

    def commit(self) -> Committed:
        number = len(self.shelf.stored) + 1
        return self.shelf.put(busy(number, number), *events(number))

    def do(self, step: str, place: int, tasks: TaskGroup) -> None:
        match step:
            case "ours":
                self.untold.append(self.commit())
            case "theirs":
                self.commit()
                self.hints += 1
            case "told" if self.untold:
                self.shelf.broadcaster.deliver(self.untold.pop(place % len(self.untold)))
            case "hinted" if self.hints:
                self.hints -= 1
                self.shelf.broadcaster.hint("c")
            case "follow" if self.after is None:
                self.after = max(len(self.shelf.stored) - place, 0)
                tasks.start_soon(self.follow, self.after)

    async def follow(self, after: int) -> None:
        async for event in follow(self.shelf.store, self.shelf.broadcaster, "c", after=after, live=True):
            self.seen.append(event.seq)


@settings(max_examples=examples(60))
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["ours", "theirs", "told", "told", "hinted", "follow"]), st.integers(0, 3)),
        max_size=14,
    )
)
def test_a_follower_sees_every_event_once_whoever_tells_what_and_when(steps: list[tuple[str, int]]) -> None:
    async def live() -> None:
        telling = Telling()
        async with anyio.create_task_group() as tasks:
            for step, place in steps:
                telling.do(step, place, tasks)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            while telling.untold:
                telling.do("told", 0, tasks)
            while telling.hints:
                telling.do("hinted", 0, tasks)
            telling.do("follow", 1, tasks)
            assert telling.after is not None
            everything = list(range(telling.after + 1, len(telling.shelf.stored) + 1))
            with anyio.move_on_after(20):
                while len(telling.seen) < len(everything):  # noqa: ASYNC110 - it tells nobody
                    await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        assert telling.seen == everything

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.engine.follow.broadcast.LOOK_AGAIN_AFTER", 0.005)
        anyio.run(live)
