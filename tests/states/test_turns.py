"""Turns: start, end, and the limits on steps, tokens, time and dollars."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext

import pytest
from msgspec.structs import replace
from tests.states.table_cases import changed, standing, stray, with_queue

from support.life import (
    BLANK,
    ERROR,
    SCHEDULED,
    USAGE,
    Life,
    asking,
    client,
    compacting,
    delegated,
    executing,
    interrupted,
    local,
    pending,
    queued,
    streaming,
    text_parts,
    unsettled,
)
from turnwise.states import ChatState, IllegalTransition
from turnwise.states import triggers as t
from turnwise.states.arguments import Erasing, StepReply
from turnwise.states.calls import ToolResult
from turnwise.states.decide import legal_triggers
from turnwise.states.events import AttemptDiscardedEvent
from turnwise.states.facts import CompactionFacts, Limits, TurnFacts
from turnwise.states.invariants import broken_invariants
from turnwise.states.names import CallStatus, StopReason, Tail
from turnwise.states.table import BUSY
from turnwise.states.transcript import fold
from turnwise.states.turn_limits import may_compact, may_make_room, over_threshold, wants_compaction, why_spent
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.writes import DropQueued, MoveQueued, PutQueued, RecordReceipt

S = ChatState


ANSWER = local("a", stop_after=True, answers=True)


def test_reply_without_calls_ends_the_turn() -> None:
    ended = streaming().reply(stop=StopReason.max_tokens).events[-1]
    assert (ended.turn, ended.stop_reason, ended.provider_reason) == (1, StopReason.max_tokens, "stop")
    assert ended.usage == USAGE


def test_calls_take_precedence_over_the_stop_reason() -> None:
    life = streaming()
    life.reply(local("a"), stop=StopReason.max_tokens)
    life.run_tools()
    assert life.facts.state is S.streaming
    assert life.facts.turn.ended_by is None


def test_resume_after_stop_after_tool() -> None:
    """A text and a call of the answer tool both count as answers."""
    life = executing(local("a", stop_after=True), local("b", 1))
    life.run_tools()
    assert life.facts.history.tail is Tail.awaits_answer
    assert t.Resume.name in legal_triggers(life.facts)
    life = executing(ANSWER, local("b", 1))
    life.run_tools()
    assert life.facts.history.tail is Tail.answered
    assert t.Resume.name not in legal_triggers(life.facts)
    life.send()
    assert life.facts.history.tail is Tail.awaits_answer


def beside_a_client_call() -> Life:
    life = executing(ANSWER, client("b", 1))
    life.run_tools()
    return life


def beside_a_tool() -> Life:
    life = executing(ANSWER, local("b", 1))
    life.finish("a")
    life.start("b")
    return life


def before_a_compaction() -> Life:
    return compacting(ANSWER)


@pytest.mark.parametrize(
    ("build", "fails"),
    [
        (beside_a_client_call, False),
        (beside_a_tool, False),
        (beside_a_tool, True),
        (before_a_compaction, False),
        (before_a_compaction, True),
    ],
)
def test_answered_turn_cannot_be_resumed(build: Callable[[], Life], *, fails: bool) -> None:
    """Continuing would ask for another answer, and replace the first."""
    life = build()
    if fails:
        life.fail()
    else:
        life.interrupt()
    if not life.facts.settled:
        life.settle()
    assert life.facts.state is (S.error if fails else S.interrupted)
    assert life.facts.history.tail is Tail.answered
    assert t.Resume.name not in legal_triggers(life.facts)
    assert t.SendMessage.name in legal_triggers(life.facts)


def test_refused_answer_leaves_the_turn_resumable() -> None:
    life = executing(ANSWER, max_steps=1)
    life.finish("a", fails=True)
    life.held(t.ToolsFinished)
    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.max_steps)
    assert t.Resume.name in legal_triggers(life.facts)


def test_resumed_turn_keeps_number_and_usage() -> None:
    life = interrupted(max_steps=1)
    used = life.facts.turn.usage
    life.fire(t.Resume)
    turn = life.facts.turn
    assert (turn.number, turn.steps, turn.open, turn.ended_by, turn.usage) == (1, 0, True, None, used)
    assert (life.facts.interrupt_reason, life.facts.stop_reason) == (None, None)


def test_turn_finished_is_sent_once() -> None:
    life = interrupted()
    life.fire(t.RequestCompaction)
    life.claim()
    life.interrupt()
    life.settle()
    assert sum(event.kind == "turn_finished" for event in life.events) == 1
    assert life.facts.stop_reason is StopReason.interrupted


def test_subagent_usage_counts_in_a_resumed_turn() -> None:
    life = interrupted()
    before = replace(life.facts.turn, subagents_usage=USAGE, usage=USAGE)
    life.facts = replace(life.facts, turn=before)
    life.fire(t.Resume, trace="again")
    after = life.facts.turn
    assert (after.number, after.first_step, after.after) == (before.number, before.first_step, before.after)
    assert (after.usage, after.subagents_usage, after.trace, after.open) == (USAGE, USAGE, "again", True)
    life.claim()
    life.reply()
    life.send("more")
    assert (life.facts.turn.number, life.facts.turn.subagents_usage) == (before.number + 1, NO_USAGE)


def test_turn_names_the_chat_that_requested_it() -> None:
    life = streaming()
    life.send("more", asker="lead")
    life.send("by a person")
    life.send("yet more", asker="lead")
    life.fire(t.DeleteQueued, queued_id=life.facts.queue[2].id)
    assert list(life.facts.askers.values()) == ["lead"]
    life.reply()
    assert (life.facts.turn.asker, life.facts.askers) == ("lead", {})
    life.claim()
    life.interrupt()
    life.settle()
    life.fire(t.Resume)
    assert life.facts.turn.asker is None
    life = pending()
    assert life.facts.turn.asker is None


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"turn_tokens": 15}, StopReason.token_budget),
        ({"turn_cost": 0.1}, StopReason.cost_budget),
        ({"max_steps": 1}, StopReason.max_steps),
        ({"turn_seconds": 2}, StopReason.time_budget),
    ],
)
def test_resumed_turn_has_a_fresh_budget(limits: dict[str, float], reason: StopReason) -> None:
    """Earlier use still counts as usage: only the budget is fresh."""
    life = streaming(**limits)
    used = Usage(input_tokens=10, output_tokens=5, cost=Decimal("0.1"))
    for times in (1, 2, 3):
        life.wait(2)
        life.reply(local(f"call {times}"), usage=used)
        life.run_tools()
        assert (life.facts.state, life.facts.stop_reason) == (S.waiting, reason)
        assert life.facts.turn.usage.input_tokens == times * 10
        life.fire(t.Resume)
        life.claim()
        assert life.facts.state is S.streaming


@pytest.mark.parametrize(("spent", "reason"), [("100.0999", None), ("100.1", StopReason.cost_budget)])
def test_cost_budget_is_exact(spent: str, reason: StopReason | None) -> None:
    turn = TurnFacts(usage=Usage(cost=Decimal(spent)), spent_before=Usage(cost=Decimal(100)))
    with localcontext() as context:
        context.prec = 2
        assert why_spent(turn, Limits(turn_cost=0.1), datetime(2026, 1, 1, tzinfo=UTC)) is reason


@pytest.mark.parametrize("again", [False, True])
def test_waiting_for_a_worker_spends_no_time(*, again: bool) -> None:
    life = executing(turn_seconds=5) if again else Life(turn_seconds=5)
    if again:
        life.wait(5)
        life.run_tools()
        life.fire(t.Resume)
    else:
        life.create()
        life.send()
    life.wait(1000)
    life.claim()
    assert life.facts.state is S.streaming
    life.wait(4)
    life.reply(local("b"))
    life.run_tools()
    assert life.facts.state is S.streaming
    life.wait(1)
    life.reply(local("c"))
    life.run_tools()

    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.time_budget)


def test_waiting_for_a_person_spends_no_time() -> None:
    life = executing(local("l"), client("a", 1), client("b", 2, approval="asked"), turn_seconds=5)
    life.wait(2)
    life.run_tools()
    life.wait(100)
    life.submit(ToolResult("a", "yes"), ToolResult("b", output=True))
    life.claim()
    life.wait(2)
    life.finish("b")
    life.held(t.ToolsFinished)
    assert (life.facts.state, life.facts.turn.waited) == (S.streaming, 100)
    life.reply(client("c", within=60), client("d"))
    life.wait(60)
    life.fire(t.DeadlinePassed)
    assert life.facts.turn.waited == 100, "one of them is awaited still"
    life.wait(1000)
    life.submit()
    life.claim()

    assert (life.facts.state, life.facts.turn.waited) == (S.streaming, 1160)


def test_subagents_spend_the_turns_time() -> None:
    life = asking(client("a", within=60), delegated("h", 1), turn_seconds=5)
    life.wait(60)
    life.fire(t.DeadlinePassed)
    assert (life.facts.state, life.facts.turn.waited) == (S.requires_action, 60)
    life.wait(5)
    life.help("h")
    assert life.facts.turn.waited == 60
    life.claim()
    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.time_budget)


@pytest.mark.parametrize(
    ("given_up", "unproven", "compacted_step", "compactions", "may"),
    [
        (False, False, 2, 1, True),
        (False, False, 3, 1, False),
        (False, True, 2, 1, False),
        (True, False, 2, 1, False),
        (False, False, 2, 2, False),
    ],
)
def test_may_compact(*, given_up: bool, unproven: bool, compacted_step: int, compactions: int, may: bool) -> None:
    facts = replace(
        BLANK,
        step=replace(BLANK.step, number=3),
        turn=replace(BLANK.turn, compacts_no_more=given_up, compactions=compactions),
        compaction=CompactionFacts(step=compacted_step, unproven=unproven),
    )
    assert may_compact(facts, Limits(max_per_turn=2)) is may
    assert may_make_room(replace(facts, history=replace(facts.history, foldable=1)), Limits(max_per_turn=2)) is (
        compacted_step < 3 and compactions < 2
    )


@pytest.mark.parametrize(
    ("cost", "limit", "spent"),
    [
        ("0.1", 0.1, True),
        ("0.0999999", 0.1, False),
        ("0.3", 0.1 + 0.2, False),
        ("0.00000015", 1.5e-7, True),
        ("2", 2, True),
        (None, 0.000001, False),
    ],
)
def test_cost_budget_ends_the_turn(cost: str | None, limit: float, *, spent: bool) -> None:
    """A budget is the written decimal, not the nearest float; an unknown price counts nothing."""
    life = streaming(turn_cost=limit)
    life.reply(local("a"), usage=Usage(input_tokens=1, cost=None if cost is None else Decimal(cost)))
    life.run_tools()
    assert life.facts.state is (S.waiting if spent else S.streaming)
    assert life.facts.stop_reason == (StopReason.cost_budget if spent else None)


def test_refused_answer_spends_the_budget() -> None:
    """The turn's budget pays for the refused reply before it pays for another one."""
    life = streaming(turn_tokens=15)
    life.reply(refused=True)
    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.token_budget)


