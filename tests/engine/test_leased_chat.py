"""What a worker knows of a chat that it holds: how long to wait, whether it still holds it, what it has begun."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.leased import held_by_nobody_else
from support.life import BLANK, NOW
from support.runtimes import runtime_of
from support.stores import Delegate, stored_at
from turnwise import Settings
from turnwise.engine import leased_chat
from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.agents import Agents
from turnwise.engine.leased_chat import ChatMoved, LeasedChat
from turnwise.persistence.conformance import plans
from turnwise.persistence.protocol import ChatStore, Committed, Plan
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.arguments import Erasing
from turnwise.states.calls import CallOutcome
from turnwise.states.decide import job_of
from turnwise.states.errors import StaleLease, StoreError
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, Lease
from turnwise.states.messages import Message
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.triggers import (
    CallFinished,
    CallStarted,
    Configured,
    Failed,
    Interrupt,
    LeaseExpired,
    MessageErased,
    ToolsFinished,
)
from turnwise.testing import ManualClock


class Asked(Delegate):
    """A store that is told where the chat is, and counts how often it is asked."""

    def __init__(self, store: Any, facts: Facts) -> None:
        super().__init__(store)
        self.found = facts
        self.stale = False
        self.asked = 0
        self.away = 0
        self.told: list[Message] = []
        self.read: list[int] = []
        self.known_calls: set[str] = set()

    async def facts(self, chat_id: str) -> Facts:
        assert chat_id == self.found.chat_id
        return self.found

    async def prompt(self, chat_id: str) -> list[Any]:
        assert chat_id == self.found.chat_id
        return []

    async def history(self, chat_id: str, *, after: int = 0) -> list[Message]:
        assert chat_id == self.found.chat_id
        self.read.append(after)
        return [message for message in self.told if message.position > after]

    async def calls(self, chat_id: str, call_ids: Sequence[str]) -> dict[str, Any]:
        assert chat_id == self.found.chat_id
        return dict.fromkeys(self.known_calls & set(call_ids))

    async def journal(self, chat_id: str, token: int, state: ChatState, events: Sequence[Any]) -> Any:
        assert (chat_id, token, state, events) == (self.found.chat_id, 1, ChatState.executing_tools, ())
        self.asked += 1
        if self.asked <= self.away:
            raise StoreError("away", passing=True)
        if self.stale:
            raise StaleLease(chat_id, token, None)
        return ()


def held(database: Path, **more: Any) -> tuple[LeasedChat, ManualClock, Asked]:
    """Return a chat that is held under the token 1, of version 5."""
    clock = ManualClock(NOW)
    facts = replace(BLANK, **{"version": 5, "lease": Lease("w", 1), "state": ChatState.executing_tools, **more})
    store = Asked(stored_at(database, clock), facts)
    return held_by_nobody_else(runtime_of(store, clock), facts), clock, store


def commit_of(facts: Facts) -> Committed:
    return Committed(before=facts, facts=facts, decisions=(), events=(), at=NOW)


async def test_what_was_committed_before_what_is_known_is_no_news(database: Path) -> None:
    leased, _, _ = held(database)
    known = leased.facts
    leased.observe(replace(known, version=4))
    assert leased.facts is known
    for version in (5, 6, 9):
        newer = replace(known, version=version)
        leased.observe(newer)
        assert leased.facts is newer


@pytest.mark.parametrize(("lease", "lost"), [(Lease("w", 1), False), (Lease("w", 2), True), (None, True)])
async def test_a_lease_is_held_only_under_its_own_token(database: Path, lease: Lease | None, *, lost: bool) -> None:
    leased, _, _ = held(database, lease=lease)
    assert leased.lost is lost


MOVES: dict[str, dict[str, Any]] = {
    "interrupted": {"state": ChatState.interrupted},
    "another's": {"lease": Lease("v", 2)},
    "nobody's": {"lease": None},
}


STOP = plans.move(Interrupt())


@pytest.mark.parametrize("moved", MOVES)
async def test_no_tool_starts_once_the_chat_is_known_to_have_moved(database: Path, moved: str) -> None:
    leased, clock, store = held(database)
    leased.observe(replace(leased.facts, version=6, **MOVES[moved]))
    for passed in (0, 100):
        clock.advance(passed)
        with pytest.raises(ChatMoved):
            await leased.assert_tools_may_start()
    assert store.asked == 1, "a moment after a commit nobody has to look"


async def test_a_tool_waits_for_a_store_that_is_away(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is recorded by then: to give the chat up now would leave a call of which nobody knows the outcome."""
    monkeypatch.setattr(leased_chat, "AGAIN_AFTER", 0)
    leased, clock, store = held(database)
    clock.advance(100)
    store.away = 2
    with leased.runtime.applier.broadcaster.listen(leased.chat_id) as follower:
        await leased.assert_tools_may_start()
        with pytest.raises(StoreError, match="away"):
            await follower.wait()
    assert store.asked == 3


