"""A chat's life on the pure table: the invariants hold for any triggers in any order."""

from __future__ import annotations

import functools
import operator
from decimal import Decimal
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from support.life import OVERFLOW, anything_for, own_of
from support.lives import Walk, lives_in
from turnwise.states import ChatState, IllegalTransition, Trigger
from turnwise.states import triggers as t
from turnwise.states.decide import Decision, job_of
from turnwise.states.errors import ChatArchived, QueueFull, ToolResultMismatch
from turnwise.states.events import TurnFinishedEvent
from turnwise.states.facts import Facts
from turnwise.states.invariants import broken_invariants
from turnwise.states.message_order import in_transcript_order
from turnwise.states.names import Audience, Tail
from turnwise.states.table import rows_of
from turnwise.states.transcript import fold
from turnwise.states.turn_limits import may_make_room
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.writes import DropQueued, PutQueued, RecordReceipt, RecordUsage

pytestmark = pytest.mark.hypothesis
S = ChatState
W = TypeVar("W")
USAGES = (None, Usage(input_tokens=7), Usage(output_tokens=3), Usage(input_tokens=1, cost=Decimal("0.1")))
SITUATIONS = ("queue full", "queue touched", "titled", "archived", "interrupted again", "no room to make", "edited")


def test_whatever_happens_the_table_keeps_its_books(request: pytest.FixtureRequest) -> None:
    """It neither loses nor doubles accepted messages, calls and spending, and a worker brings every chat to rest."""
    met = lives_in("table", request).each(live, kind=Books, table=160)
    assert {name: met[name] for name in SITUATIONS if met[name] < 20} == {}


def live(books: Books) -> None:
    books.live(35, check=books.check)
    books.come_to_rest()