def test_budget_does_not_end_a_started_step() -> None:
    """A worker that takes over half a step must finish it."""
    life = streaming(max_steps=1)
    life.held(t.Released)
    life.claim()
    assert (life.facts.state, life.facts.step.number) == (S.streaming, 1)


@pytest.mark.parametrize(
    ("tokens", "limit", "settings", "over"),
    [
        (80, 100, {}, True),
        (79, 100, {}, False),
        (None, 100, {}, False),
        (80, None, {}, False),
        (80, None, {"context_limit": 100}, True),
        (80, 100, {"context_limit": 1000}, True),
        (99, 100, {"threshold_percent": 100}, False),
        (99, 100, {"context_limit": 0}, False),
        (50, 100, {"threshold_percent": 50}, True),
    ],
)
def test_threshold_is_a_share_of_the_window(
    tokens: int | None, limit: int | None, settings: dict[str, int], *, over: bool
) -> None:
    assert over_threshold(tokens, limit, Limits(**settings)) is over


@pytest.mark.parametrize("limits", [{"threshold_percent": 100}, {"context_limit": 0}])
def test_should_compact_is_ignored_where_compaction_is_off(limits: dict[str, int]) -> None:
    reply = StepReply(parts=(), should_compact=True)
    assert wants_compaction(reply, Limits())
    assert not wants_compaction(replace(reply, should_compact=False), Limits())
    assert not wants_compaction(reply, Limits(**limits))


