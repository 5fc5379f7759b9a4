"""A submission of tool results counts once, for any number of repetitions, at any time, in any process.

The same contents, or some of them, get the first receipt and change nothing, in any later state; other contents
conflict; late results are refused and their calls closed; of concurrent ones exactly one is accepted. Seen red: a
replay that does not compare contents, or not whether they are an error; a late submission that leaves its call open for
a sweep to close; results of two submissions that pass for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from support.lives import STORES, StoredLife, Walk, lives_in
from turnwise import ChatState, ConflictingReplay, DeadlineExpired, IllegalTransition, SubmissionReceipt, ToolResult
from turnwise.states import triggers as t
from turnwise.states.errors import ToolResultMismatch
from turnwise.states.names import CallStatus

pytestmark = pytest.mark.hypothesis
WAYS = ("replayed", "conflicting", "late", "raced", "raced with other contents", "raced with an interrupt", "wrong")
RACERS = 4
Results = tuple[ToolResult, ...]


@pytest.mark.parametrize("place", STORES)
def test_submissions_count_once(place: str, request: pytest.FixtureRequest) -> None:
    def live(walk: Walk) -> None:
        walk.chance_of_calls, walk.chance_of_overflow = 0.9, 0
        Client(walk).live(rounds=6)

    tools = ("client", "deadline", "approval", "client", "local")
    met = lives_in(place, request).each(live, sqlite=10, postgres=3, tools=tools, max_steps=None)
    least = {"sqlite": 50, "postgres": 10}[place]
    assert {way: met[way] for way in WAYS if met[way] < (least if way in WAYS[:4] else least // 10)} == {}


@dataclass
class Submission:
    """Accepted results, and their receipt."""

    results: Results
    receipt_id: str


class Client:
    """Submits results to both processes of a chat, and remembers the receipts."""

    def __init__(self, walk: Walk) -> None:
        assert isinstance(walk.life, StoredLife)
        self.walk = walk
        self.life = walk.life
        self.random = walk.random
        self.met = walk.met
        self.accepted: list[Submission] = []
        self.expired: list[Results] = []

    def live(self, rounds: int) -> None:
        for _ in range(rounds):
            if not self.walk.reach(ChatState.requires_action):
                return
            self.answer()
            for _ in range(2):
                self.walk.meddle() if self.walk.chance(0.4) else self.walk.go_on()
                self.life.by = self.random.randrange(2)
                self.life.read()
                self.submit_again()
            self.submit_to_no_call()
            if self.walk.chance(0.1):
                self.life.database.crash(self.random.randrange(2))

    def submit(self, results: Results, process: int = 0) -> Any:
        return self.life.database.processes[process % 2].commands.submit_tool_results(self.life.chat_id, results)

    # While the client is asked

    def answer(self) -> None:
        results = self.walk.results()
        self.submit_wrongly(results)
        timed = any(call.deadline for call in self.life.facts.open_calls)
        ways = [self.race, self.race, self.race_with_others, self.race_with_interrupt]
        (self.submit_late if timed and self.walk.chance(0.5) else self.random.choice(ways))(results)
        self.life.read()
        self.check_calls()

    def submit_wrongly(self, results: Results) -> None:
        wrong = self.random.choice([results[1:], results * 2, (*results, ToolResult("nobody", 1))])
        refused = self.life.unchanged(self.submit(wrong))
        assert isinstance(refused, ToolResultMismatch) or not wrong
        self.met["wrong"] += bool(wrong)

    def race(self, results: Results) -> None:
        """The same contents, many at once: one effect, one receipt."""
        receipts = self.life.database.at_once(*(self.submit(results, number) for number in range(RACERS)))
        assert [receipt.replayed for receipt in receipts].count(False) == 1
        assert len({receipt.receipt_id for receipt in receipts}) == 1
        self.accepted.append(Submission(results, receipts[0].receipt_id))
        self.met["raced"] += RACERS

    def race_with_others(self, results: Results) -> None:
        """One is accepted; equal contents are its replay, and others conflict with it."""
        bodies = [results, self.changed(results), results, self.changed(results)]
        outcomes = self.life.database.at_once(*(self.submit(body, number) for number, body in enumerate(bodies)))
        (winner,) = [
            place for place, one in enumerate(outcomes) if isinstance(one, SubmissionReceipt) and not one.replayed
        ]
        for body, outcome in zip(bodies, outcomes, strict=True):
            if body == bodies[winner]:
                assert outcome.receipt_id == outcomes[winner].receipt_id
            else:
                assert isinstance(outcome, ConflictingReplay)
        self.accepted.append(Submission(bodies[winner], outcomes[winner].receipt_id))
        self.met["raced with other contents"] += 1

    def race_with_interrupt(self, results: Results) -> None:
        """Each call has one result, the client's or the interrupt's, and the receipt shows which."""
        commands = self.life.database.processes[1].commands
        first, _ = self.life.database.at_once(
            self.submit(results), commands.interrupt(self.life.chat_id, reason="stop")
        )
        if isinstance(first, SubmissionReceipt):
            self.accepted.append(Submission(results, first.receipt_id))
        else:
            assert isinstance(first, ConflictingReplay)
            assert isinstance(self.life.unchanged(self.submit(results)), ConflictingReplay)
        self.met["raced with an interrupt"] += 1

    def submit_late(self, results: Results) -> None:
        """The deadline has passed. With or without a sweep, the call is closed and the result refused."""
        self.life.wait(5)
        due = [call.call_id for call in self.life.facts.open_calls if call.is_due(self.life.now)]
        if self.walk.chance(0.4):
            self.life.fire(t.DeadlinePassed)
        (late,) = self.life.database.at_once(self.submit(results))
        assert isinstance(late, DeadlineExpired)
        assert sorted(late.call_ids) == sorted(due)
        calls = self.life.do(self.life.store.calls(self.life.chat_id, due))
        assert {call.status for call in calls.values()} == {CallStatus.timed_out}
        self.met["late"] += 1
        self.expired.append(tuple(result for result in results if result.call_id in due))
        if self.walk.chance(0.5):
            self.life.read()
            self.submit_again_late()

    # Later, in any state

    def submit_again(self) -> None:
        """Repeat an accepted submission: unchanged, in part, with other contents, and mixed with another."""
        if self.expired and self.walk.chance(0.3):
            self.submit_again_late()
        if not self.accepted:
            return
        archives = self.life.facts.resting and self.life.facts.state is not ChatState.requires_action
        if archives and self.walk.chance(0.3):
            self.life.fire(t.Archived)
        chosen = self.random.choice(self.accepted)
        some = tuple(self.random.sample(chosen.results, self.random.randint(1, len(chosen.results))))
        for again in (chosen.results, some):
            receipt = self.life.unchanged(self.submit(again, self.random.randrange(2)))
            assert (receipt.replayed, receipt.receipt_id) == (True, chosen.receipt_id)
            self.met["replayed"] += 1
        refusal = self.life.unchanged(self.submit(self.changed(some), self.random.randrange(2)))
        assert isinstance(refusal, ConflictingReplay)
        assert refusal.call_id in {result.call_id for result in some}
        self.met["conflicting"] += 1
        other = self.random.choice(self.accepted)
        if other is not chosen:
            mixed = self.life.unchanged(self.submit((*chosen.results, *other.results)))
            assert not isinstance(mixed, SubmissionReceipt)
        if self.life.facts.archived or archives:
            self.life.read()
            if self.life.facts.archived:
                self.life.fire(t.Unarchived)

    def submit_again_late(self) -> None:
        late = self.life.unchanged(self.submit(self.random.choice(self.expired)))
        assert isinstance(late, DeadlineExpired)
        self.met["late"] += 1

    def submit_to_no_call(self) -> None:
        """Submit a result of an unknown call."""
        refused = self.life.unchanged(self.submit((ToolResult("nobody", 1),)))
        asked = self.life.facts.state is ChatState.requires_action
        assert isinstance(refused, ToolResultMismatch if asked else IllegalTransition)

    def check_calls(self) -> None:
        """Every accepted result is in the history once, unchanged, unless an edit cut it."""
        results = [message.result for message in self.life.messages if message.result]
        assert len({result.call_id for result in results}) == len(results)
        outputs = {result.call_id: result for result in results}
        for result in self.accepted[-1].results if self.accepted else ():
            stored = outputs.get(result.call_id)
            call = self.life.do(self.life.store.calls(self.life.chat_id, [result.call_id]))[result.call_id]
            assert call.answer is not None
            if stored is not None and call.approval is None:
                assert (stored.output, stored.is_error) == (result.output, result.is_error)

    def changed(self, results: Results) -> Results:
        """Return results with another output or error mark in one of them."""
        place = self.random.randrange(len(results))
        call = self.life.do(self.life.store.calls(self.life.chat_id, [results[place].call_id]))[results[place].call_id]
        old = results[place]
        if call.approval is not None:
            new = replace(old, output=not old.output)
        elif self.walk.chance(0.5):
            new = replace(old, is_error=not old.is_error)
        else:
            new = replace(old, output={"other": old.output})
        return (*results[:place], new, *results[place + 1 :])
