"""Tool calls: each gets exactly one result from one source, and forbidden calls never start."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.life import NOW, USAGE, Life, asking, client, delegated, executing, local
from turnwise.states import ChatState, IllegalTransition, Trigger
from turnwise.states import triggers as t
from turnwise.states.arguments import SubagentAnswer
from turnwise.states.calls import Answer, ToolCall, ToolResult
from turnwise.states.errors import InvalidContent, ToolResultMismatch
from turnwise.states.facts import MOST_LOST
from turnwise.states.messages import ToolResultPart
from turnwise.states.names import OPEN_STATUSES, CallStatus, Executor
from turnwise.states.step_calls import StepCalls
from turnwise.states.values.digests import digest
from turnwise.states.values.values import unshared
from turnwise.states.writes import PutCall

S = ChatState


def results(life: Life) -> dict[str, ToolResultPart]:
    found = [message.result for message in life.messages if message.result]
    assert len({result.call_id for result in found}) == len(found)
    return {result.call_id: result for result in found}


def test_results_are_stored_as_they_finish() -> None:
    life = executing(local("a"), local("b", 1))
    life.start("b")
    life.finish("b")
    life.start("a")
    decided = life.finish("a", fails=True).events[-1]
    assert [message.call_index for message in life.messages[-2:]] == [1, 0]
    assert (decided.call_id, decided.index, decided.is_error, decided.outcome) == ("a", 0, True, CallStatus.failed)


@pytest.mark.parametrize("finished", ["unknown", "a"])
def test_only_an_open_local_call_takes_a_result(finished: str) -> None:
    life = executing(local("a"), client("c", 1))
    life.finish("a")
    for call_id in (finished, "c"):
        with pytest.raises(IllegalTransition):
            life.finish(call_id)
    assert list(results(life)) == ["a"]


def test_at_most_once_call_starts_once() -> None:
    life = executing(local("a"), local("b", 1, crash="at_least_once"))
    life.start("a")
    life.start("b")
    life.start("b")
    with pytest.raises(IllegalTransition):
        life.start("a")


@pytest.mark.parametrize("trigger", [t.Released, t.LeaseExpired])
def test_crash_makes_started_at_most_once_calls_unknown(trigger: type[Trigger]) -> None:
    life = executing(local("a"), local("b", 1, crash="at_least_once"), local("c", 2))
    life.start("a")
    life.start("b")
    life.held(trigger)
    assert results(life)["a"].outcome is CallStatus.unknown
    assert "unknown" in str(results(life)["a"].output)
    assert [call.call_id for call in life.facts.open_calls] == ["b", "c"]
    life.claim()
    assert life.facts.state is S.executing_tools


@pytest.mark.parametrize("trigger", [t.Released, t.LeaseExpired])
def test_reconcilable_call_stays_open_after_a_crash(trigger: type[Trigger]) -> None:
    life = executing(local("a", reconciles=True), local("b", 1, reconciles=True, crash="at_least_once"))
    life.start("a")
    life.start("b")
    life.held(trigger)
    assert [call.call_id for call in life.facts.open_calls] == ["a", "b"]
    life.claim()
    with pytest.raises(IllegalTransition):
        life.start("a")
    life.start("b")
    life.held(t.CallStarted, call_id="a", not_done=True)


@pytest.mark.parametrize("trigger", [t.Released, t.LeaseExpired])
def test_calls_are_unknown_after_25_lost_workers(trigger: type[Trigger]) -> None:
    """One of them may be what ends the workers."""
    life = executing(local("a", crash="at_least_once"), local("b", 1, reconciles=True), local("c", 2))
    life.start("b")
    for worker in range(MOST_LOST):
        assert (life.facts.step.lost, results(life)) == (worker, {})
        life.start("a")
        life.held(trigger)
        life.claim()
    assert {call: result.outcome for call, result in results(life).items()} == dict.fromkeys("ab", CallStatus.unknown)
    assert [call.call_id for call in life.facts.open_calls] == ["c"]
    life.finish("c")
    life.held(t.ToolsFinished)
    assert life.facts.step.lost == 0, "the next step has lost no worker yet"


def test_submission_answers_every_open_call() -> None:
    life = asking(client("a", within=9), client("b", 1))
    answers = life.submit(ToolResult("b", {"x": 1}, is_error=True), ToolResult("a", "yes"))
    calls = {write.call.call_id: write.call for write in answers.writes if isinstance(write, PutCall)}
    assert {call.answer.receipt_id for call in calls.values() if call.answer} == {f"c-r{answers.facts.version}"}
    assert calls["b"].answer.digest == digest([{"x": 1}, True])
    assert (calls["a"].status, calls["a"].deadline, calls["b"].status) == ("succeeded", None, "failed")
    assert life.facts.open_calls == ()


def test_deadline_counts_from_the_request_to_the_client() -> None:
    life = executing(local("l"), client("a", 1, within=3), client("b", 2), action_deadline=60)
    life.wait(10)
    asked = life.run_tools()
    deadlines = {call.call_id: call.deadline for call in asked.facts.open_calls}
    assert deadlines == {"a": NOW + timedelta(seconds=13), "b": NOW + timedelta(seconds=70)}
    assert asked.events[0].calls == asked.facts.open_calls


def test_passed_deadline_answers_only_due_calls() -> None:
    life = asking(client("a", within=3), client("b", 1, within=9), client("c", 2))
    life.wait(3)
    life.fire(t.DeadlinePassed)
    assert (life.facts.state, list(results(life))) == (S.requires_action, ["a"])
    with pytest.raises(IllegalTransition):
        life.fire(t.DeadlinePassed)
    life.submit()
    assert results(life)["a"].outcome is CallStatus.timed_out
    assert "unknown" in str(results(life)["a"].output)
    assert set(results(life)) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("ends", "outcome", "is_error"),
    [("interrupt", CallStatus.interrupted, False), ("fail", CallStatus.cancelled, True)],
)
def test_open_calls_get_synthetic_results(ends: str, outcome: CallStatus, is_error: Any) -> None:
    life = executing(local("a"), local("b", 1), client("c", 2))
    life.finish("a")
    if ends == "interrupt":
        life.interrupt()
        life.settle()
    else:
        life.fail()
    assert results(life)["a"].outcome is CallStatus.succeeded
    assert {(results(life)[name].outcome, results(life)[name].is_error) for name in "bc"} == {(outcome, is_error)}
    assert [message.synthetic for message in life.messages[-3:]] == [False, True, True]


def approvals(*answers: ToolResult) -> Life:
    """Return a chat whose client has answered two calls that need approval."""
    life = asking(client("a", approval="asked", within=5), client("b", 1, approval="asked"))
    life.submit(*answers)
    return life


@pytest.mark.parametrize("output", [True, False, {"approved": True}, {"approved": False, "reason": "no"}])
@pytest.mark.parametrize("is_error", [True, False])
def test_boolean_result_is_no_approval_unless_asked(output: Any, is_error: bool) -> None:
    """A client's tool may well answer true: the call has its result then, and does not run elsewhere."""
    life = asking(client("a"), client("b", 1, approval="asked"))
    life.submit(ToolResult("a", output, is_error=is_error), ToolResult("b", {"approved": False}))
    ended = CallStatus.failed if is_error else CallStatus.succeeded
    assert {call.call_id: call.status for call in life.facts.calls} == {"a": ended, "b": CallStatus.cancelled}
    assert (results(life)["a"].output, results(life)["a"].outcome) == (output, ended)
    assert life.facts.state is S.pending