# Interrupts, lost attempts and repairs


def test_edit_does_not_wait_for_settling() -> None:
    """Otherwise the partial message would be cut as soon as it was stored."""
    life = unsettled()
    life.edit("m1")
    assert (life.facts.state, life.facts.settled, life.facts.lease) == (S.pending, True, None)
    assert [message.text for message in life.messages] == ["rather"]
    assert life.facts.usage.partial


def test_complete_calls_of_a_partial_answer_are_stored() -> None:
    life = unsettled()
    life.settle(life.partial(local("a"), client("b", 1)))
    assert [message.role for message in life.messages] == ["user", "assistant", "tool", "tool"]
    assert {call.status for call in life.facts.calls} == {CallStatus.interrupted}
    assert life.facts.history.tail is Tail.awaits_answer


def test_discarded_attempt_is_not_stored() -> None:
    """Storing it would show subscribers a text that was withdrawn."""
    life = streaming()
    shown = life.partial()
    life.discard()
    life.interrupt()
    life.settle(shown)
    assert [message.role for message in life.messages] == ["user"]


def test_next_holder_settles_an_interrupted_chat() -> None:
    life = unsettled()
    life.held(t.LeaseExpired)
    with pytest.raises(IllegalTransition):
        life.held(t.LeaseExpired)
    life.claim()
    life.settle(life.partial())
    assert (life.facts.settled, life.messages[-1].partial) == (True, True)


