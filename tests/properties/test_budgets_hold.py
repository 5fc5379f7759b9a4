"""Budgets: settled and reserved amounts never exceed the limit, and every call settles once.

Two processes claim, answer, cut off, interrupt and crash chats of one owner; the limit is raised and days pass. A call
with a usage report counts that, any other its reservation. Seen red: a reservation that is not clamped to what is left;
a lost attempt that keeps its reservation; one that settles for nothing; PostgreSQL without `FOR UPDATE`.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any, Final

import pytest
from msgspec.structs import replace

from support.exploring import seeds
from support.life import ERROR, PROFILE
from support.lives import RUNS, SETTINGS, STORES, Database, Process, StoredLife, database_in, lives_in, named
from turnwise import BudgetSpent, ChatState
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.transactions.chat_writer import ChatWriter
from turnwise.states import triggers as t
from turnwise.states.budgets import Amount, CallEstimator, StoredBudget, key_of_owner
from turnwise.states.decide import Decision
from turnwise.states.usage import Usage
from turnwise.states.writes import RecordUsage

pytestmark = pytest.mark.hypothesis
S = ChatState
RATES: Final = CallEstimator(max_output_tokens=20, input_price=Decimal("0.001"), output_price=Decimal("0.002"))
LIMITS: Final = SETTINGS.limits(None)
KEY: Final = key_of_owner("anna")


class Spender(StoredLife):
    """A chat of an owner with a budget and known prices."""

    def create(self) -> Decision:
        return self.fire(t.Create, profile=replace(PROFILE, owner="anna"))

    def claim(self) -> Decision:
        claimed = t.Claimed(worker=self.process.name)
        return self._keep(self.do(self.process.writer.change(self.chat_id, claimed, actor=self.process.actor)))


def claiming(process: Process) -> Any:
    """Return a function that claims all waiting chats."""
    return process.writer.claim(t.Claimed(worker=process.name), actor=process.actor, runs=RUNS, limit=5)


def prepare(database: Database, **limits: Any) -> None:
    """Set the owner's budget and the processes' prices."""
    for process in database.processes:
        process.writer = ChatWriter(process.store, Broadcaster(), lambda _: LIMITS, estimator_of=lambda *_: RATES)
    declare(database, **limits)


def declare(database: Database, **limits: Any) -> None:
    def change(stored: StoredBudget | None, _now: object) -> StoredBudget:
        return replace(stored or StoredBudget(owner="anna", per="day"), **limits)

    database.do(database.processes[0].store.change_budget(KEY, change))


def budget_in(database: Database) -> StoredBudget:
    (budget,) = database.do(database.processes[1].store.budgets(keys=[KEY]))
    return budget


class Walk:
    """Draws triggers for the chats of one owner."""

    def __init__(self, database: Database, seed: int, met: Counter[str]) -> None:
        self.database, self.met = database, met
        self.random = Random(seed)  # noqa: S311 - no secret
        prepare(database, tokens=self.random.randrange(100, 400), cost=Decimal("0.4"), spent=Amount(), reservations={})
        self.lives = [Spender(database, f"c{seed}-{number}") for number in range(3)]
        for life in self.lives:
            life.create()

    def step(self) -> None:
        life = self.random.choice(self.lives)
        life.by, before = self.random.randrange(2), budget_in(self.database)
        decided = len(life.decisions)
        try:
            self.go_on(life)
        except BudgetSpent:
            self.met["refused"] += 1
        self.check(before, life, life.decisions[decided:])

    def go_on(self, life: Spender) -> None:
        facts, chance = life.facts, self.random.random()
        if chance < 0.02:
            self.database.clock.advance(86_400)
            self.met["next day"] += 1
        elif chance < 0.05:
            declare(self.database, tokens=(budget_in(self.database).tokens or 0) + 60)
        elif facts.state is S.pending:
            life.claim()
            self.met["ended by a budget"] += life.facts.stop_reason in ("token_budget", "cost_budget")
        elif facts.state is S.streaming and not facts.step.attempt_open:
            life.attempt()
        elif facts.state is S.streaming:
            self.end_call(life, life.facts)
        elif facts.state is S.interrupted and not facts.settled:
            life.settle()
        else:
            life.send("Say a few words, please.")

    def end_call(self, life: Spender, facts: Any) -> None:
        match self.random.randrange(8):
            case 0:
                life.held(t.LeaseExpired)  # the worker is gone: another one takes over
                self.met["crashed"] += 1
            case 1:
                life.interrupt()
            case 2:
                life.discard(self.random.choice([None, self.usage(life)]))
            case 3:
                life.fail()
            case _:
                life.reply(usage=self.usage(life))

    def usage(self, life: Spender) -> Usage:
        """Return a usage within the call's reservation."""
        hold = budget_in(self.database).reservations.get(life.chat_id)
        tokens = 5 if hold is None else self.random.randrange(1, hold.tokens + 1)
        output = min(tokens, self.random.randrange(21))
        cost = RATES.estimate(tokens - output, output).cost if hold is None or hold.cost is None else hold.cost / 2
        return Usage(input_tokens=tokens - output, output_tokens=output, cost=cost)

    def check(self, before: StoredBudget, life: Spender, decisions: list[Decision]) -> None:
        now = budget_in(self.database)
        used = now.spent + now.reserved
        assert used.tokens <= (now.tokens or 0)
        assert used.cost <= (now.cost or 0)
        assert {*now.reservations} == {one.chat_id for one in self.lives if one.facts.step.attempt_open}
        if before.until == now.until:
            held = before.reservations.get(life.chat_id)
            settled = 0
            for usage in (one.usage for each in decisions for one in each.writes if isinstance(one, RecordUsage)):
                known = (usage.input_tokens or 0) + (usage.output_tokens or 0)
                settled += max(known, held.tokens) if usage.partial and held is not None else known
                self.met["settled"] += 1
            assert now.spent.tokens == before.spent.tokens + settled
        self.met["reserved by several"] += len(now.reservations) > 1

    def end(self) -> None:
        for life in self.lives:
            if life.facts.state in (S.pending, S.streaming):
                life.interrupt()
            if not life.facts.settled:
                life.settle()
        assert budget_in(self.database).reservations == {}
        for life in self.lives:
            life.delete()