def test_approved_call_runs_and_denied_call_does_not() -> None:
    life = approvals(ToolResult("a", output=True), ToolResult("b", {"approved": False, "reason": "too dear"}))
    life.claim()
    assert (life.facts.state, [call.call_id for call in life.facts.open_calls]) == (S.executing_tools, ["a"])
    assert life.facts.calls[0].deadline is None
    assert results(life)["b"].outcome is CallStatus.cancelled
    assert "too dear" in str(results(life)["b"].output)
    life.run_tools()
    assert life.facts.state is S.streaming


@pytest.mark.parametrize("approval", [True, {"approved": True}, {"approved": True, "arguments": {}}])
def test_approval_with_is_error_is_refused(approval: Any) -> None:
    """The two contradict each other, and the model would see a denial that the client did not give."""
    life = asking(client("a", approval="asked"))
    with pytest.raises(InvalidContent, match="an error denies, and approves nothing"):
        life.submit(ToolResult("a", approval, is_error=True))
    assert life.facts.state is S.requires_action
    life.submit(ToolResult("a", output={"approved": False}, is_error=True))


@given(
    call=st.builds(
        ToolCall,
        call_id=st.just("a"),
        name=st.just("work"),
        arguments=st.just({"key": "said"}),
        executor=st.sampled_from(Executor),
        index=st.just(0),
        step=st.just(1),
        status=st.sampled_from(CallStatus),
        approval=st.sampled_from([None, "asked", "granted"]),
        subagent_action=st.sampled_from(["ask", "wait"]),
        asked_arguments=st.none() | st.just({"key": "asked"}),
        refusal=st.none() | st.just("It was not offered."),
        answer=st.none() | st.just(Answer("digest", "r1", NOW, "salt of the answer")),
        salt=st.just("salt"),
    ),
    arguments=st.booleans(),
    answer=st.booleans(),
)
def test_blanked_call_keeps_no_content_and_does_not_run(call: ToolCall, *, arguments: bool, answer: bool) -> None:
    both = call.asked_arguments is not None  # what the client put in their place came with its answer
    blank = call.blanked(arguments=arguments, answer=answer)
    if arguments or both:
        content = (blank.arguments, blank.asked_arguments, blank.salt)
        assert content == ({}, None, "")
        has_to_run = call.executor is Executor.local or call.approval == "asked" or call.subagent_action == "wait"
        would_run = call.status in OPEN_STATUSES and has_to_run
        assert (blank.refusal is not None) == (would_run or call.refusal is not None)
        assert blank.refusal is None or blank.refusal.startswith("Its arguments were erased")
        was_started = call.status is CallStatus.started and call.refusal is None
        assert blank.has_lost_its_arguments == (would_run and was_started)
        assert blank.blanked(arguments=True, answer=False) == blank
    else:
        content = (blank.arguments, blank.asked_arguments, blank.salt)
        assert content == ({"key": "said"}, None, "salt")
        assert blank.refusal == call.refusal
    if call.answer is None:
        assert blank.answer is None
    elif answer or both:
        assert blank.answer == Answer("", "r1", NOW, "")
    else:
        assert blank.answer == call.answer
    unchanged = ("call_id", "name", "executor", "index", "step", "status", "approval")
    assert [getattr(blank, name) for name in unchanged] == [getattr(call, name) for name in unchanged]