def test_new_attempt_discards_a_lost_one() -> None:
    life = streaming()
    life.held(t.LeaseExpired)
    discarded, status = life.claim().events
    assert isinstance(discarded, AttemptDiscardedEvent)
    assert (discarded.attempt, status.kind) == (1, "status")
    assert (life.facts.step.attempt, life.facts.usage.partial) == (2, True)


def test_failure_without_a_reply_discards_the_attempt() -> None:
    life = streaming()
    assert "attempt_discarded" not in [event.kind for event in life.fail(life.partial()).events]
    life = streaming()
    discarded = life.held(t.Failed, error=ERROR, takes_back=True).events[0]
    assert (discarded.kind, discarded.attempt, discarded.reason) == ("attempt_discarded", 1, ERROR.kind)


def test_usage_of_an_edited_attempt_is_counted() -> None:
    life = streaming()
    life.edit("m1", usage=USAGE)
    assert life.facts.usage == USAGE.marked_partial()


def test_retry_schedule_survives_a_restart() -> None:
    life = streaming()
    life.discard()
    retry_at = life.facts.step.retry_at
    life.held(t.Released)
    life.claim()
    step = life.facts.step
    assert (step.failures, step.attempt, step.attempt_open, step.retry_at) == (1, 1, False, retry_at)
    life.attempt()
    assert (life.facts.step.failures, life.facts.step.attempt, life.facts.step.retry_at) == (1, 2, None)