@pytest.mark.parametrize("place", STORES)
def test_settled_and_reserved_stay_within_the_limit(place: str, request: pytest.FixtureRequest) -> None:
    met: Counter[str] = Counter()
    with database_in(lives_in(place, request).url) as database:
        for seed in seeds({"sqlite": 12, "postgres": 3}[place]):
            with named(seed):
                walk = Walk(database, seed, met)
                for _ in range(80):
                    walk.step()
                walk.end()
    least = {"sqlite": 50, "postgres": 5}[place]
    assert min(met["settled"], met["refused"] + met["ended by a budget"], met["reserved by several"]) >= least, met
    assert min(met["crashed"], met["next day"]) >= least // 5, met


@pytest.mark.parametrize("place", STORES)
def test_two_workers_race_for_the_last_cent(place: str, request: pytest.FixtureRequest) -> None:
    """Two processes claim two chats at once, and the rest of the budget pays for one call."""
    races = {"sqlite": 50, "postgres": 20}[place]
    with database_in(lives_in(place, request).url) as database:
        for race in range(races):
            prepare(database, tokens=1000, cost=Decimal("0.07"), spent=Amount(), reservations={})
            lives = [Spender(database, f"r{race}-{number}") for number in range(2)]
            for life in lives:
                life.create()
                life.send("Say a few words, please.")
            database.at_once(*map(claiming, database.processes))
            for life in lives:
                life.read()
            assert sorted(life.facts.state for life in lives) == [S.streaming, S.waiting]
            assert [life.facts.stop_reason for life in lives if life.facts.state is S.waiting] == ["cost_budget"]
            assert len(budget_in(database).reservations) == 1
            for life in lives:
                life.delete()
            assert budget_in(database).reservations == {}, "a call of a deleted chat is lost, and settled"


def failed(life: Spender) -> t.AttemptDiscarded:
    """Return the end of a call without a usage report: it counts its reservation."""
    token = life.facts.lease.token if life.facts.lease else 0
    return t.AttemptDiscarded(token=token, error=ERROR, delay=1.0, retry_at=life.now, paid=True)


@pytest.mark.parametrize("place", STORES)
def test_calls_that_end_at_once_settle_each(place: str, request: pytest.FixtureRequest) -> None:
    """Two processes settle calls of one budget concurrently; neither overwrites the other's amount."""
    races = {"sqlite": 50, "postgres": 20}[place]
    with database_in(lives_in(place, request).url) as database:
        for race in range(races):
            prepare(database, tokens=10_000, cost=Decimal(1), spent=Amount(), reservations={})
            lives = [Spender(database, f"e{race}-{number}") for number in range(2)]
            for life in lives:
                life.create()
                life.send("Say a few words, please.")
                life.claim()
            reserved = budget_in(database).reserved
            held = zip(database.processes, lives, strict=True)
            ends = [at.writer.change(life.chat_id, failed(life), actor=life.process.actor) for at, life in held]
            database.at_once(*ends)
            budget = budget_in(database)
            assert (budget.reservations, budget.spent) == ({}, reserved)
            for life in lives:
                life.read()
                life.delete()
