"""Following a chat: every event once and in order, an end at rest, and few reads."""

import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.shelf import Shelf, stands

from support.engines import MakeModel, OpenChat, OpenEngine
from support.exploring import examples
from turnwise import EngineClosed, Settings, StoreError
from turnwise.engine.subscriptions.broadcast import Broadcaster, Latest, LatestEvents, Subscription
from turnwise.engine.subscriptions.follow import follow, wait_for, watch
from turnwise.persistence.protocol import Committed
from turnwise.states import triggers as t
from turnwise.states.decide import Decision
from turnwise.states.events import Event, StatusEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState


def events(*numbers: int) -> list[Event]:
    return [StatusEvent(seq=number, chat_id="c", state=ChatState.pending) for number in numbers]


def busy(version: int, last_seq: int) -> Facts:
    return stands(ChatState.streaming, version=version, last_seq=last_seq)


def at_rest(version: int, last_seq: int) -> Facts:
    return stands(ChatState.waiting, version=version, last_seq=last_seq)


async def read(shelf: Shelf, *, after: int = 0, **options: Any) -> list[int]:
    return [event.seq async for event in follow(shelf.store, shelf.broadcaster, "c", after=after, **options)]


@asynccontextmanager
async def following(shelf: Shelf, *, after: int = 0, **options: Any) -> AsyncIterator[list[int]]:
    """Follow in the background; the list of event numbers is complete once the loop is idle."""
    seen: list[int] = []

    async def go_on() -> None:
        async for event in follow(shelf.store, shelf.broadcaster, "c", after=after, live=True, **options):
            seen.append(event.seq)  # noqa: PERF401

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        await anyio.wait_all_tasks_blocked()
        yield seen
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


# A subscription


@pytest.mark.parametrize(
    ("buffered", "after", "batch", "behind"),
    [
        ([1, 2, 3], 0, [1, 2, 3], False),
        ([1, 2, 3], 1, [2, 3], False),
        ([8, 9], 7, [8, 9], False),
        ([2], 0, [], True),
        ([2, 3, 5], 1, [2, 3], True),
        ([3, 2], 1, [2], True),
        ([*range(1, 1001)], 0, [*range(1, 1001)], False),
        ([*range(1, 1002)], 0, [], True),
    ],
    ids=["all", "rest", "late", "gap", "gap later", "order", "thousand", "too many"],
)
def test_subscription_takes_events_and_reports_gaps(
    buffered: list[int], after: int, batch: list[int], *, behind: bool
) -> None:
    subscription = Subscription()
    assert subscription.behind, "it has read nothing yet"
    subscription.behind = False
    for number in buffered:
        subscription.ring(events(number))
    assert ([event.seq for event in subscription.take(after)], subscription.behind) == (batch, behind)
    assert list(subscription.take(after)) == [], "each is taken once"


async def test_close_ends_present_and_later_subscriptions() -> None:
    hub = Broadcaster()
    with hub.listen("a") as early, hub.listen("b") as other:
        hub.close("shut down")
        hub.close("again")
        assert hub.closed == "shut down"
        with hub.listen("a") as late:
            for subscription in (early, other, late):
                await subscription.wait()  # it may read once more
                with pytest.raises(EngineClosed, match="shut down"):
                    await subscription.wait()


# The latest events


@given(order=st.permutations(range(1, 9)), sizes=st.lists(st.integers(1, 2), min_size=8, max_size=8))
def test_latest_events_have_no_gap_in_any_order(order: list[int], sizes: list[int]) -> None:
    firsts = [1 + sum(sizes[: number - 1]) for number in range(1, 9)]
    latest, newest = LatestEvents(), 0
    for number in order:
        last = firsts[number - 1] + sizes[number - 1] - 1
        newest = max(newest, last)
        add(latest, *range(firsts[number - 1], last + 1))
        for after in range(newest + 1):
            assert known(latest, after) in ([], list(range(after + 1, newest + 1)))
    if order == sorted(order):
        assert known(latest, 0)


def add(latest: LatestEvents, *numbers: int, chat_id: str = "c") -> None:
    latest.add(chat_id, events(*numbers), latest.of(chat_id))


def known(latest: LatestEvents, after: int, chat_id: str = "c") -> list[int]:
    return [event.seq for event in latest.after(chat_id, after)]


def test_latest_events_are_16_of_1024_chats() -> None:
    latest = LatestEvents()
    add(latest, *range(1, 17))
    assert known(latest, 0) == list(range(1, 17))
    add(latest, 17)
    assert (known(latest, 0), known(latest, 1)) == ([], list(range(2, 18)))
    add(latest, 1, chat_id="other")
    for number in range(1022):
        add(latest, 1, chat_id=f"{number}")
    add(latest, 18)  # it is the newest now
    add(latest, 1, chat_id="one more")
    assert (known(latest, 0, "other"), known(latest, 17), known(latest, 0, "0")) == ([], [18], [1])