def test_failed_attempts_are_counted_by_what_they_cost() -> None:
    """Timeouts count in a row; paid attempts count by the kind of error, with any failures in between."""
    life, counts = streaming(), []
    for kind, paid, timed_out in (
        ("network", True, True),
        ("startup_timeout", False, True),
        ("rate_limit", False, False),
        ("network", True, False),
    ):
        life.discard(error=replace(ERROR, kind=kind), paid=paid, timed_out=timed_out)
        step = life.facts.step
        counts.append((step.failures, step.timeouts, dict(step.paid)))
        life.attempt()
    assert counts == [(1, 1, {"network": 1}), (2, 2, {"network": 1}), (3, 0, {"network": 1}), (4, 0, {"network": 2})]


@pytest.mark.parametrize("state", [None, *S])
def test_repair_restores_every_invariant(state: ChatState | None) -> None:
    life = changed(stray(state), archived=True, schedules=(SCHEDULED,))
    assert broken_invariants(life.facts)
    life.fire(t.Repaired, error=ERROR)
    assert (life.facts.state, life.facts.last_error, broken_invariants(life.facts)) == (S.error, ERROR, ())


@pytest.mark.parametrize("state", list(S))
def test_sound_chat_is_not_repaired(state: ChatState) -> None:
    with pytest.raises(IllegalTransition):
        standing(state).fire(t.Repaired, error=ERROR)


# The queue


def texts(life: Life) -> list[str]:
    return [message.text for message in life.facts.queue]


def ranks(life: Life) -> list[str]:
    """Return the queue as a store orders it: by each message's last written rank."""
    stored: dict[str, tuple[int, str]] = {}
    for decision in life.decisions:
        for write in decision.writes:
            if isinstance(write, PutQueued):
                rank = stored[write.id][0] if write.rank is None else write.rank
                stored[write.id] = (rank, write.queued.text)
            if isinstance(write, MoveQueued):
                stored |= {name: (rank, stored[name][1]) for rank, name in enumerate(write.order, 1)}
            if isinstance(write, DropQueued):
                del stored[write.id]
    return [text for _, text in sorted(stored.values())]


def test_later_message_is_the_last() -> None:
    """Its rank does not depend on the queue's length: promoted messages had ranks, too."""
    life = queued(streaming(), "one", "two", "three")
    for _ in range(2):
        life.reply()
        life.claim()
    life.send("four")
    assert texts(life) == ranks(life) == ["three", "four"]


