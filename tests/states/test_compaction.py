"""Compaction: due by token counts, at most once a step, never in the way of the turn and never without end."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.states.table_cases import Case, cases, crowded, two_results

from support.life import ERROR, PROFILE, USAGE, Life, client, compacting, executing, local, refused, streaming, waiting
from turnwise.states import ChatState
from turnwise.states import triggers as t
from turnwise.states.arguments import Inheritance
from turnwise.states.errors import IllegalTransition
from turnwise.states.events import CompactionEvent
from turnwise.states.names import Audience, Need, Stage, StopReason, Tail
from turnwise.states.writes import CutHistory, EraseEdits, EraseMessage, InsertBoundary, InsertMessage

S = ChatState


def after(life: Life, **changes: dict[str, Any]) -> Life:
    """Return the life with other values in these groups of facts."""
    groups = {name: replace(getattr(life.facts, name), **changed) for name, changed in changes.items()}
    life.facts = replace(life.facts, **groups)
    return life


def interrupted_while_crowded() -> Life:
    """Return a pending chat that continues a partial answer to a message that hardly fitted."""
    life = crowded(context_limit=100)
    life = after(life, compaction={"next_tokens": 100})
    life.claim()
    life.interrupt()
    life.settle(life.partial(text="so far " * 40))
    life.fire(t.Resume)
    return life


def test_usage_of_a_lost_summary_is_counted_once() -> None:
    """The next holder makes another summary, and does not know the usage of the first."""
    life = compacting()
    before = life.facts.usage
    life.attempt()
    life.held(t.Released, usage=USAGE)
    assert life.facts.usage == before + USAGE.marked_partial().as_compaction()
    assert (life.facts.step.attempt_open, life.facts.step.lost) == (False, 1)
    spent = life.facts.usage
    assert [event.kind for event in life.claim().events] == ["status", "compaction"]
    assert (life.facts.usage, life.facts.step.attempt, life.facts.step.lost) == (spent, 3, 1)


def test_reply_over_the_threshold_leads_to_a_compaction() -> None:
    life = compacting()
    assert (life.facts.state, life.facts.compaction.need) == (S.compacting, Need.due)
    life.attempt()
    life.compact()
    assert (life.facts.state, life.facts.step.number, life.facts.turn.reentries) == (S.streaming, 2, 1)
    assert (life.facts.compaction.need, life.facts.compaction.count) == (Need.none, 1)


def test_reentries_are_bounded() -> None:
    life = compacting(max_reentries=2)
    for _ in range(2):
        life.compact()
        life.reply(tokens=10)
        life.send()
        life.claim()
        life.reply(tokens=90)
    assert life.facts.turn.number == 3
    again = compacting(max_reentries=1)
    again.compact()
    again.reply(tokens=10, stop=StopReason.end_turn)
    assert (again.facts.state, again.facts.stop_reason) == (S.waiting, StopReason.end_turn)


@pytest.mark.parametrize("fails", [False, True])
def test_compactions_of_a_turn_are_bounded(*, fails: bool) -> None:
    life = compacting(local("a"), max_per_turn=1)
    life.held(t.CompactionFailed, error=ERROR, usage=USAGE) if fails else life.compact()
    life.reply(local("b"), tokens=10)
    life.run_tools()
    life.reply(local("c"), tokens=90)
    assert (life.facts.state, life.facts.turn.compactions) == (S.executing_tools, 1)


def test_answer_of_a_subagent_stands_after_compaction() -> None:
    """Otherwise the model would write another text, and the parent would get that instead of the answer."""
    answered, looked = compacting(), compacting(local("a"))
    for life in (answered, looked):
        life.facts = replace(life.facts, profile=replace(life.facts.profile, parent="p", parent_call="a"))
        life.compact()
    assert (answered.facts.state, answered.facts.stop_reason) == (S.waiting, StopReason.end_turn)
    assert looked.facts.state == S.streaming


@pytest.mark.parametrize(("limit", "spent"), [(30, True), (31, False)])
@pytest.mark.parametrize("fails", [False, True])
def test_usage_of_a_compaction_counts_before_the_next_step(limit: int, *, fails: bool, spent: bool) -> None:
    life = compacting(local("a"), turn_tokens=limit)
    if fails:
        life.held(t.CompactionFailed, error=ERROR, usage=USAGE)
    else:
        life.compact()
    assert life.facts.state is (S.waiting if spent else S.streaming)
    assert life.facts.stop_reason == (StopReason.token_budget if spent else None)


def test_unproductive_compaction_ends_compaction_in_the_turn() -> None:
    life = compacting()
    life.compact()
    decided = life.reply(local("a"), tokens=95)
    assert [event.phase for event in decided.events if event.kind == "compaction"] == ["unproductive"]
    life.run_tools()
    life.reply(tokens=95)
    assert life.facts.state is S.waiting
    life.send()
    life.claim()
    life.reply(tokens=95)
    assert life.facts.state is S.compacting


def test_reply_without_usage_proves_nothing() -> None:
    life = compacting()
    life.compact()
    life.reply(local("a"), tokens=None)
    assert life.facts.compaction.unproven
    life.run_tools()
    life.reply(tokens=10)
    assert not life.facts.compaction.unproven


def test_failed_compaction_is_not_retried_in_the_step() -> None:
    life = compacting(local("a"))
    seen = len(life.messages)
    decided = life.fail_to_compact()
    assert (life.facts.state, len(life.messages)) == (S.streaming, seen)
    assert [(event.phase, event.error is None) for event in decided.events if event.kind == "compaction"] == [
        ("failed", False)
    ]
    life.reply(tokens=90)
    assert life.facts.state is S.compacting


def test_compaction_comes_before_client_calls() -> None:
    life = compacting(client("a"))
    assert life.facts.state is S.compacting
    life.compact(2)
    assert (life.facts.state, life.facts.history.tail) == (S.requires_action, Tail.awaits_answer)
    life.submit()
    assert [message.call_index for message in life.messages if message.result] == [0]


def test_requested_compaction_is_no_turn() -> None:
    life = waiting()
    life.fire(t.RequestCompaction)
    life.claim()
    decided = life.compact()
    assert life.facts.state is S.waiting
    assert "turn_finished" not in [event.kind for event in decided.events]
    assert (life.facts.turn.number, life.facts.step.number) == (1, 2)


def test_edit_drops_a_later_boundary() -> None:
    life = compacting()
    life.compact()
    life.reply(tokens=10)
    life.edit("m1")
    assert (life.facts.history.boundary, life.facts.history.foldable) == (0, 1)
    assert (life.facts.compaction.unproven, life.facts.compaction.need) == (False, Need.none)


def test_context_overflow_compacts_within_the_step() -> None:
    life = refused()
    assert life.facts.state == S.compacting
    assert (life.facts.step.stage, life.facts.compaction.need) == (Stage.refused, Need.due)
    life.attempt()
    life.compact(1)
    facts = life.facts
    assert (facts.state, facts.step.number, facts.turn.steps, facts.turn.reentries) == (S.streaming, 1, 1, 0)
    assert (facts.step.stage, facts.step.attempt, facts.history.tail) == (Stage.asking, 2, Tail.awaits_answer)
    assert facts.usage.compaction == USAGE


def test_overflow_resets_the_failure_counters() -> None:
    """The next attempt is the first of its kind, with all retries."""
    life = streaming()
    life.held(t.AttemptDiscarded, error=ERROR, delay=1.0, retry_at=life.now, paid=True, usage=None)
    life.attempt()
    timed_out = replace(ERROR, kind="startup_timeout")
    life.held(t.AttemptDiscarded, error=timed_out, delay=1.0, retry_at=life.now, timed_out=True, usage=None)
    life.attempt()
    life.held(t.LeaseExpired)
    life.claim()
    tried = life.facts.step
    assert (tried.failures, tried.paid, tried.timeouts, tried.lost) == (2, {ERROR.kind: 1}, 1, 1)
    life.overflow()

    step = life.facts.step
    assert (step.failures, step.paid, step.timeouts, step.lost, step.retry_at) == (0, {}, 0, 0, None)
    assert (step.number, step.attempt, step.attempt_open) == (tried.number, tried.attempt, False)


def test_step_is_compacted_for_overflow_once() -> None:
    life = refused()
    life.compact(1)
    life.attempt()
    with pytest.raises(IllegalTransition):
        life.overflow()
    life.reply(tokens=95)
    assert (life.facts.state, life.facts.turn.compacts_no_more) == (S.waiting, True)


def test_failed_overflow_compaction_ends_in_an_error() -> None:
    life = refused()
    life.fail_to_compact(error=replace(ERROR, status=429, detail="request 7"))
    error = life.facts.last_error
    assert (life.facts.state, error and error.kind) == (S.error, "context_overflow")
    assert "too many requests" in error.message
    assert (error.status, error.detail) == (429, "request 7")
    life.fire(t.Resume)
    life.claim()
    assert (life.facts.state, life.facts.step.number, life.facts.step.stage) == (S.streaming, 2, Stage.asking)
    life.overflow()
    assert life.facts.state is S.compacting


@pytest.mark.parametrize("end", ["compact", "fail", "decline"])
@pytest.mark.parametrize("before", ["message", "results", "continuation"])
def test_prompt_that_will_not_fit_is_folded_before_the_step(before: str, end: str) -> None:
    """The step follows for every outcome: only a provider's refusal ends in an error."""
    if before == "results":
        life = two_results(executing(tokens=79))
        decision = life.held(t.ToolsFinished)
    else:
        life = crowded() if before == "message" else interrupted_while_crowded()
        decision = life.claim()
    step = life.facts.step.number
    assert (life.facts.state, life.facts.compaction.need, life.facts.turn.compactions) == (S.compacting, Need.due, 0)
    event = decision.events[-1]
    assert isinstance(event, CompactionEvent)
    assert event.estimated
    assert (event.context_tokens or 0) > 100
    life.compact(1) if end == "compact" else life.fail_to_compact(declined=end == "decline")
    assert (life.facts.state, life.facts.step.number, life.facts.step.stage) == (S.streaming, step + 1, Stage.asking)
    assert (life.facts.turn.compactions, life.facts.turn.reentries, life.facts.compaction.step) == (1, 0, step)