def under_way() -> Shelf:
    """Return a chat of seven events; this process has just committed the last four."""
    shelf = Shelf(events(1, 2, 3), busy(1, 3))
    shelf.commit(busy(2, 5), *events(4, 5))
    shelf.commit(busy(3, 7), *events(6, 7))
    return shelf


@pytest.mark.parametrize(("after", "reads"), [(3, 0), (5, 0), (2, 1)])
async def test_follower_of_own_commits_reads_nothing(after: int, reads: int) -> None:
    shelf = under_way()
    async with following(shelf, after=after) as seen:
        assert (seen, len(shelf.limits)) == ([*range(after + 1, 8)], reads)


@pytest.mark.parametrize("chat_id", ["c", None])
async def test_hint_forces_a_read(chat_id: str | None) -> None:
    shelf = under_way()
    shelf.put(busy(4, 8), *events(8))
    shelf.broadcaster.notify(chat_id)
    async with following(shelf, after=5) as seen:
        assert (seen, len(shelf.limits)) == ([6, 7, 8], 1)


async def test_erased_events_are_not_handed_out() -> None:
    shelf = under_way()
    latest = shelf.broadcaster.latest.of("c")
    erased = shelf.put(busy(4, 8), *events(8))
    decision = Decision(t.MessageErased, "streaming", ChatState.streaming, erased.facts, (), (), "client", None)
    shelf.broadcaster.publish(replace(erased, decisions=(decision,)), latest, notifications=0)
    async with following(shelf, after=5) as seen:
        assert (seen, len(shelf.limits)) == ([6, 7, 8], 1)


# Following


@pytest.mark.parametrize(("count", "after"), [(0, 0), (7, 3), (7, 7), (500, 0), (1203, 0), (1000, 1)])
async def test_stored_events_are_read_in_pages(count: int, after: int) -> None:
    shelf = Shelf(events(*range(1, count + 1)))
    assert await read(shelf, after=after, live=False) == list(range(after + 1, count + 1))
    assert max(shelf.limits) < 1000
    assert len(shelf.limits) <= 1 + (count - after) // 400


@pytest.mark.parametrize("known", [0, 1])
async def test_commit_between_two_reads_is_not_missed(known: int) -> None:
    shelf = Shelf(events(*range(1, known + 1)), busy(1, known))

    def come_to_rest() -> None:
        if len(shelf.stored) == known:
            shelf.put(at_rest(2, known + 2), *events(known + 1, known + 2))

    shelf.before_facts = come_to_rest
    assert await read(shelf, live=True, until_rest=True) == list(range(1, known + 3))


async def test_until_rest_ends_when_the_chat_rests() -> None:
    shelf = Shelf(events(1), busy(1, 1))
    async with following(shelf, until_rest=True) as seen:
        shelf.commit(busy(2, 2), *events(2))
        await anyio.wait_all_tasks_blocked()
        assert seen == [1, 2]
        shelf.commit(at_rest(3, 4), *events(3, 4))
        await anyio.wait_all_tasks_blocked()
        shelf.commit(busy(4, 5), *events(5))
    assert seen == [1, 2, 3, 4]


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
        shelf.broadcaster.notify(None)
    assert found == [3]


@pytest.mark.parametrize("way", ["events", "facts"])
@pytest.mark.parametrize("reason", ["shut down", None])
async def test_closed_store_ends_its_readers(way: str, reason: str | None) -> None:
    """After the engine's close the reader gets EngineClosed; before it, the error of the store."""
    shelf = Shelf(facts=busy(1, 0))

    def fail() -> None:
        raise StoreError("the store is gone")

    setattr(shelf, f"before_{way}", fail)
    if reason is not None:
        shelf.broadcaster.close(reason)
    with pytest.raises(EngineClosed if reason else StoreError, match=reason or "gone"):
        await read(shelf, live=True)
    if way == "facts":
        with pytest.raises(EngineClosed if reason else StoreError, match=reason or "gone"):
            await wait_for(shelf.store, shelf.broadcaster, "c", lambda facts: facts.resting)


