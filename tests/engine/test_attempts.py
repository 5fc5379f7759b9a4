"""When the next attempt may begin, and whose it is."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from support.leased import held_by_nobody_else
from support.life import BLANK, NOW
from support.runtimes import runtime_of
from support.stores import Delegate, stored_at
from turnwise.engine.jobs.attempts import begin_attempt, refuse_endless_attempts, wait_for_retry
from turnwise.engine.leased_chat import ChatMoved, LeasedChat
from turnwise.persistence.conformance import plans
from turnwise.persistence.protocol import Committed, Plan
from turnwise.states.decide import job_of
from turnwise.states.errors import ModelError
from turnwise.states.facts import MOST_LOST, Facts, Lease
from turnwise.states.triggers import Configured
from turnwise.testing import ManualClock


def commit_of(facts: Facts) -> Committed:
    return Committed(before=facts, facts=facts, decisions=(), events=(), at=NOW)


@pytest.mark.parametrize(
    ("due", "delay", "passed", "waits"),
    [
        (10, 10, 0, 10),
        (10, 10, 3, 7),
        (4, 10, 0, 4),
        (100, 10, 0, 10),
        (100, 10, 3, 7),
        (10, 10, 10, None),
        (10, 10, 300, None),
        (-50, 10, 0, None),
        (None, 0, 0, None),
    ],
)
@pytest.mark.parametrize("step", [-3600, 0, 3600])
async def test_retry_waits_until_due_and_at_most_its_delay(
    database: Path, step: float, due: float | None, delay: float, passed: float, waits: float | None
) -> None:
    """Whatever is done to the time meanwhile, or was before this worker took over."""
    clock = ManualClock(NOW)
    at = None if due is None else NOW + timedelta(seconds=due)
    facts = replace(BLANK, lease=Lease("w", 1), step=replace(BLANK.step, retry_at=at, retry_delay=delay))
    leased = held_by_nobody_else(runtime_of(stored_at(database, clock), clock), facts)
    leased.take(commit_of(facts))
    clock.step(step)
    clock.advance(passed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_retry, leased)
        await anyio.wait_all_tasks_blocked()
        assert clock.next_timer == (None if waits is None else clock.now() + timedelta(seconds=waits))
        await clock.advance(waits or 0)


@pytest.mark.parametrize("lost", [MOST_LOST - 1, MOST_LOST, MOST_LOST + 1])
def test_too_many_lost_attempts_are_refused(lost: int) -> None:
    step = replace(BLANK.step, lost=lost)
    if lost < MOST_LOST:
        refuse_endless_attempts(step)
        return
    with pytest.raises(ModelError, match=f"{lost} attempts .* not tried again") as refused:
        refuse_endless_attempts(step)
    assert (refused.value.kind, refused.value.retryable) == ("server_error", False)


@pytest.mark.parametrize("began", ["this one", "another"])
async def test_new_attempt_starts_unless_one_is_held(database: Path, began: str) -> None:
    clock = ManualClock(NOW)
    store = stored_at(database, clock)
    await store.open()
    begun = await plans.created(store, "chat", plans.send("hello"), plans.claim("w"), plans.start())
    leased = held_by_nobody_else(runtime_of(store, clock), begun.facts, job=job_of(begun.facts))
    if began == "this one":
        leased.take(begun)
    first = leased.attempt
    held = await begin_attempt(leased)
    assert held is leased.attempt
    assert (held.step, held.attempt) == (leased.facts.step.number, leased.facts.step.attempt)
    assert (held is first, held.attempt) == ((True, 1) if began == "this one" else (False, 2))
    await store.close()


class Overtaken(Delegate):
    """A store in which another worker has taken over by the time that a commit is answered."""

    leased: LeasedChat

    async def change(self, chat_id: str, plan: Plan, **more: Any) -> Committed:
        committed: Committed = await self._store.change(chat_id, plan, **more)
        after = committed.facts
        step = replace(after.step, attempt=after.step.attempt + 1)
        self.leased.observe(replace(after, version=after.version + 3, lease=Lease("v", 2), step=step))
        return committed


async def test_overtaken_worker_holds_no_attempt(database: Path) -> None:
    """Another worker has it by then, and has begun an attempt of its own: this one must not stream into that."""
    clock = ManualClock(NOW)
    store = stored_at(database, clock)
    await store.open()
    claimed = await plans.created(store, "chat", plans.send("hello"), plans.claim("w"))
    overtaken = Overtaken(store)
    leased = held_by_nobody_else(runtime_of(overtaken, clock), claimed.facts, job=job_of(claimed.facts))
    overtaken.leased = leased
    with pytest.raises(ChatMoved):
        await begin_attempt(leased)
    await store.close()


TO_OTHER = plans.plan(plans.move(Configured(agent="other")))


class HandedOn(Delegate):
    """A store in which others give the chat to another agent just before or just after a commit."""

    leased: LeasedChat
    when = ""

    async def change(self, chat_id: str, plan: Plan, **more: Any) -> Committed:
        if self.when == "before":
            await self._store.change(chat_id, TO_OTHER)
        committed: Committed = await self._store.change(chat_id, plan, **more)
        if self.when == "after":
            self.leased.observe((await self._store.change(chat_id, TO_OTHER)).facts)
        return committed


@pytest.mark.parametrize("when", ["earlier", "before", "after"])
async def test_no_attempt_for_an_agent_of_other_workers(database: Path, when: str) -> None:
    """A chat may be given to it while the next attempt is waited for: neither its prompt nor its tools are here."""
    clock = ManualClock(NOW)
    store = stored_at(database, clock)
    await store.open()
    claimed = await plans.created(store, "chat", plans.send("hello"), plans.claim("w"))
    handing = HandedOn(store)
    leased = held_by_nobody_else(runtime_of(handing, clock), claimed.facts, job=job_of(claimed.facts))
    own = leased.configuration
    handing.leased, handing.when = leased, when
    if when == "earlier":
        leased.observe((await store.change("chat", TO_OTHER)).facts)
    with pytest.raises(ChatMoved):
        await begin_attempt(leased)
    assert leased.configuration is own
    assert leased.facts.profile.agent == "other"
    assert leased.facts.step.attempt_open is (when == "after"), "as the worker knows that gives the chat back now"
    await store.close()