TWO = (delegated("a"), delegated("b", 1))


def test_last_subagent_answer_lets_the_chat_continue() -> None:
    life = asking(*TWO)
    assert (life.facts.state, life.facts.awaits, life.facts.resting) == (ChatState.requires_action, "subagents", False)
    assert "action_required" not in [event.kind for event in life.events]
    first = life.help("b")
    assert (first.target, life.facts.awaits) == (ChatState.requires_action, "subagents")
    noted = first.writes[0]
    assert (noted.kind, noted.id, noted.digest) == ("subagent", "subagent-b:7", "7" * 64)
    second = life.help("a")
    assert (second.target, life.facts.awaits) == (ChatState.pending, None)
    assert (life.facts.turn.subagents_usage, life.facts.subagents_usage) == (USAGE + USAGE, USAGE + USAGE)
    assert [call.status for call in life.facts.calls] == [CallStatus.succeeded] * 2


@pytest.mark.parametrize(
    ("call_id", "results"),
    [
        ("mine", (ToolResult("mine", 1),)),
        ("ghost", (ToolResult("ghost", 1),)),
        ("a", (ToolResult("a", 1), ToolResult("a", 1))),
        ("a", ()),
        ("a", (ToolResult("a", 1), ToolResult("mine", 1))),
    ],
)
def test_subagent_answers_only_its_own_call(call_id: str, results: tuple[ToolResult, ...]) -> None:
    life = asking(client("mine"), delegated("a", 1))
    with pytest.raises(ToolResultMismatch):
        life.help(call_id, results=results)


def test_client_answers_no_call_of_a_subagent() -> None:
    life = asking(client("mine"), delegated("a", 1))
    for wrong in ((ToolResult("a", 1),), (ToolResult("mine", 1), ToolResult("a", 1))):
        with pytest.raises(ToolResultMismatch):
            life.submit(*wrong)
    only_subagents = asking(delegated("a"))
    with pytest.raises(ToolResultMismatch, match="no call is open, and no result was given"):
        only_subagents.fire(t.SubmitToolResults, results=())


def test_subagent_answers_once_while_the_chat_waits() -> None:
    life = asking(*TWO)
    life.help("a")
    with pytest.raises(ToolResultMismatch):
        life.help("a")
    early = executing(local("x"), delegated("a", 1))
    with pytest.raises(IllegalTransition):
        early.help("a")
    early.run_tools()
    assert (early.facts.state, early.facts.awaits) == (ChatState.requires_action, "subagents")


def test_approved_call_runs_while_a_subagent_works() -> None:
    life = asking(client("pay", approval="asked"), delegated("a", 1))
    assert life.submit(ToolResult("pay", output=True)).target is ChatState.pending
    life.claim()
    assert life.facts.state is ChatState.executing_tools
    life.run_tools()
    assert (life.facts.state, life.facts.awaits) == (ChatState.requires_action, "subagents")
    assert life.help("a").target is ChatState.pending


