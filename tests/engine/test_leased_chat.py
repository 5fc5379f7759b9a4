"""A worker's knowledge of its chat: how long to wait, whether it still holds it, and what it may start."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from support.life import BLANK, NOW
from support.runtimes import runtime_of
from support.stores import Delegate, stored_at
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.persistence.protocol import ChatStore
from turnwise.states.arguments import Erasing
from turnwise.states.calls import CallOutcome
from turnwise.states.decide import job_of
from turnwise.states.errors import StaleLease
from turnwise.states.facts import Facts, Lease
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.triggers import CallFinished, CallStarted, Interrupt, LeaseExpired, MessageErased, ToolsFinished
from turnwise.testing import ManualClock
from turnwise.testing.conformance import plans


class Asked(Delegate):
    """A store whose chat the test moves, and that counts its reads."""

    def __init__(self, store: Any, facts: Facts) -> None:
        super().__init__(store)
        self.found = facts
        self.stale = False
        self.asked = 0
        self.answers: Callable[[], object] = lambda: None

    async def facts(self, chat_id: str) -> Facts:
        assert chat_id == self.found.chat_id
        return self.found

    async def prompt(self, chat_id: str) -> list[Any]:
        assert chat_id == self.found.chat_id
        return []

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, events: Sequence[Any], *, worker: str
    ) -> Any:
        assert (chat_id, token, worker, state) == (self.found.chat_id, 1, "w", ChatState.executing_tools)
        self.asked += 1
        self.answers()
        if self.stale:
            raise StaleLease(chat_id, token, None)
        return ()


def held(database: Path, **more: Any) -> tuple[LeasedChat, ManualClock, Asked]:
    """Return a chat at version 5 that is held under token 1."""
    clock = ManualClock(NOW)
    facts = replace(BLANK, **{"version": 5, "lease": Lease("w", 1), "state": ChatState.executing_tools, **more})
    store = Asked(stored_at(database, clock), facts)
    return LeasedChat(runtime_of(store, clock), facts, 1), clock, store


MOVES: dict[str, dict[str, Any]] = {
    "interrupted": {"state": ChatState.interrupted},
    "another's": {"lease": Lease("v", 2)},
    "free": {"lease": None},
}


STOP = plans.move(Interrupt())


async def executing_at(database: Path) -> tuple[ChatStore, LeasedChat]:
    """Return an open store, and its one chat, held by a worker that runs two tools."""
    clock = ManualClock(NOW)
    store = stored_at(database, clock)
    await store.open()
    moves = (plans.send("hello"), plans.claim("w"), plans.reply("", local=["a", "b"]))
    before = (await plans.created(store, "chat", *moves)).facts
    return store, LeasedChat(runtime_of(store, clock), before, 1, job=job_of(before))


@pytest.mark.parametrize("what", ["fire", "show"])
@pytest.mark.parametrize("moved", ["stopped", "another's"])
async def test_late_holder_writes_nothing(database: Path, moved: str, what: str) -> None:
    """Otherwise it would start the same job again, and call the model once more."""
    store, leased = await executing_at(database)
    later = [plans.move(LeaseExpired(token=plans.HOLDER)), plans.claim("v")] if moved == "another's" else [STOP]
    for move in later:
        await store.change("chat", plans.plan(move))
    now = await store.facts("chat")
    late = leased.fire(ToolsFinished(token=1)) if what == "fire" else leased.show(ChatState.executing_tools, ())
    with pytest.raises(ConcurrentTransition):
        await late
    assert (leased.facts, leased.lost) == (now, moved == "another's")
    assert await store.facts("chat") == now
    await store.close()


DONE = CallFinished(
    token=1, outcome=CallOutcome(call_id="a", status=CallStatus.succeeded, output="done", is_error=False)
)


async def test_repeated_commit_is_no_failure(database: Path) -> None:
    """The first answer of the store may have been lost; the chat is in the same state, under the same lease."""
    store, leased = await executing_at(database)
    await leased.fire(CallStarted(token=1, call_id="a"))
    await store.change("chat", plans.plan(plans.move(DONE)))
    with pytest.raises(ConcurrentTransition):
        await leased.fire(DONE)
    assert leased.facts == await store.facts("chat")
    await store.close()


async def test_erased_message_leaves_the_view(database: Path) -> None:
    """The erasure adds a message to the model's view, which was read before."""
    store, leased = await executing_at(database)
    await leased.fire(CallStarted(token=1, call_id="a"))
    assert "hello" in [message.text for message in (await leased.current_view()).messages]
    erased = (await store.history("chat"))[0]
    erase = MessageErased(erasing=Erasing(messages=(replace(erased, parts=(), erased=True),)))
    await store.change("chat", plans.plan(plans.move(erase)))
    await leased.fire(DONE)
    assert "hello" not in [message.text for message in (await leased.current_view()).messages]
    await store.close()