async def executing_at(database: Path) -> tuple[ChatStore, LeasedChat]:
    """Return an open store, and its one chat in the hands of a worker that runs two tools."""
    clock = ManualClock(NOW)
    store = stored_at(database, clock)
    await store.open()
    moves = (plans.send("hello"), plans.claim("w"), plans.start(), plans.reply("", local=["a", "b"]))
    before = (await plans.created(store, "chat", *moves)).facts
    return store, held_by_nobody_else(runtime_of(store, clock), before, job=job_of(before))


async def test_whoever_finds_the_lease_lost_has_not_failed_even_if_another_has_found_it_before(database: Path) -> None:
    """Two tools end, one after the other, after another worker has taken the chat over in the same state."""
    store, leased = await executing_at(database)
    for move in (plans.move(LeaseExpired(token=plans.HOLDER)), plans.claim("v")):
        await store.change("chat", plans.plan(move))
    for _ in range(2):
        with pytest.raises(ChatMoved):
            await leased.fire(ToolsFinished(token=1))
    await store.close()


@pytest.mark.parametrize(("now", "most"), [("other", 2), ("default", 7), ("of others", 7)])
async def test_what_a_job_commits_is_judged_by_a_declared_agent_and_not_by_the_engines_defaults(
    database: Path, now: str, most: int
) -> None:
    """By the chat's, if it is here: or else by the one that was run. The engine's settings may be those of neither."""
    declared = [
        Agent(name, ScriptedModel([]), settings=Settings(max_steps=steps))
        for name, steps in (("default", 7), ("other", 2))
    ]
    store = (await executing_at(database))[0]
    agents = Agents(declared, Settings(max_steps=1))
    facts = await store.facts("chat")
    leased = held_by_nobody_else(runtime_of(store, ManualClock(NOW), agents=agents), facts, job=job_of(facts))
    if now != "default":
        await store.change("chat", plans.plan(plans.move(Configured(agent=now))))
    limits: set[int | None] = set()
    with pytest.raises(ChatMoved):
        await leased.fire(lambda chain: limits.add(chain.limits.max_steps))
    assert limits == {most}
    await store.close()


@pytest.mark.parametrize("what", ["fire", "show"])
@pytest.mark.parametrize("moved", ["stopped", "another's"])
async def test_who_comes_too_late_writes_nothing_and_knows_where_the_chat_is_now(
    database: Path, moved: str, what: str
) -> None:
    """It would begin the same job again, and ask the model once more."""
    store, leased = await executing_at(database)
    later = [plans.move(LeaseExpired(token=plans.HOLDER)), plans.claim("v")] if moved == "another's" else [STOP]
    for move in later:
        await store.change("chat", plans.plan(move))
    now = await store.facts("chat")
    late = leased.fire(ToolsFinished(token=1)) if what == "fire" else leased.show(ChatState.executing_tools, ())
    with pytest.raises(ChatMoved):
        await late
    assert (leased.facts, leased.lost) == (now, moved == "another's")
    assert await store.facts("chat") == now
    await store.close()


DONE = CallFinished(
    token=1, outcome=CallOutcome(call_id="a", status=CallStatus.succeeded, output="done", is_error=False)
)


async def test_what_is_refused_because_it_was_done_already_has_moved_the_chat_and_has_not_failed(
    database: Path,
) -> None:
    """The first answer of the store may have been lost, and the chat is in the same state, under the same lease."""
    store, leased = await executing_at(database)
    await leased.fire(CallStarted(token=1, call_id="a"))
    await store.change("chat", plans.plan(plans.move(DONE)))
    with pytest.raises(ChatMoved):
        await leased.fire(DONE)
    assert leased.facts == await store.facts("chat")
    await store.close()