def test_subagent_usage_counts_in_the_budget() -> None:
    life = asking(delegated("a"), turn_tokens=2 * (10 + 5))
    life.help("a")
    assert life.claim().target is ChatState.waiting
    assert life.facts.stop_reason == "token_budget"
    plain: Life = asking(client("a"), turn_tokens=2 * (10 + 5))
    plain.submit()
    assert plain.claim().target is ChatState.streaming


def test_chat_awaiting_subagents_cannot_be_archived() -> None:
    """Otherwise its subagents could not answer."""
    both = asking(client("mine"), delegated("a", 1))
    assert both.fire(t.Archived).target is ChatState.requires_action
    with pytest.raises(IllegalTransition):
        asking(delegated("a")).fire(t.Archived)


def test_background_lists_unfinished_subagents() -> None:
    life = asking(*(delegated(name, place, subagent_action="start") for place, name in enumerate("abcd")))
    for name, owes in (("a", True), ("b", True), ("c", False)):
        life.help(name, subagents=(SubagentAnswer(chat_id=name, owes=owes),))
    assert life.facts.background == ("a", "b")
    answers = [SubagentAnswer(chat_id=name, version=7, head="7" * 64, usage=USAGE, owes=name == "b") for name in "bac"]
    decided = life.help("d", subagents=answers)
    assert [write.id for write in decided.writes if write.kind == "subagent"] == ["b:7", "a:7", "c:7"]
    assert life.facts.background == ("b",)
    assert life.facts.subagents_usage == USAGE + USAGE + USAGE


def test_edit_clears_background_and_interrupt_keeps_it() -> None:
    def started() -> Life:
        life = asking(delegated("a", subagent_action="start"), client("mine", 1))
        life.help("a", subagents=(SubagentAnswer(chat_id="a", owes=True),))
        return life

    edited, interrupted = started(), started()
    edited.edit("m1")
    assert edited.facts.background == ()
    interrupted.fire(t.Interrupt)
    assert interrupted.facts.background == ("a",)


# Counts over the calls of a step


NAMES = [f"c{number}" for number in range(6)]
calls = st.builds(
    lambda place, status, executor, step, agent: ToolCall(
        call_id=NAMES[place],
        name="t",
        arguments={},
        executor=executor,
        index=place,
        step=step,
        status=status,
        agent=agent,
    ),
    st.integers(0, 5),
    st.sampled_from(CallStatus),
    st.sampled_from([Executor.local, Executor.client, Executor.chat]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([None, "a"]),
)


@given(st.lists(st.lists(calls, max_size=3), max_size=8))
def test_incremental_counts_equal_fresh_counts(puts: list[list[ToolCall]]) -> None:
    known: dict[str, ToolCall] = {}
    counted = StepCalls()
    for put in puts:
        counted = counted.put(*put)
        known |= {call.call_id: call for call in put}
        fresh = StepCalls(known.values())
        assert counted == fresh == tuple(sorted(known.values(), key=lambda call: call.index))
        assert (counted.local, counted.open_local, counted.open_client, counted.open_delegated, counted.step) == (
            sum(call.is_local for call in known.values()),
            sum(call.is_local and call.open for call in known.values()),
            sum(call.is_client and call.open for call in known.values()),
            sum(call.is_delegated and call.open for call in known.values()),
            next(iter(steps)) if len(steps := {call.step for call in known.values()}) == 1 else None,
        )
        assert (counted.agent, counted.needs, counted.agent_needed) == (fresh.agent, fresh.needs, fresh.agent_needed)
        assert counted.has_open == any(call.open for call in known.values())
        assert json.loads(counted.ids) == [call.call_id for call in counted]
        assert all(counted.get(name) is known.get(name) for name in NAMES)


def test_duplicate_ids_are_not_distinct() -> None:
    call = local("a")
    assert not StepCalls([call, call]).are_distinct
    assert StepCalls([call]).are_distinct


def test_unshared_calls_have_the_same_counts() -> None:
    life = executing(local("a"), local("b", 1))
    life.start("a")
    known = life.facts.calls
    copies: Any = unshared(life.facts).calls
    counts = ("local", "open_local", "open_client", "open_delegated", "needs", "agent", "step", "ids", "are_distinct")
    assert {name: getattr(copies, name) for name in counts} == {name: getattr(known, name) for name in counts}
    assert copies.are_those_of(known)
    assert type(copies) is not StepCalls
    assert [*unshared(copies)] == [*known]
