"""A chat's life on the pure table: whatever happens, in whatever order, the invariants of the machine hold."""

from __future__ import annotations

import functools
import operator
from decimal import Decimal
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from support.exploring import examples
from support.life import OVERFLOW, Life, anything_for, client, local, own_of
from turnwise.states import ChatState, IllegalTransition, Trigger
from turnwise.states.arguments import Partial
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.decide import Decision, job_of
from turnwise.states.errors import ChatArchived, QueueFull, ToolResultMismatch
from turnwise.states.events import TurnFinishedEvent
from turnwise.states.facts import Facts
from turnwise.states.message_order import in_transcript_order
from turnwise.states.names import LEASED, Audience, CallStatus, Tail
from turnwise.states.promises import broken_promises
from turnwise.states.table import rows_of
from turnwise.states.transcript import fold
from turnwise.states.turn_limits import may_make_room
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.writes import DropQueued, RecordReceipt, RecordUsage

pytestmark = pytest.mark.timeout(600)  # so many lives take seconds, on a busy machine several times as many

S, T = ChatState, Trigger
W = TypeVar("W")

TOKENS = st.sampled_from([None, 10, 90])
USAGES = st.sampled_from(
    [None, Usage(input_tokens=7, output_tokens=2), Usage(output_tokens=3), Usage(input_tokens=1, cost=Decimal("0.1"))]
)
TOOLS = st.lists(st.sampled_from(["local", "once", "stop", "client", "client with deadline"]), max_size=3)


def in_state(*states: ChatState) -> Any:
    return precondition(lambda self: self.life.facts.state in states)


def facts_say(question: Any) -> Any:
    return precondition(lambda self: question(self.life.facts))


unsettled = facts_say(lambda facts: not facts.settled)
leased = facts_say(lambda facts: facts.lease is not None)
queued = facts_say(lambda facts: facts.queue)
resting = facts_say(lambda facts: facts.resting)