async def test_messages_that_others_have_erased_are_not_seen_after_the_next_commit(database: Path) -> None:
    """It adds a message of its own to what the model sees, which was read before."""
    store, leased = await executing_at(database)
    await leased.fire(CallStarted(token=1, call_id="a"))
    assert "hello" in [message.text for message in (await leased.current_view()).messages]
    said = (await store.history("chat"))[0]
    erase = MessageErased(erasing=Erasing(messages=(replace(said, parts=(), erased=True),)))
    await store.change("chat", plans.plan(plans.move(erase)))
    await leased.fire(DONE)
    assert "hello" not in [message.text for message in (await leased.current_view()).messages]
    await store.close()


class Slow(Delegate):
    """A store whose answer is on its way as others commit, and the holder is told."""

    leased: LeasedChat

    async def facts(self, chat_id: str) -> Facts:
        facts: Facts = await self._store.facts(chat_id)
        self.leased.observe(replace(facts, version=facts.version + 1))
        return facts


@pytest.mark.parametrize("what", ["fire", "show"])
async def test_who_comes_too_late_forgets_nothing_that_was_told_while_the_store_was_asked(
    database: Path, what: str
) -> None:
    store, leased = await executing_at(database)
    slow = Slow(store)
    late = slow.leased = held_by_nobody_else(runtime_of(slow, ManualClock(NOW)), leased.facts, job=leased.job)
    for move in (plans.move(LeaseExpired(token=plans.HOLDER)), plans.claim("v")):
        await store.change("chat", plans.plan(move))
    with pytest.raises(ChatMoved):
        await (late.fire(ToolsFinished(token=1)) if what == "fire" else late.show(ChatState.executing_tools, ()))
    assert late.facts.version == (await store.facts("chat")).version + 1
    await store.close()


class Overtaken(Delegate):
    """A store in which others stop the chat once a plan has decided: it has to decide again."""

    async def change(self, chat_id: str, plan: Plan, **more: Any) -> Committed:
        (self.never_was,) = plan(await self._store.facts(chat_id), NOW)
        await self._store.change(chat_id, plans.plan(STOP))
        return await self._store.change(chat_id, plan, **more)


async def test_a_plan_that_others_have_overtaken_leaves_nothing_behind(database: Path) -> None:
    store, leased = await executing_at(database)
    overtaken = Overtaken(store)
    late = held_by_nobody_else(runtime_of(overtaken, ManualClock(NOW)), leased.facts, job=leased.job)
    with pytest.raises(ChatMoved):
        await late.fire(Failed(token=1, error=ErrorInfo(kind="internal", message="planted")))
    assert not late.has_committed(overtaken.never_was.facts)
    assert late.facts == await store.facts("chat")
    await store.close()


@pytest.mark.parametrize("passed", [0.02, 1, 3600])
@pytest.mark.parametrize("moved", MOVES)
async def test_a_tool_that_starts_later_than_a_moment_after_the_last_look_looks_again(
    database: Path, moved: str, passed: float
) -> None:
    leased, clock, store = held(database)
    told: list[Facts] = []
    leased.runtime.applier.broadcaster.observe(told.append)
    await leased.assert_tools_may_start()
    assert store.asked == 0
    clock.advance(passed)
    await leased.assert_tools_may_start()
    assert store.asked == 1
    store.stale, store.found = True, replace(leased.facts, version=7, **MOVES[moved])
    with pytest.raises(ChatMoved):
        await leased.assert_tools_may_start()
    assert leased.facts is store.found
    assert told == [store.found], "whoever follows the chat here need not wait for a notice"


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
async def test_a_history_that_was_read_is_used_only_if_the_chat_has_not_moved_meanwhile(
    database: Path, change: dict[str, Any], *, is_news: bool
) -> None:
    """Who finds that it has knows where it is now: it does not begin the same job again."""
    leased, _, store = held(database)
    store.found = replace(leased.facts, version=7, **change)
    if is_news:
        with pytest.raises(ChatMoved):
            await leased.current_view()
        assert (leased.facts, leased.view) == (store.found, None)
    else:
        view = await leased.current_view()
        assert await leased.current_view() is view