class Books(Walk):
    """Records accepted messages in order; refusals change nothing."""

    def __init__(self, *args: Any) -> None:
        self.accepted: set[str] = set()
        self.ahead: set[str] = set()
        """Messages that may precede others that were accepted earlier."""
        self.interrupting: set[str] = set()
        """Those of them that were sent to interrupt, and never moved."""
        self.resumed = 0
        super().__init__(*args)
        self.chance_of_overflow = 0.25

    @property
    def usage(self) -> Usage | None:
        return self.random.choice(USAGES)

    # What happens

    def meddle(self) -> None:
        facts = self.facts
        rests = facts.resting and not facts.archived
        acts = [self.touch_queue] * 3 if facts.queue else []
        acts += [self.name, self.be_refused, *([self.archive] if rests else [])]
        acts += [self.send] * 2 if facts.queue else []
        acts += [self.interrupt_again] * 5 if facts.promote and facts.queue else []
        self.random.choice(acts)() if self.chance(0.4) else super().meddle()

    def say(self, when_busy: str) -> None:
        facts = self.facts
        busy = not facts.resting or facts.state is S.requires_action
        if busy and when_busy != "interrupt" and len(facts.queue) >= self.life.limits.queue_limit:
            self.refused(QueueFull, t.SendMessage, parts=(), when_busy=when_busy)
            self.met["queue full"] += 1
            return
        name = f"m{facts.serial + 1}"
        decision = self.life.send(name, when_busy=when_busy, client_id=name)
        receipts = [write for write in decision.writes if isinstance(write, RecordReceipt)]
        after = self.facts
        waits = name in [queued.id for queued in after.queue] and not (after.promote and after.queue[0].id == name)
        assert [(receipt.message_id, receipt.queued) for receipt in receipts] == [(name, waits)]
        self.accepted.add(name)
        if busy and when_busy == "interrupt":
            self.ahead.add(name)
            self.interrupting.add(name)
        if any(isinstance(write, PutQueued) and write.queued.steers for write in decision.writes):
            self.ahead.add(name)

    def may_send(self) -> bool:
        return True

    def resume(self) -> None:
        self.resumed += 1
        super().resume()

    def edit(self) -> None:
        super().edit()
        self.accepted &= set(self.spoken)
        self.accepted.add(f"m{self.facts.serial}")
        self.met["edited"] += 1

    def touch_queue(self) -> None:
        chosen = self.random.choice([message.id for message in self.facts.queue])
        trigger = self.random.choice([t.EditQueued, t.DeleteQueued, t.PromoteQueued])
        self.life.fire(trigger, **own_of(trigger, {"queued_id": chosen, "parts": self.facts.queue[0].parts}))
        if trigger is t.DeleteQueued:
            self.accepted.discard(chosen)
        if trigger is t.PromoteQueued:
            self.ahead.add(chosen)
            self.interrupting.discard(chosen)
        self.met["queue touched"] += 1

    def interrupt_again(self) -> None:
        self.life.interrupt()
        assert self.facts.promote is self.life.limits.promote_after_interrupt
        self.met["interrupted again"] += 1

    def name(self) -> None:
        facts, title, final = self.facts, f"title {self.facts.version}", self.chance(0.5)
        self.life.fire(t.Renamed, title=title, usage=self.usage, final=final)
        after = self.facts
        assert (after.profile.title, after.titled) == (title, facts.titled or final)
        unchanged = ("turn", "step", "state", "history")
        assert [getattr(after, one) for one in unchanged] == [getattr(facts, one) for one in unchanged]
        self.met["titled"] += 1

    def archive(self) -> None:
        if self.facts.state is S.requires_action and not self.facts.calls.open_client:
            return
        self.life.fire(t.Archived)
        self.refused(ChatArchived, t.SendMessage, parts=())
        self.life.fire(t.Unarchived)
        self.met["archived"] += 1

    def be_refused(self) -> None:
        """Try triggers that the table refuses in this state."""
        facts = self.facts
        token = facts.lease.token if facts.lease else None
        if facts.state is S.executing_tools and facts.calls.open_local:
            self.refused(IllegalTransition, t.ToolsFinished, token=token)
        elif facts.state is S.requires_action and facts.calls.open_client:
            self.refused(ToolResultMismatch, t.SubmitToolResults, results=self.results() * 2)
        elif not facts.settled and facts.lease is not None:
            for trigger in (t.CallStarted, t.StepFinished, t.AttemptStarted, t.AttemptDiscarded):
                self.refused(IllegalTransition, trigger, token=token)

    def refuse_prompt(self) -> None:
        if not may_make_room(self.facts, self.life.limits) and self.facts.lease is not None:
            self.refused(IllegalTransition, t.AttemptDiscarded, token=self.facts.lease.token, error=OVERFLOW)
            self.met["no room to make"] += 1
        super().refuse_prompt()

    def refused(self, error: Any, trigger: type[Trigger], /, **arguments: Any) -> None:
        before: Facts = self.facts
        with pytest.raises(error):
            self.life.fire(trigger, **anything_for(trigger, **arguments))
        assert self.facts is before

    def come_to_rest(self) -> None:
        """With a worker alone, the chat rests after a bounded number of steps."""
        self.tools = ()
        for _ in range(30 * (1 + len(self.facts.queue))):
            if self.facts.resting:
                return
            self.go_on()
        raise AssertionError(f"still in {self.facts.state}")

    # What must hold

    def check(self) -> None:
        self.the_state_keeps_its_promise()
        self.versions_are_contiguous_and_each_is_a_row_of_the_table()
        self.a_lease_stands_only_where_a_job_runs()
        self.every_accepted_message_is_in_history_or_queue_exactly_once()
        self.queue_writes_leave_what_the_facts_say()
        self.the_model_is_asked_only_what_it_can_answer()
        self.usage_is_the_sum_of_the_ledger()
        self.every_attempt_is_in_the_ledger_once_it_has_ended()
        self.a_turn_ends_once_unless_it_is_resumed()
        self.the_events_fold_to_the_committed_transcript()
        self.what_could_be_folded_is_counted()

    def the_state_keeps_its_promise(self) -> None:
        assert broken_invariants(self.facts) == () or self.facts.version == 0

    def versions_are_contiguous_and_each_is_a_row_of_the_table(self) -> None:
        decisions = self.life.decisions
        assert [decision.facts.version for decision in decisions] == list(range(1, len(decisions) + 1))
        if decisions:
            last: Decision = decisions[-1]
            assert last.target in [row.target for row in rows_of(last.trigger, last.source or "new")]

    def a_lease_stands_only_where_a_job_runs(self) -> None:
        assert self.facts.lease is None or job_of(self.facts) is not None
        assert self.facts.lease is None or self.facts.lease.token == self.facts.fence

    def every_accepted_message_is_in_history_or_queue_exactly_once(self) -> None:
        stored = self.spoken + [queued.id for queued in self.facts.queue]
        assert sorted(stored) == sorted(self.accepted)
        plain = [int(name[1:]) for name in stored if name not in self.ahead]
        assert plain == sorted(plain)
        interrupting = [int(name[1:]) for name in stored if name in self.interrupting]
        assert interrupting == sorted(interrupting)

    def queue_writes_leave_what_the_facts_say(self) -> None:
        dropped = {write.id for write in self.writes(DropQueued)}
        assert not dropped & {queued.id for queued in self.facts.queue}

    def the_model_is_asked_only_what_it_can_answer(self) -> None:
        if self.facts.state is S.streaming:
            assert self.facts.history.tail in (Tail.awaits_answer, Tail.partial)
            assert self.life.prompt

    def usage_is_the_sum_of_the_ledger(self) -> None:
        ledger, facts = self.writes(RecordUsage), self.facts
        assert facts.usage == total(ledger)
        of_turns = [record for record in ledger if record.purpose != "title"]
        assert facts.turn.usage == total([record for record in of_turns if record.turn == facts.turn.number])
        summaries = [record for record in ledger if record.purpose == "summary"]
        assert (facts.usage.compaction or NO_USAGE) == replace(total(summaries), compaction=None)

    def every_attempt_is_in_the_ledger_once_it_has_ended(self) -> None:
        started = sum(decision.begins_attempt for decision in self.life.decisions)
        ended = [entry for entry in self.writes(RecordUsage) if entry.purpose != "title"]
        assert started == len(ended) + self.facts.step.attempt_open

    def a_turn_ends_once_unless_it_is_resumed(self) -> None:
        reported = [event.turn for event in self.life.events if isinstance(event, TurnFinishedEvent)]
        assert len(reported) - len(set(reported)) <= self.resumed
        turn = self.facts.turn
        assert turn.open or turn.number == 0 or turn.number in reported

    def the_events_fold_to_the_committed_transcript(self) -> None:
        facts, reported = self.facts, fold(self.life.events)
        shown = [message for message in self.life.messages if message.audience is not Audience.model]
        assert reported.messages == in_transcript_order(shown)
        assert (reported.state or S.waiting, reported.queue, reported.error) == (
            facts.state,
            facts.queue,
            facts.last_error,
        )
        if facts.state is S.requires_action:
            assert reported.open_calls == facts.calls.asked_of_client

    def what_could_be_folded_is_counted(self) -> None:
        if not self.facts.compaction.count:
            assert self.facts.history.foldable == len(self.life.prompt)

    @property
    def spoken(self) -> list[str]:
        return [message.id for message in self.life.messages if message.role == "user" and not message.synthetic]

    def writes(self, kind: type[W]) -> list[W]:
        return [write for decision in self.life.decisions for write in decision.writes if isinstance(write, kind)]


def total(ledger: list[RecordUsage]) -> Usage:
    return functools.reduce(operator.add, [record.usage for record in ledger], NO_USAGE)
