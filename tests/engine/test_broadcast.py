"""The broadcaster: it wakes whom it should, keeps what came in order, and tells whoever missed something."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from support.life import NOW, PROFILE
from turnwise import EngineClosed, StoreError
from turnwise.engine.follow.broadcast import Broadcaster, Listener
from turnwise.persistence.protocol import Committed
from turnwise.states.events import Event, StatusEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState


def facts(version: int, chat_id: str = "a") -> Facts:
    return Facts(chat_id=chat_id, profile=PROFILE, version=version)


def events(*numbers: int) -> list[Event]:
    return [StatusEvent(seq=number, chat_id="a", state=ChatState.pending) for number in numbers]


def commit(version: int, *numbers: int, chat_id: str = "a") -> Committed:
    now = facts(version, chat_id)
    return Committed(before=now, facts=now, decisions=(), events=tuple(events(*numbers)), at=NOW)


def up_to_date() -> Listener:
    listener = Listener()
    assert listener.behind, "it has read nothing yet"
    listener.behind = False
    return listener


def taken(listener: Listener, after: int = 0) -> list[int]:
    return [event.seq for event in listener.take(after)]


async def is_woken(listener: Listener) -> bool:
    """Whether a wait ends by itself; what it raises is raised."""
    with anyio.move_on_after(60) as patience:
        async with anyio.create_task_group() as tasks:
            ended = anyio.Event()

            async def wait() -> None:
                await listener.wait()
                ended.set()

            tasks.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            woken = ended.is_set()
            tasks.cancel_scope.cancel()
    assert not patience.cancelled_caught
    return woken


# One listener


@pytest.mark.parametrize(
    ("buffered", "after", "batch", "behind"),
    [
        ([], 0, [], False),
        ([1, 2, 3], 0, [1, 2, 3], False),
        ([1, 2, 3], 1, [2, 3], False),
        ([1, 2, 3], 3, [], False),
        ([8, 9], 7, [8, 9], False),
        ([2], 0, [], True),
        ([3, 4], 1, [], True),
        ([2, 3, 5], 1, [2, 3], True),
        ([3, 2], 1, [2], True),
    ],
)
def test_listener_takes_events_and_reports_gaps(
    buffered: list[int],
    after: int,
    batch: list[int],
    behind: bool,  # noqa: FBT001
) -> None:
    listener = up_to_date()
    listener.ring(events(*buffered))
    assert (taken(listener, after), listener.behind) == (batch, behind)
    assert taken(listener, after) == [], "each is taken once"


def test_listener_keeps_a_thousand_events() -> None:
    listener = up_to_date()
    for number in range(1, 1001):
        listener.ring(events(number))
    assert (len(taken(listener)), listener.behind) == (1000, False)
    listener.ring(events(*range(1, 1001)))
    listener.ring(events(1001))
    assert (taken(listener), listener.behind) == ([], True)


def test_listener_keeps_newest_facts() -> None:
    listener = Listener()
    known: list[int | None] = []
    for version in (4, 6, 5, None, 3):
        listener.ring(facts=None if version is None else facts(version))
        known.append(listener.facts.version if listener.facts is not None else None)
    assert known == [4, 6, 6, None, 3]


async def test_listener_wakes_once_per_bell() -> None:
    listener = up_to_date()
    assert not await is_woken(listener)
    listener.ring()
    listener.ring()
    assert await is_woken(listener)
    assert not await is_woken(listener), "it was woken for that once"
    assert not listener.behind
    listener.hint(1)
    assert listener.behind
    assert await is_woken(listener)


async def test_listener_failure_is_raised_once() -> None:
    listener = up_to_date()
    listener.fail(StoreError("the disk is full"))
    with pytest.raises(StoreError, match="full"):
        await listener.wait()
    assert not await is_woken(listener)
    listener.ring()
    assert await is_woken(listener)


async def test_ended_listener_reads_once_more() -> None:
    listener = up_to_date()
    listener.end("closed for today")
    assert await is_woken(listener)
    for _ in range(2):
        with pytest.raises(EngineClosed, match="closed for today"):
            await listener.wait()


# All of them


async def heard(listeners: dict[str, Listener]) -> set[str]:
    """Return whose bell rang."""
    return {name for name, listener in listeners.items() if await is_woken(listener)}


async def test_listeners_hear_of_their_own_chat() -> None:
    hub, seen = Broadcaster(), []
    hub.observe(lambda told: seen.append((told.chat_id, told.version)))
    with hub.listen("a") as one, hub.listen("a") as two, hub.listen("b") as other:
        listeners = {"one": one, "two": two, "other": other}
        for listener in listeners.values():
            listener.behind = False
        hub.deliver(commit(3, 7, 8), hints=hub.hints)
        assert await heard(listeners) == {"one", "two"}
        assert [taken(listener, 6) for listener in listeners.values()] == [[7, 8], [7, 8], []]
        assert (one.facts, two.facts, other.facts) == (facts(3), facts(3), None)
        hub.show("a", events(9), hub.latest.of("a"))
        assert await heard(listeners) == {"one", "two"}
        assert (taken(one, 8), one.facts) == ([9], facts(3)), "parts change no facts"
        hub.tell(facts(9, "b"))
        assert await heard(listeners) == set()
        hub.deliver(commit(1, 1, chat_id="nobody's"), hints=hub.hints)
        hub.show("nobody's", events(1), hub.latest.of("nobody's"))
        hub.hint("nobody's")
        hub.fail("nobody's", StoreError("lost"))
        assert await heard(listeners) == set()
    assert seen == [("a", 3), ("b", 9), ("nobody's", 1)]


@pytest.mark.parametrize(
    ("hinted", "woken"), [("a", {"one", "two"}), ("b", {"other"}), (None, {"one", "two", "other"})]
)
async def test_hint_sends_listeners_to_the_store(hinted: str | None, woken: set[str]) -> None:
    hub = Broadcaster()
    with hub.listen("a") as one, hub.listen("a") as two, hub.listen("b") as other:
        listeners = {"one": one, "two": two, "other": other}
        for listener in listeners.values():
            listener.behind = False
            listener.facts = facts(1)
        hub.hint(hinted)
        assert {name for name, listener in listeners.items() if listener.behind} == woken
        assert {name for name, listener in listeners.items() if listener.facts is None} == woken
        assert await heard(listeners) == woken


async def test_close_ends_present_and_later_listeners() -> None:
    hub = Broadcaster()
    assert hub.closed is None
    with hub.listen("a") as early, hub.listen("b") as other:
        hub.close("shut down")
        hub.close("again")
        assert hub.closed == "shut down"
        with hub.listen("a") as late:
            for listener in (early, other, late):
                assert await is_woken(listener)
                with pytest.raises(EngineClosed, match="shut down"):
                    await listener.wait()
            hub.close("again")
            for listener in (early, other, late):
                with pytest.raises(EngineClosed, match="shut down"):
                    await listener.wait()
