"""What a store promises about what chats share: the clock, budgets, rates, numbered commits and their consumers."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import anyio
from msgspec.structs import replace

from turnwise.persistence.protocol import ChatStore
from turnwise.states.arguments import StepReply
from turnwise.states.budgets import Amount, Funds, StoredBudget, key_of_chat, key_of_owner
from turnwise.states.decide import Decision, decide
from turnwise.states.facts import Facts
from turnwise.states.messages import ScheduledMessage, TextPart
from turnwise.states.triggers import (
    Archived,
    Claimed,
    Schedule,
    ScheduleFired,
    SendMessage,
    StepFinished,
    TransitionContext,
    Trigger,
)
from turnwise.states.usage import Usage
from turnwise.testing.conformance import plans

_WORDS = (TextPart(text="wake up"),)
_REACHED = 7
"""The number of a commit."""
_OF_ANN = key_of_owner("ann")


def _schedule(name: str, *, seconds: float) -> plans.Move:
    def made(facts: Facts, now: datetime) -> Decision:
        message = ScheduledMessage(id=name, parts=_WORDS, due=now + timedelta(seconds=seconds))
        return plans.move(Schedule(message=message))(facts, now)

    return made


def _fire(facts: Facts, now: datetime) -> Decision:
    due = next(one for one in facts.schedules if one.due <= now)
    return plans.move(ScheduleFired(message=due))(facts, now)


class _Paid:
    """A plan of a chat that spends budgets."""

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger
        self.funds: Funds | None = None

    def __call__(self, facts: Facts, now: datetime, funds: Funds | None = None) -> Sequence[Decision]:
        self.funds = funds
        trigger = self._trigger
        if isinstance(trigger, StepFinished) and facts.lease is not None:
            trigger = StepFinished(token=facts.lease.token, reply=trigger.reply)
        return [decide(facts, trigger, TransitionContext(now=now, limits=plans.LIMITS, funds=funds))]


def _given(budget: StoredBudget, _stored: StoredBudget | None, _now: datetime) -> StoredBudget:
    return budget


class SharingConformance:
    """What belongs to no single chat: each change of it is whole, and two changes never overwrite each other."""

    async def test_chats_to_wake_are_listed_until_their_message_is_sent(self, store: ChatStore) -> None:
        """What is due later, or was taken back, wakes no chat; nor does the message that was sent."""
        await plans.created(store, "due", _schedule("s", seconds=0))
        await plans.created(store, "later", _schedule("s", seconds=3600))
        await plans.created(store, "archived", _schedule("s", seconds=0), plans.move(Archived()))
        assert (await store.overdue(limit=10)).to_wake == ("due",)
        await store.change("due", plans.plan(_fire))
        assert (await store.overdue(limit=10)).to_wake == ()
        assert [message.text for message in await store.history("due")] == ["wake up"]
        assert [one.id for one in (await store.facts("later")).schedules] == ["s"]

    async def test_budgets_are_reserved_and_settled_with_the_call(self, store: ChatStore) -> None:
        """In the commit that begins the call and in the one that ends it; only of the owner whose chat it is."""
        await plans.created(store, "c", owner="ann")
        await plans.created(store, "other", plans.send("hello"), owner="bob")
        await store.change_budget(_OF_ANN, partial(_given, StoredBudget(owner="ann", tokens=100_000)))
        await store.change("c", _Paid(SendMessage(parts=_WORDS)))
        await store.claim(_Paid(Claimed(worker="worker")), runs=plans.RUNS, limit=5)
        (budget,) = await store.budgets(keys=[_OF_ANN])
        assert set(budget.reservations) == {"c"}
        reply = StepReply(parts=_WORDS, usage=Usage(input_tokens=30, output_tokens=12))
        await store.change("c", _Paid(StepFinished(token=plans.HOLDER, reply=reply)))
        (budget,) = await store.budgets(keys=None)
        assert (budget.reservations, budget.spent) == ({}, Amount(42))

    async def test_plans_get_the_budgets_of_their_chat(self, store: ChatStore) -> None:
        """Its own and its owner's; a plan of a chat without budgets gets none."""
        await plans.created(store, "c", owner="ann")
        await plans.created(store, "free")
        for budget in (StoredBudget(owner="ann", tokens=9), StoredBudget(chat_id="c", tokens=9)):
            await store.change_budget(budget.key, partial(_given, budget))
        seen: dict[str, Funds | None] = {}
        for chat_id in ("c", "free"):
            plan = _Paid(Archived())
            await store.change(chat_id, plan)
            seen[chat_id] = plan.funds
        spends = {chat_id: funds and {budget.key for budget in funds.budgets} for chat_id, funds in seen.items()}
        assert spends == {"c": {_OF_ANN, key_of_chat("c")}, "free": None}
        await store.delete("c", lambda _read, _now: None, actor="operator")
        assert [budget.key for budget in await store.budgets(keys=None)] == [_OF_ANN]

    async def test_changes_of_a_budget_follow_one_another(self, store: ChatStore) -> None:
        """None writes over what another has counted; a change that returns nothing removes the budget."""

        def count(stored: StoredBudget | None, _now: datetime) -> StoredBudget:
            budget = stored or StoredBudget(owner="ann", tokens=9)
            return replace(budget, spent=budget.spent + Amount(1))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(store.change_budget, _OF_ANN, count)
        assert [budget.spent for budget in await store.budgets(keys=[_OF_ANN])] == [Amount(10)]
        assert await store.change_budget(_OF_ANN, lambda _stored, _now: None) is None
        assert await store.budgets(keys=None) == []

    async def test_a_bucket_gives_no_more_than_it_holds(self, store: ChatStore) -> None:
        """However many draw at once; another bucket is another's."""
        drawn: list[int] = []

        async def draw() -> None:
            taken, _ = await store.draw("ann", wanted=3, per_second=0.000_001, burst=10)
            drawn.append(taken)

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(draw)
        assert sorted(drawn) == [0, 0, 1, 3, 3, 3]
        assert (await store.draw("bob", wanted=3, per_second=0.000_001, burst=10))[0] == max(drawn)

    async def test_every_commit_has_a_higher_number(self, store: ChatStore) -> None:
        """So that a reader who has seen one skips none: each chat is found under its last one, a deleted one, too."""
        for chat_id in ("a", "b"):
            await plans.created(store, chat_id, plans.send("hello"), owner="ann")
        first = {change.chat_id: change.number for change in await store.changes(after=0, limit=10)}
        assert sorted(first) == ["a", "b"]
        await store.delete("a", lambda _read, _now: None, actor="operator")
        later = await store.changes(after=max(first.values()), limit=10)
        assert [(change.chat_id, change.chat) for change in later] == [("a", None)]
        assert (await store.numbers()).last == later[-1].number
        assert await store.changes(after=0, limit=10, seen=[change.number for change in later], owner="bob") == []

    async def test_the_events_of_later_commits_are_found(self, store: ChatStore) -> None:
        """In order, of the kinds that are wanted, and each by itself."""
        await plans.created(store, "c", plans.send("hello"))
        (seen,) = await store.changes(after=0, limit=1)
        await store.change("c", plans.plan(plans.send("again")))
        found = await store.changed_events("c", after=seen.number, seq=0, kinds=(), limit=100)
        stored = await store.events("c", after=0, limit=100)
        assert [one.event for one in found] == stored[-len(found) :]
        assert len(found) < len(stored)
        messages = await store.changed_events("c", after=0, seq=0, kinds=["message"], limit=100)
        assert [one.event for one in messages] == [event for event in stored if event.kind == "message"]
        one = await store.changed_event("c", found[0].seq)
        assert one == found[0]
        assert await store.changed_event("c", 1000) is None
        assert await store.changed_events("no", after=0, seq=0, kinds=(), limit=1) == []

    async def test_one_worker_at_a_time_delivers_for_a_consumer(self, store: ChatStore) -> None:
        """The next goes on where the last one stored its position; a token that is dead moves nothing."""
        held = await store.hold_consumer("them", "first", seconds=60, from_now=False)
        assert held is not None
        assert held.position == 0
        assert await store.hold_consumer("them", "second", seconds=60, from_now=False) is None
        assert not await store.drop_consumer("them")
        assert await store.advance_consumer("them", "first", held.token, position=_REACHED, seconds=0)
        taken = await store.hold_consumer("them", "second", seconds=60, from_now=False)
        assert taken is not None
        assert (taken.position, taken.token > held.token) == (_REACHED, True)
        assert not await store.advance_consumer("them", "first", held.token, position=3, seconds=60)
        await store.release_consumer("them", "first", held.token)
        assert [(one.name, one.position, one.delivering) for one in await store.consumers()] == [
            ("them", _REACHED, True)
        ]
        await store.release_consumer("them", "second", taken.token)
        assert await store.drop_consumer("them")
        assert await store.consumers() == []

    async def test_a_new_consumer_may_begin_with_the_next_commit(self, store: ChatStore) -> None:
        """A known one goes on, with either option."""
        await plans.created(store, "c", plans.send("hello"))
        last = (await store.numbers()).last
        for name, from_now, position in (("late", True, last), ("early", False, 0), ("late", False, last)):
            held = await store.hold_consumer(name, "worker", seconds=0, from_now=from_now)
            assert held is not None
            assert held.position == position

    async def test_what_a_consumer_could_not_handle_is_kept(self, store: ChatStore) -> None:
        """Until it was delivered after all, or its chat is deleted; it comes again when that is asked for."""
        for chat_id in ("a", "b"):
            await plans.created(store, chat_id, plans.send("hello"))
            await store.set_aside("them", chat_id, 1, "not this one")
            await store.set_aside("them", chat_id, 2, "nor this")
        await store.set_aside("them", "no", 1, "there is no such chat")
        aside = await store.undelivered("them", limit=10)
        every = [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
        assert [(one.chat_id, one.seq) for one in aside if not one.due] == every
        assert await store.deliver_again("them", chat_id="a", seq=2) == 1
        assert [*await store.due_again("them", limit=10)] == [("a", 2)]
        await store.set_aside("them", "a", 2, "it failed again")
        assert [*await store.due_again("them", limit=10)] == []
        assert await store.deliver_again("them", chat_id=None, seq=None) == len(every)
        await store.delivered_after_all("them", "a", 2)
        await store.delete("b", lambda _read, _now: None, actor="operator")
        assert [(one.chat_id, one.seq) for one in await store.undelivered("them", limit=10)] == [("a", 1)]