@pytest.mark.parametrize(
    "life",
    [
        pytest.param(lambda: crowded(threshold_percent=100), id="compaction is off"),
        pytest.param(lambda: crowded(context_limit=0), id="the window is off"),
        pytest.param(lambda: crowded(max_per_turn=0), id="the turn has no compaction left"),
        pytest.param(lambda: after(crowded(), compaction={"step": 1}), id="the step was compacted"),
        pytest.param(lambda: after(crowded(), compaction={"unproven": True}), id="a compaction is unproven"),
        pytest.param(lambda: after(crowded(), history={"foldable": 1}), id="nothing else is there"),
        pytest.param(lambda: after(crowded(), compaction={"next_tokens": 100}), id="it fits"),
        pytest.param(lambda: after(crowded(), compaction={"next_tokens": None}), id="its length is unknown"),
    ],
)
def test_step_goes_ahead_whose_prompt_cannot_be_folded(life: Callable[[], Life]) -> None:
    stands = life()
    stands.claim()
    assert stands.facts.state is S.streaming


def test_estimate_follows_what_the_model_sees() -> None:
    life = crowded()
    expected = life.facts.compaction.next_tokens
    assert expected == 60 + 1 + 50
    life.fire(t.Configured, agent="research")
    assert (life.facts.compaction.next_tokens, life.facts.compaction.context_limit) == (expected, None)
    life.edit("m3")
    assert life.facts.compaction.next_tokens is None
    life.claim()
    life.reply(tokens=10)
    assert life.facts.compaction.next_tokens == 11
    life.fire(t.ClearContext)
    assert life.facts.compaction.next_tokens == 0