class TableLife(RuleBasedStateMachine):
    """One chat. The model keeps what was accepted, asked and spent; the table must never lose or double any of it."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life()
        self.accepted: set[str] = set()
        self.ahead: set[str] = set()
        """Messages that may stand before others that were accepted earlier."""
        self.steering: set[str] = set()
        """Those of them that came to interrupt, and were never moved."""
        self.calls = 0
        self.resumed = 0

    @initialize(
        max_steps=st.sampled_from([None, 1, 3]),
        promote=st.booleans(),
        final=st.sampled_from(["continue", "rest"]),
        deadline=st.sampled_from([None, 5.0]),
    )
    def create(self, max_steps: int | None, promote: bool, final: str, deadline: float | None) -> None:  # noqa: FBT001 - hypothesis gives it
        self.life = Life(
            max_steps=max_steps,
            promote_after_interrupt=promote,
            after_final_step=final,
            action_deadline=deadline,
            queue_limit=3,
            max_reentries=2,
        )
        self.life.create()

    # From outside

    @rule(when_busy=st.sampled_from(["queue", "interrupt"]))
    def send(self, when_busy: str) -> None:
        facts = self.life.facts
        busy = not facts.resting or facts.state is S.requires_action
        full = busy and when_busy == "queue" and len(facts.queue) >= self.life.limits.queue_limit
        if full:
            self.refused(QueueFull, T.send_message, parts=(), when_busy=when_busy)
            return
        name = f"m{facts.serial + 1}"
        decision = self.life.send(name, when_busy=when_busy, client_id=name)
        receipts = [write for write in decision.writes if isinstance(write, RecordReceipt)]
        after = self.life.facts
        waits = name in [queued.id for queued in after.queue] and not (after.promote and after.queue[0].id == name)
        assert [(receipt.message_id, receipt.queued) for receipt in receipts] == [(name, waits)]
        self.accepted.add(name)
        if busy and when_busy == "interrupt":
            self.ahead.add(name)
            self.steering.add(name)

    @rule(fails=st.booleans())
    @in_state(S.requires_action)
    def submit(self, fails: bool) -> None:  # noqa: FBT001 - hypothesis gives it
        results = tuple(ToolResult(call.call_id, "done", is_error=fails) for call in self.life.facts.open_calls)
        self.refused(ToolResultMismatch, T.submit_tool_results, results=results * 2)
        self.life.submit(*results)

    @rule()
    @in_state(S.pending, S.streaming, S.executing_tools, S.compacting, S.requires_action)
    def interrupt(self) -> None:
        self.life.interrupt()

    @rule()
    @facts_say(lambda facts: facts.promote and facts.queue)
    def interrupt_once_more(self) -> None:
        self.life.interrupt()
        assert self.life.facts.promote is self.life.limits.promote_after_interrupt

    @rule()
    @in_state(S.interrupted, S.error)
    def resume(self) -> None:
        facts = self.life.facts
        if facts.settled and (facts.queue or facts.history.unfinished):
            self.resumed += 1
            self.life.fire(T.resume)
        else:
            self.refused(IllegalTransition, T.resume)

    @rule(choice=st.data())
    @facts_say(lambda facts: facts.turn.number)
    def edit(self, choice: Any) -> None:
        self.life.edit(choice.draw(st.sampled_from(self.spoken())))
        self.accepted &= set(self.spoken())
        self.accepted.add(f"m{self.life.facts.serial}")

    @rule(trigger=st.sampled_from([T.edit_queued, T.delete_queued, T.promote_queued]), choice=st.data())
    @queued
    def touch_queue(self, trigger: Trigger, choice: Any) -> None:
        chosen = choice.draw(st.sampled_from([message.id for message in self.life.facts.queue]))
        self.life.fire(trigger, **own_of(trigger, {"queued_id": chosen, "parts": self.life.facts.queue[0].parts}))
        if trigger is T.delete_queued:
            self.accepted.discard(chosen)
        if trigger is T.promote_queued:
            self.ahead.add(chosen)
            self.steering.discard(chosen)

    @rule(trigger=st.sampled_from([T.request_compaction, T.clear_context]))
    @facts_say(lambda facts: facts.resting and facts.state is not S.requires_action and not facts.queue)
    def start_anew(self, trigger: Trigger) -> None:
        if trigger is T.clear_context or self.life.facts.history.foldable:
            self.life.fire(trigger)

    @rule(usage=USAGES, final=st.booleans())
    @facts_say(lambda facts: facts.version > 0)
    def name(self, usage: Usage | None, final: bool) -> None:  # noqa: FBT001 - hypothesis gives it
        facts, title = self.life.facts, f"title {self.life.facts.version}"
        self.life.fire(T.renamed, title=title, usage=usage, final=final)
        after = self.life.facts
        assert (after.profile.title, after.titled) == (title, facts.titled or final)
        assert (after.turn, after.step, after.state, after.history) == (
            facts.turn,
            facts.step,
            facts.state,
            facts.history,
        )

    @rule()
    @resting
    def archive_and_unarchive(self) -> None:
        self.life.fire(T.archived)
        self.refused(ChatArchived, T.send_message, parts=())
        self.life.fire(T.unarchived)

    # From the holder

    @rule()
    @facts_say(lambda facts: facts.state is S.pending or (not facts.settled and facts.lease is None))
    def claim(self) -> None:
        self.life.claim()

    @rule(usage=USAGES)
    @in_state(S.streaming, S.compacting)
    def try_once(self, usage: Usage | None) -> None:
        self.life.attempt()
        if usage is not None:
            self.life.discard(usage)

    @rule()
    @facts_say(lambda facts: facts.state is S.streaming and facts.step.attempt_open)
    def refuse_the_prompt(self) -> None:
        if may_make_room(self.life.facts, self.life.limits):
            self.life.overflow()
        else:
            self.refused(IllegalTransition, T.attempt_discarded, token=self.token, error=OVERFLOW)

    @rule(tools=TOOLS, tokens=TOKENS, usage=USAGES, text=st.sampled_from(["", "words"]))
    @in_state(S.pending, S.streaming)
    def reply(self, tools: list[str], tokens: int | None, usage: Usage | None, text: str) -> None:
        if self.life.facts.state is S.pending:
            self.life.claim()
        if self.life.facts.state is not S.streaming:
            return
        self.life.attempt()
        self.life.reply(*self.planned(tools), text=text, tokens=tokens, usage=usage)

    @rule(fails=st.booleans())
    @in_state(S.executing_tools)
    def run_next_call(self, fails: bool) -> None:  # noqa: FBT001 - hypothesis gives it
        waiting = [call for call in self.life.facts.open_calls if call.is_local]
        if not waiting:
            self.life.held(T.tools_finished)
            return
        self.refused(IllegalTransition, T.tools_finished, token=self.token)
        call = waiting[0]
        if call.status is CallStatus.planned or call.crash == "at_least_once":
            self.start(call)
        self.life.finish(call.call_id, fails=fails)
        with pytest.raises(IllegalTransition):
            self.life.finish(call.call_id)

    @rule()
    @in_state(S.executing_tools)
    def start_next_call(self) -> None:
        for call in self.life.facts.open_calls:
            if call.is_local and call.status is CallStatus.planned:
                self.start(call)
                return

    @rule(succeeds=st.booleans())
    @in_state(S.compacting)
    def compact(self, succeeds: bool) -> None:  # noqa: FBT001 - hypothesis gives it
        if not self.life.facts.step.attempt_open:
            self.life.attempt()
        if not succeeds:
            self.life.fail_to_compact()
            return
        facts, seen = self.life.facts, self.life.prompt
        answered = max((message.position for message in seen if message.role == "assistant"), default=0)
        unanswered = [message for message in seen if message.role == "user" and message.position > answered]
        of_step = [message for message in seen if message.step == facts.step.number] if facts.open_calls else []
        carried = sorted({message.position for message in (*unanswered, *of_step)})
        self.life.compact(*carried)

    @rule(tools=TOOLS, text=st.sampled_from(["", "so far"]), usage=USAGES)
    @unsettled
    def settle(self, tools: list[str], text: str, usage: Usage | None) -> None:
        for trigger in (T.call_started, T.step_finished, T.attempt_started, T.attempt_discarded):
            self.refused(IllegalTransition, trigger, token=self.token)
        self.life.settle(self.shown(tools, text, usage))

    @rule(tools=TOOLS, usage=USAGES)
    @facts_say(lambda facts: facts.state in (*LEASED, S.pending) or not facts.settled)
    def fail(self, tools: list[str], usage: Usage | None) -> None:
        self.life.fail(self.shown(tools, "so far", usage))

    @rule(trigger=st.sampled_from([T.released, T.lease_expired]))
    @leased
    def lose_the_lease(self, trigger: Trigger) -> None:
        self.life.held(trigger)

    @rule(choice=st.data(), steps=st.integers(min_value=1, max_value=5))
    def go_on(self, choice: Any, steps: int) -> None:
        """Do what comes next where the chat stands: without this, few lives would come far."""
        for _ in range(steps):
            tools, tokens, usage = choice.draw(st.tuples(TOOLS, TOKENS, USAGES))
            self.do_next(tools, tokens, usage)

    # From the clock

    @rule(seconds=st.sampled_from([0, 3, 5]))
    @in_state(S.requires_action)
    def sweep_deadlines(self, seconds: float) -> None:
        self.life.wait(seconds)
        if any(call.is_due(self.life.now) for call in self.life.facts.calls):
            self.life.fire(T.deadline_passed)
        else:
            self.refused(IllegalTransition, T.deadline_passed)

    # What must hold

    @invariant()
    def the_state_keeps_its_promise(self) -> None:
        assert broken_promises(self.life.facts) == () or self.life.facts.version == 0

    @invariant()
    def versions_are_contiguous_and_each_is_a_row_of_the_table(self) -> None:
        decisions = self.life.decisions
        assert [decision.facts.version for decision in decisions] == list(range(1, len(decisions) + 1))
        if decisions:
            last: Decision = decisions[-1]
            assert last.target in [row.target for row in rows_of(last.trigger, last.source or "new")]

    @invariant()
    def a_lease_stands_only_where_a_job_runs(self) -> None:
        assert self.life.facts.lease is None or job_of(self.life.facts) is not None
        assert self.life.facts.lease is None or self.life.facts.lease.token == self.life.facts.fence

    @invariant()
    def every_accepted_message_is_in_history_or_queue_exactly_once(self) -> None:
        kept = self.spoken() + [queued.id for queued in self.life.facts.queue]
        assert sorted(kept) == sorted(self.accepted)
        plain = [int(name[1:]) for name in kept if name not in self.ahead]
        assert plain == sorted(plain)
        steering = [int(name[1:]) for name in kept if name in self.steering]
        assert steering == sorted(steering)

    @invariant()
    def queue_writes_leave_what_the_facts_say(self) -> None:
        dropped = {write.queued_id for write in self.writes(DropQueued)}
        assert not dropped & {queued.id for queued in self.life.facts.queue}

    @invariant()
    def the_model_is_asked_only_what_it_can_answer(self) -> None:
        if self.life.facts.state is S.streaming:
            assert self.life.facts.history.tail in (Tail.awaits_answer, Tail.partial)
            assert self.life.prompt

    @invariant()
    def usage_is_the_sum_of_the_ledger(self) -> None:
        ledger, facts = self.writes(RecordUsage), self.life.facts
        assert facts.usage == total(ledger)
        of_turns = [record for record in ledger if record.purpose != "title"]
        assert facts.turn.usage == total([record for record in of_turns if record.turn == facts.turn.number])
        summaries = [record for record in ledger if record.purpose == "summary"]
        assert (facts.usage.compaction or NO_USAGE) == replace(total(summaries), compaction=None)

    @invariant()
    def every_attempt_is_in_the_ledger_once_it_has_ended(self) -> None:
        started = sum(decision.trigger is T.attempt_started for decision in self.life.decisions)
        ended = [entry for entry in self.writes(RecordUsage) if entry.purpose != "title"]
        assert started == len(ended) + self.life.facts.step.attempt_open

    @invariant()
    def a_turn_ends_once_unless_it_is_resumed(self) -> None:
        told = [event.turn for event in self.life.events if isinstance(event, TurnFinishedEvent)]
        assert len(told) - len(set(told)) <= self.resumed
        turn = self.life.facts.turn
        assert turn.open or turn.number == 0 or turn.number in told

    @invariant()
    def the_events_fold_to_the_committed_transcript(self) -> None:
        facts, told = self.life.facts, fold(self.life.events)
        shown = [message for message in self.life.messages if message.audience is not Audience.model]
        assert told.messages == in_transcript_order(shown)
        assert (told.state or S.waiting, told.queue, told.error) == (facts.state, facts.queue, facts.last_error)
        if facts.state is S.requires_action:
            assert told.open_calls == facts.open_calls

    @invariant()
    def what_could_be_folded_is_counted(self) -> None:
        if not self.life.facts.compaction.count:
            assert self.life.facts.history.foldable == len(self.life.prompt)

    def teardown(self) -> None:
        """With a worker and nobody else, the chat comes to rest in a bounded number of steps."""
        bound = 20 * (1 + len(self.life.facts.queue))
        for _ in range(bound):
            if self.life.facts.resting or self.life.facts.version == 0:
                return
            self.do_next([], 90, None)
        raise AssertionError(f"still in {self.life.facts.state} after {bound} steps")

    # What the rules share

    def do_next(self, tools: list[str], tokens: int | None, usage: Usage | None) -> None:
        match self.life.facts.state:
            case S.pending:
                self.life.claim()
            case S.streaming if tokens == 10:
                self.life.attempt()
            case S.streaming:
                self.reply(tools, tokens, usage, "words")
            case S.executing_tools:
                self.run_next_call(fails=False)
            case S.compacting:
                self.compact(succeeds=tokens != 10)
            case S.requires_action:
                self.submit(fails=False)
            case S.interrupted if not self.life.facts.settled:
                self.settle(tools, "so far", usage)
            case _:
                self.send("queue")

    def spoken(self) -> list[str]:
        return [message.id for message in self.life.messages if message.role == "user" and not message.synthetic]

    @property
    def token(self) -> int | None:
        return self.life.facts.lease.token if self.life.facts.lease else None

    def start(self, call: ToolCall) -> None:
        self.life.start(call.call_id)
        if call.crash == "at_most_once":
            with pytest.raises(IllegalTransition):
                self.life.start(call.call_id)

    def shown(self, tools: list[str], text: str, usage: Usage | None) -> Partial | None:
        """Return what an attempt at an answer has shown; `None` where none is under way."""
        step = self.life.facts.step
        if not (step.attempt_open and step.purpose == "step"):
            return None
        return self.life.partial(*self.planned(tools), text=text, usage=usage)

    def planned(self, tools: list[str]) -> tuple[Any, ...]:
        made = []
        for index, tool in enumerate(tools):
            self.calls += 1
            name = f"c{self.calls}"
            within = 3.0 if "deadline" in tool else None
            crash = "at_most_once" if tool == "once" else "at_least_once"
            made.append(
                client(name, index, within=within)
                if "client" in tool
                else local(name, index, crash=crash, stop_after=tool == "stop")
            )
        return tuple(made)

    def refused(self, error: Any, trigger: Trigger, **arguments: Any) -> None:
        before: Facts = self.life.facts
        with pytest.raises(error):
            self.life.fire(trigger, **anything_for(trigger, **arguments))
        assert self.life.facts is before

    def writes(self, kind: type[W]) -> list[W]:
        return [write for decision in self.life.decisions for write in decision.writes if isinstance(write, kind)]


def total(ledger: list[RecordUsage]) -> Usage:
    return functools.reduce(operator.add, [record.usage for record in ledger], NO_USAGE)


TestTableLife = TableLife.TestCase
TestTableLife.settings = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