@pytest.mark.parametrize("moved", MOVES)
async def test_late_tool_start_checks_the_lease(database: Path, moved: str) -> None:
    leased, clock, store = held(database)
    announced: list[Facts] = []
    leased.runtime.writer.broadcaster.observe(announced.append)
    await leased.assert_tools_may_start()
    assert store.asked == 0, "a moment after a commit there is no need to look"
    clock.advance(0.02)
    await leased.assert_tools_may_start()
    assert store.asked == 1
    store.found = replace(leased.facts, version=7, **MOVES[moved])
    for store.stale in (True, False):  # the second answer is cached
        with pytest.raises(ConcurrentTransition):
            await leased.assert_tools_may_start()
    assert leased.facts is store.found
    assert announced[0] is store.found, "subscribers in this process need not wait for a notice"


@pytest.mark.parametrize(("seconds", "asked"), [((0.9,), 1), ((10, 0), 2), ((10, 2, 0), 3), ((2,) * 9, 5)])
async def test_old_answer_lets_no_tool_start(database: Path, seconds: tuple[float, ...], asked: int) -> None:
    """An interrupt may have come while the network delayed it; a slow store is asked a few times."""
    leased, clock, store = held(database)
    clock.advance(1)
    slow = iter(seconds)
    store.answers = lambda: clock.advance(next(slow))
    await leased.assert_tools_may_start()
    assert store.asked == asked


async def test_commit_that_was_answered_late_is_no_news(database: Path) -> None:
    """Another process interrupted the chat before the answer arrived."""
    store, leased = await executing_at(database)
    clock = cast("ManualClock", leased.runtime.clock)

    class Late(Delegate):
        async def change(self, chat_id: str, plan: Any, **options: Any) -> Any:
            committed = await store.change(chat_id, plan, **options)
            await store.change(chat_id, plans.plan(STOP))
            clock.advance(10)
            return committed

    leased.runtime.writer.store = cast("Any", Late(store))
    with pytest.raises(ConcurrentTransition):
        await leased.fire(CallStarted(token=1, call_id="a"))
    assert (leased.facts, leased.facts.state) == (await store.facts("chat"), ChatState.interrupted)
    await store.close()


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({"lease": None}, True),
        ({"lease": Lease("v", 2)}, True),
        ({"lease": Lease("w", 2)}, True),
        ({"history_version": 9}, True),
        ({"state": ChatState.interrupted}, False),
    ],
)
async def test_view_of_a_moved_chat_is_not_used(database: Path, change: dict[str, Any], *, is_news: bool) -> None:
    """The caller then knows the chat's new position, and does not start the same job again."""
    leased, _, store = held(database)
    store.found = replace(leased.facts, version=7, **change)
    if is_news:
        with pytest.raises(ConcurrentTransition):
            await leased.current_view()
        assert (leased.facts, leased.view) == (store.found, None)
    else:
        view = await leased.current_view()
        assert await leased.current_view() is view