class Deliveries:
    """A chat that this process and another one change; deliveries and notifications come in any order."""

    def __init__(self) -> None:
        self.shelf = Shelf(events(1), busy(1, 1))
        self.started: list[tuple[Latest, int]] = []
        self.undelivered: list[tuple[Committed, Latest, int]] = []
        self.notifications = 0
        self.seen: list[int] = []
        self.after: int | None = None
        self.subscriptions: list[Subscription] = []
        self.listening = ExitStack()

    def commit(self) -> Committed:
        number = len(self.shelf.stored) + 1
        return self.shelf.put(busy(number, number), *events(number))

    def do(self, step: str, place: int, tasks: TaskGroup | None) -> None:
        broadcaster = self.shelf.broadcaster
        match step:
            case "start":
                self.started.append((broadcaster.latest.of("c"), broadcaster.notifications))
            case "commit" if self.started:
                self.undelivered.append((self.commit(), *self.started.pop(place % len(self.started))))
            case "foreign":
                self.commit()
                self.notifications += 1
            case "deliver" if self.undelivered:
                committed, latest, notifications = self.undelivered.pop(place % len(self.undelivered))
                broadcaster.publish(committed, latest, notifications=notifications)
            case "notification" if self.notifications:
                self.notifications -= 1
                broadcaster.notify("c")
            case "listen":
                self.subscriptions.append(self.listening.enter_context(broadcaster.listen("c")))
            case "follow" if self.after is None and tasks is not None:
                self.after = max(len(self.shelf.stored) - place, 0)
                tasks.start_soon(self.follow, self.after)

    async def follow(self, after: int) -> None:
        async for event in follow(self.shelf.store, self.shelf.broadcaster, "c", after=after, live=True):
            self.seen.append(event.seq)


STEPS = ["start", "start", "commit", "commit", "foreign", "deliver", "deliver", "notification", "follow", "listen"]


@settings(max_examples=examples(150))
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=20), last=st.integers(1, 3))
def test_follower_sees_every_event_once(steps: list[tuple[str, int]], last: int) -> None:
    """In any order of commits, deliveries and notifications; no subscription holds outdated facts."""

    async def live() -> None:
        chat = Deliveries()
        chat.do("listen", 0, None)
        async with anyio.create_task_group() as tasks:
            for step, place in steps:
                chat.do(step, place, tasks)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            while chat.undelivered:
                chat.do("deliver", 0, tasks)
            while chat.notifications:
                chat.do("notification", 0, tasks)
            chat.do("follow", last, tasks)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert chat.after is not None
        newest = len(chat.shelf.stored)
        assert chat.seen == [*range(chat.after + 1, newest + 1)]
        assert {
            subscription.facts.version for subscription in chat.subscriptions if subscription.facts is not None
        } <= {newest}
        chat.listening.close()

    anyio.run(live)


class Hints:
    """A store that yields the given notifications, read by read, and then fails."""

    def __init__(self, *looks: list[str | None]) -> None:
        self.looks = list(looks)

    async def watch(self) -> AsyncIterator[str | None]:
        """Yield the notifications of the next read."""
        for notification in self.looks.pop(0) if self.looks else ():
            yield notification
        raise StoreError("the disk failed to read")


async def test_watch_resets_back_off_and_survives_bad_notifications(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The subscriptions of this process wake first, even if the worker's handler fails."""
    calls: list[float | str | None] = []
    woken: list[str | None] = []
    hub = Broadcaster()
    monkeypatch.setattr(hub, "notify", woken.append)

    async def sleep(seconds: float) -> None:
        calls.append(seconds)
        await anyio.lowlevel.checkpoint()
        if len(calls) >= 12:
            tasks.cancel_scope.cancel()

    async def hear(chat_id: str | None) -> None:
        calls.append(chat_id)
        assert woken[-1] == chat_id
        if chat_id == "a":
            raise LookupError("no such chat")

    monkeypatch.setattr(anyio, "sleep", sleep)
    store = Hints([], [], ["a", "b"], [], [None])
    with caplog.at_level(logging.DEBUG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, cast("Any", store), hub, hear)
    assert calls[:12] == [0.1, None, 0.2, None, "a", "b", 0.1, None, 0.2, None, None, 0.1]
    assert woken[:7] == [None, None, "a", "b", None, None, None]
    lines = [record.getMessage() for record in caplog.records]
    assert sum("watch_failed" in line for line in lines) == 3, "once until something is heard again"
    (failed,) = [line for line in lines if "notification_failed" in line]
    assert "no such chat" in failed
    assert "chat_id=a" in failed


SELDOM = Settings(poll_interval=600, lease=3600, renew_every=600, shutdown_grace=0)
"""The poll interval of a worker that does not poll within a test."""
IDLE = Settings(run_worker=False)


async def test_foreign_message_wakes_the_worker(
    open_engine: OpenEngine, strict_model: MakeModel, open_chat: OpenChat
) -> None:
    async with open_engine(strict_model(["hi"]), settings=SELDOM) as engine:
        async with open_chat([], settings=IDLE) as (other, chat, _):
            await other.send_message(chat.id, "hello")
        assert (await engine.wait(chat.id, timeout=60)).state == "waiting"