# Forks


def fork_of(parent: Life) -> Life:
    history = parent.facts.history
    child = Life()
    child.fire(
        t.Create,
        profile=PROFILE,
        inheritance=Inheritance(
            messages=tuple(parent.messages),
            boundary=history.boundary,
            foldable=history.foldable,
            serial=parent.facts.serial,
            tail=history.tail,
            compactions=parent.facts.compaction.count,
        ),
    )
    return child


def test_fork_continues_its_parents_history() -> None:
    parent = waiting()
    child = fork_of(parent)
    assert child.facts.state == S.waiting
    assert (child.messages, child.facts.history) == (parent.messages, parent.facts.history)
    child.send("and then?")
    child.claim()
    assert (child.messages[-1].id, child.messages[-1].position) == ("m3", 3)
    assert (child.facts.turn.number, child.facts.step.number) == (2, 2)


def test_fork_keeps_the_boundary() -> None:
    parent = compacting(after_final_step="rest")
    parent.compact(1)
    decision = fork_of(parent).decisions[0]
    (boundary,) = (write for write in decision.writes if isinstance(write, InsertBoundary))
    assert (boundary.kind, boundary.position) == ("boundary:compaction", parent.facts.history.boundary)
    assert boundary.carried == (boundary.position + 1, 1)
    assert len([write for write in decision.writes if isinstance(write, InsertMessage)]) == len(parent.messages)
    decided = [event.message for event in decision.events if event.kind == "message"]
    assert decided == [message for message in parent.messages if message.audience is not Audience.model]


@pytest.mark.parametrize("case", [*cases()])
def test_history_version_is_that_of_the_last_message_change(case: Case) -> None:
    """A worker compares it to know whether its cached view is current."""
    life = case.build()
    case.fire(life)
    forked = fork_of(life).decisions if life.messages else ()
    for decision in [*life.decisions, *forked]:
        kinds = {type(write) for write in decision.writes}
        changed = not kinds.isdisjoint((InsertMessage, CutHistory, EraseMessage, EraseEdits))
        assert (decision.facts.history_version == decision.facts.version) is changed, decision.trigger