def test_interrupting_messages_precede_the_queue_in_order() -> None:
    """The answer to "No, use Rust instead." must not come before that to "Use Python."."""
    life = queued(streaming(), "one")
    for text in ("Use Python.", "No, use Rust instead.", "Or Zig."):
        life.send(text, when_busy="interrupt")
    assert texts(life) == ranks(life) == ["Use Python.", "No, use Rust instead.", "Or Zig.", "one"]
    life.settle()
    life.send("No, not Zig.", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["No, use Rust instead.", "Or Zig.", "No, not Zig.", "one"]
    life.fire(t.DeleteQueued, queued_id=life.facts.queue[0].id)
    life.send("That is all.", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["Or Zig.", "No, not Zig.", "That is all.", "one"]


def test_interrupting_message_follows_the_promoted_one() -> None:
    life = unsettled()
    life.send("a new question")
    life.send("in short", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["a new question", "in short"]
    life = queued(unsettled(), "one", "two", "three")
    life.fire(t.PromoteQueued, queued_id=life.facts.queue[2].id)
    life.send("now", when_busy="interrupt")
    assert (texts(life)[0], texts(life)[-1]) == ("three", "two")


def test_interrupting_message_starts_the_next_turn() -> None:
    life = asking()
    life.send("now", when_busy="interrupt")
    life.settle()
    assert (life.facts.state, life.messages[-1].text, life.facts.promote) == (S.pending, "now", False)
    assert [message.role for message in life.messages] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("promoted", ["steered", "moved up", "sent after a stop"])
def test_interrupt_cancels_an_unsettled_promotion(promoted: str) -> None:
    """The last command counts."""
    life = unsettled()
    if promoted == "moved up":
        life.send("wait")
        life.fire(t.PromoteQueued, queued_id=life.facts.queue[0].id)
    else:
        life.send("wait", when_busy="interrupt" if promoted == "steered" else "queue")
    life.interrupt()
    life.settle()
    assert (life.facts.state, life.facts.settled, texts(life)) == (S.interrupted, True, ["wait"])


@pytest.mark.parametrize("waiting", [(), ("one", "two")], ids=["empty", "waiting"])
def test_message_before_and_after_settling_does_the_same(waiting: tuple[str, ...]) -> None:
    """Milliseconds decide which of the two happens, and users cannot know."""
    early, late = (queued(streaming(), *waiting) if waiting else streaming() for _ in range(2))
    early.interrupt()
    early.send("new")
    early.settle()
    late.interrupt()
    late.settle()
    late.send("new")
    assert [message.text for message in early.messages] == [message.text for message in late.messages]
    assert (early.facts.state, texts(early)) == (late.facts.state, texts(late))
    assert early.facts.state is S.pending


@pytest.mark.parametrize("state", BUSY)
def test_an_edit_empties_the_queue(state: ChatState) -> None:
    life = with_queue(state)
    decision = life.edit("m1")
    assert (texts(life), ranks(life)) == ([], [])
    assert [message.text for message in life.messages] == ["rather"]
    assert any(event.kind == "queue" and event.change == "deleted" for event in decision.events)
    assert fold(life.events).queue == ()


def test_resume_traces_a_turn_from_the_queue() -> None:
    life = queued(streaming())
    life.interrupt()
    life.settle()
    life.fire(t.Resume, trace="again")
    assert (life.facts.turn.number, life.facts.turn.trace) == (2, "again")


def test_receipt_of_the_next_message_is_not_queued() -> None:
    steered, stopped = queued(streaming()), unsettled()
    decisions = [*(steered.send(text, client_id=text, when_busy="interrupt") for text in ("next", "after it"))]
    decisions += [*(stopped.send(text, client_id=text) for text in ("a new question", "another"))]
    receipts = [write for decision in decisions for write in decision.writes if isinstance(write, RecordReceipt)]
    assert [receipt.queued for receipt in receipts] == [False, True, False, True]


def test_erasure_removes_only_named_queued_messages() -> None:
    life = queued(streaming(), "one", "two", "three")
    doomed = life.facts.queue[1].id
    decision = life.fire(t.MessageErased, erasing=Erasing(queued=frozenset({doomed})))
    assert texts(life) == ranks(life) == ["one", "three"]
    assert [write.id for write in decision.writes if isinstance(write, DropQueued)] == [doomed]


def test_schedules_of_a_chat_do_not_mix() -> None:
    """Each is replaced under its id, continues or ends by itself, and has its actor; archiving drops all."""
    life, weekly = standing(S.waiting), replace(SCHEDULED, id="weekly", every="0 9 * * 1", by="forged")
    for message in (SCHEDULED, weekly, replace(SCHEDULED, parts=text_parts("again"))):
        life.fire(t.Schedule, message=message, actor="user:ada")
    first, second = life.facts.schedules
    assert [(one.id, one.by) for one in (first, second)] == [("weekly", "user:ada"), ("s", "user:ada")]
    assert second.parts == text_parts("again")
    facts, later = life.facts, life.now + timedelta(days=7)
    dropped = [write.id for write in life.fire(t.Archived).writes if write.kind == "schedule:dropped"]
    assert (life.facts.schedules, dropped) == ((), ["weekly", "s"])
    life.facts = facts
    life.fire(t.Unschedule, schedule_id="s")
    assert life.facts.schedules == (first,)
    life.facts = facts
    life.fire(t.ScheduleFired, message=second)
    assert life.facts.schedules == (first,)
    life.facts = replace(facts, schedules=(replace(first, due=life.now), second))
    life.fire(t.ScheduleFired, message=life.facts.schedules[0], next_due=later)
    assert life.facts.schedules == (replace(first, due=later), second)
