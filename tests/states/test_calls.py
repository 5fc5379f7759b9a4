"""Tool calls: each gets exactly one result, by whomever, and none starts that must not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.life import NOW, Life, asking, client, executing, failed, interrupted, local, streaming
from turnwise.states import ChatState, IllegalTransition, Trigger
from turnwise.states.calls import Answer, ToolCall, ToolResult
from turnwise.states.digests import digest_of_answer
from turnwise.states.errors import InvalidContent
from turnwise.states.facts import MOST_LOST
from turnwise.states.messages import ToolResultPart
from turnwise.states.names import OPEN_STATUSES, CallStatus, Executor
from turnwise.states.writes import PutCall

S, T = ChatState, Trigger


def results(life: Life) -> dict[str, ToolResultPart]:
    found = [message.result for message in life.messages if message.result]
    assert len({result.call_id for result in found}) == len(found)
    return {result.call_id: result for result in found}


def test_calls_are_recorded_with_the_message_that_asks_for_them_before_any_starts() -> None:
    decision = streaming().reply(local("a"), client("b", 1))

    assert decision.writes[0].kind == "message"
    assert [call.status for call in decision.facts.calls] == [CallStatus.planned] * 2


def test_text_before_calls_is_in_the_same_message() -> None:
    life = executing(local("a"))

    assert [part.type for part in life.messages[-1].parts] == ["text", "tool_call"]


def test_results_are_stored_as_they_finish_with_the_place_of_their_call() -> None:
    life = executing(local("a"), local("b", 1))
    life.start("b")
    life.finish("b")
    life.start("a")
    told = life.finish("a", fails=True).events[-1]

    assert [message.call_index for message in life.messages[-2:]] == [1, 0]
    assert (told.call_id, told.index, told.is_error, told.outcome) == ("a", 0, True, CallStatus.failed)


@pytest.mark.parametrize("finished", ["unknown", "a"])
def test_only_an_open_local_call_takes_a_result(finished: str) -> None:
    life = executing(local("a"), client("c", 1))
    life.finish("a")

    for call_id in (finished, "c"):
        with pytest.raises(IllegalTransition):
            life.finish(call_id)
    assert list(results(life)) == ["a"]


def test_an_at_most_once_call_starts_once_and_an_at_least_once_call_may_start_again() -> None:
    life = executing(local("a"), local("b", 1, crash="at_least_once"))
    life.start("a")
    life.start("b")
    life.start("b")

    with pytest.raises(IllegalTransition):
        life.start("a")


def test_tools_are_not_finished_while_a_local_call_is_open() -> None:
    life = executing(local("a"), local("b", 1))
    life.finish("a")

    with pytest.raises(IllegalTransition):
        life.held(T.tools_finished)


@pytest.mark.parametrize("trigger", [T.released, T.lease_expired])
def test_a_crash_makes_started_at_most_once_calls_unknown_and_leaves_the_others_to_the_next_holder(
    trigger: Trigger,
) -> None:
    life = executing(local("a"), local("b", 1, crash="at_least_once"), local("c", 2))
    life.start("a")
    life.start("b")
    life.held(trigger)

    assert results(life)["a"].outcome is CallStatus.unknown
    assert "unknown" in str(results(life)["a"].output)
    assert [call.call_id for call in life.facts.open_calls] == ["b", "c"]
    life.claim()
    assert life.facts.state is S.executing_tools


@pytest.mark.parametrize("trigger", [T.released, T.lease_expired])
def test_a_call_whose_tool_can_be_asked_stays_open_after_a_crash_and_never_starts_again(trigger: Trigger) -> None:
    life = executing(local("a", reconciles=True), local("b", 1, reconciles=True, crash="at_least_once"))
    life.start("a")
    life.start("b")
    life.held(trigger)

    assert [call.call_id for call in life.facts.open_calls] == ["a", "b"]
    life.claim()
    with pytest.raises(IllegalTransition):
        life.start("a")
    life.start("b")


@pytest.mark.parametrize("trigger", [T.released, T.lease_expired])
def test_started_calls_that_twenty_five_workers_left_behind_are_unknown_and_do_not_run_again(trigger: Trigger) -> None:
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
    life.held(T.tools_finished)
    assert life.facts.step.lost == 0, "what comes next has lost nobody yet"


def test_a_submission_answers_every_open_call_with_one_receipt_and_a_proof() -> None:
    life = asking(client("a", within=9), client("b", 1))
    answers = life.submit(ToolResult("b", {"x": 1}, is_error=True), ToolResult("a", "yes"))

    calls = {write.call.call_id: write.call for write in answers.writes if isinstance(write, PutCall)}
    assert {call.answer.receipt_id for call in calls.values() if call.answer} == {f"c-r{answers.facts.version}"}
    assert calls["b"].answer is not None
    assert calls["b"].answer.digest == digest_of_answer({"x": 1}, is_error=True)
    assert (calls["a"].status, calls["a"].deadline, calls["b"].status) == ("succeeded", None, "failed")
    assert life.facts.open_calls == ()


def test_a_deadline_counts_from_the_moment_the_client_is_asked() -> None:
    life = executing(local("l"), client("a", 1, within=3), client("b", 2), action_deadline=60)
    life.wait(10)
    asked = life.run_tools()

    deadlines = {call.call_id: call.deadline for call in asked.facts.open_calls}
    assert deadlines == {"a": NOW + timedelta(seconds=13), "b": NOW + timedelta(seconds=70)}
    assert asked.events[0].calls == asked.facts.open_calls


def test_a_passed_deadline_answers_the_calls_that_are_due_and_no_others() -> None:
    life = asking(client("a", within=3), client("b", 1, within=9), client("c", 2))
    life.wait(3)
    life.fire(T.deadline_passed)
    assert (life.facts.state, list(results(life))) == (S.requires_action, ["a"])
    with pytest.raises(IllegalTransition):
        life.fire(T.deadline_passed)
    life.submit()

    assert results(life)["a"].outcome is CallStatus.timed_out
    assert "unknown" in str(results(life)["a"].output)
    assert set(results(life)) == {"a", "b", "c"}


def test_an_approval_that_nobody_gave_in_time_leaves_nobody_in_doubt_whether_the_call_ran() -> None:
    life = asking(client("a", approval="asked", within=3), client("b", 1, within=3))
    life.wait(3)
    life.fire(T.deadline_passed)

    assert [results(life)[name].outcome for name in "ab"] == [CallStatus.timed_out] * 2
    assert results(life)["a"].output == "Not run: nobody approved this call before its deadline."
    assert "unknown" in str(results(life)["b"].output)


def test_the_model_goes_on_when_the_last_deadline_has_passed() -> None:
    life = asking(client("a", within=3))
    life.wait(3)
    life.fire(T.deadline_passed)
    life.claim()

    assert life.facts.state is S.streaming


@pytest.mark.parametrize(
    ("ends", "outcome", "is_error"),
    [("interrupt", CallStatus.interrupted, False), ("fail", CallStatus.cancelled, True)],
)
def test_open_calls_get_a_synthetic_result_when_work_stops_and_finished_ones_keep_theirs(
    ends: str, outcome: CallStatus, is_error: Any
) -> None:
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


@pytest.mark.parametrize("life", [interrupted(), failed()], ids=["interrupted", "error"])
def test_a_chat_at_rest_asks_for_nothing(life: Life) -> None:
    assert life.facts.open_calls == ()


def test_an_edit_closes_open_calls_without_a_result_as_their_message_is_gone() -> None:
    life = executing(local("a"), local("b", 1))
    life.finish("a")
    decision = life.edit("m1")

    assert results(life) == {}
    closed = [write.call for write in decision.writes if isinstance(write, PutCall)]
    assert [(call.call_id, call.status) for call in closed] == [("b", CallStatus.cancelled)]
    assert life.facts.calls == ()


def approvals(*answers: ToolResult) -> Life:
    """Return a chat whose client has answered two calls that ask for approval."""
    life = asking(client("a", approval="asked", within=5), client("b", 1, approval="asked"))
    life.submit(*answers)
    return life


@pytest.mark.parametrize("output", [True, False, {"approved": True}, {"approved": False, "reason": "no"}])
@pytest.mark.parametrize("is_error", [True, False])
def test_what_looks_like_an_approval_is_a_result_where_nobody_asked_for_one(output: Any, is_error: bool) -> None:  # noqa: FBT001 - parametrised
    """A client's tool may well answer true: its call has its result then, and is not run by anybody else."""
    life = asking(client("a"), client("b", 1, approval="asked"))
    life.submit(ToolResult("a", output, is_error=is_error), ToolResult("b", {"approved": False}))

    ended = CallStatus.failed if is_error else CallStatus.succeeded
    assert {call.call_id: call.status for call in life.facts.calls} == {"a": ended, "b": CallStatus.cancelled}
    assert (results(life)["a"].output, results(life)["a"].outcome) == (output, ended)
    assert life.facts.state is S.pending


def test_an_approved_call_is_run_by_the_next_holder_and_a_denied_one_is_not() -> None:
    life = approvals(ToolResult("a", output=True), ToolResult("b", {"approved": False, "reason": "too dear"}))
    life.claim()

    assert (life.facts.state, [call.call_id for call in life.facts.open_calls]) == (S.executing_tools, ["a"])
    assert life.facts.calls[0].deadline is None
    assert results(life)["b"].outcome is CallStatus.cancelled
    assert "too dear" in str(results(life)["b"].output)
    life.run_tools()
    assert life.facts.state is S.streaming


@pytest.mark.parametrize("denial", [ToolResult("a", "no", is_error=True), ToolResult("a", output=False)])
def test_a_chat_whose_calls_are_all_denied_goes_on_without_them(denial: ToolResult) -> None:
    life = approvals(denial, ToolResult("b", output=False))
    life.claim()

    assert life.facts.state is S.streaming
    assert {result.is_error for result in results(life).values()} == {True}


def test_an_answer_that_neither_allows_nor_denies_is_refused() -> None:
    life = asking(client("a", approval="asked"))

    with pytest.raises(InvalidContent, match="'a' asks for approval: answer true, false"):
        life.submit(ToolResult("a", "perhaps"))
    assert life.facts.state is S.requires_action


@pytest.mark.parametrize("approval", [True, {"approved": True}, {"approved": True, "arguments": {}}])
def test_an_error_that_says_that_the_call_is_approved_is_refused(approval: Any) -> None:
    """Whoever sent it meant one of the two, and the model would be told of a denial that nobody gave."""
    life = asking(client("a", approval="asked"))

    with pytest.raises(InvalidContent, match="an error denies, and approves nothing"):
        life.submit(ToolResult("a", approval, is_error=True))
    assert life.facts.state is S.requires_action
    life.submit(ToolResult("a", output={"approved": False}, is_error=True))


@pytest.mark.parametrize("erased", [{"arguments": True, "answer": False}, {"arguments": False, "answer": True}])
def test_an_edited_call_loses_its_arguments_and_its_answer_together(erased: dict[str, bool]) -> None:
    """The arguments came with the answer: the digest of either lets the other be guessed."""
    answer = Answer("digest", "r1", NOW, "salt")
    asked = replace(client("a", approval="asked"), arguments={"to": "you"}, salt="salt")
    plain, edited = asked.granted(answer), asked.granted(answer, {"to": "me"})

    blank = edited.blanked(**erased)
    assert (blank.arguments, blank.asked_arguments, blank.salt, blank.answer) == ({}, None, "", Answer("", "r1", NOW))
    assert plain.blanked(**erased) != blank


@pytest.mark.parametrize("executor", [Executor.client, Executor.chat])
@pytest.mark.parametrize("status", CallStatus)
@pytest.mark.parametrize("crash", ["never", "at_least_once"])
def test_what_others_answer_never_starts_here(executor: Executor, status: CallStatus, crash: Any) -> None:
    (call,) = executing(local("a")).facts.calls
    assert call.may_start
    assert not replace(call, executor=executor, status=status, crash=crash).may_start


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
        approval=st.sampled_from(["not_needed", "asked", "granted"]),
        helper_action=st.sampled_from(["ask", "wait"]),
        asked_arguments=st.none() | st.just({"key": "asked"}),
        refusal=st.none() | st.just("It was not offered."),
        answer=st.none() | st.just(Answer("digest", "r1", NOW, "salt of the answer")),
        salt=st.just("salt"),
    ),
    arguments=st.booleans(),
    answer=st.booleans(),
)
def test_a_blanked_call_keeps_nothing_that_was_said_and_is_not_run(
    call: ToolCall,
    *,
    arguments: bool,
    answer: bool,
) -> None:
    both = call.asked_arguments is not None  # what the client put in their place came with its answer
    blank = call.blanked(arguments=arguments, answer=answer)
    if arguments or both:
        kept = (blank.arguments, blank.asked_arguments, blank.salt)
        assert kept == ({}, None, "")
        has_to_run = call.executor is Executor.local or call.approval == "asked" or call.helper_action == "wait"
        would_run = call.status in OPEN_STATUSES and has_to_run
        assert (blank.refusal is not None) == (would_run or call.refusal is not None)
        assert blank.refusal is None or blank.refusal.startswith("Its arguments were erased")
        was_started = call.status is CallStatus.started and call.refusal is None
        assert blank.has_lost_its_arguments == (would_run and was_started)
        assert blank.blanked(arguments=True, answer=False) == blank
    else:
        kept = (blank.arguments, blank.asked_arguments, blank.salt)
        assert kept == ({"key": "said"}, None, "salt")
        assert blank.refusal == call.refusal
    if call.answer is None:
        assert blank.answer is None
    elif answer or both:
        assert blank.answer == Answer("", "r1", NOW, "")
    else:
        assert blank.answer == call.answer
    unchanged = ("call_id", "name", "executor", "index", "step", "status", "approval")
    assert [getattr(blank, name) for name in unchanged] == [getattr(call, name) for name in unchanged]


def test_a_call_of_which_nothing_is_said_is_an_ordinary_one() -> None:
    """What a field means when a row or a caller leaves it out."""
    call = ToolCall(call_id="a", name="work", arguments={}, executor=Executor.local, index=0, step=1)
    assert {name: getattr(call, name) for name in call.__struct_fields__[6:]} == {
        "status": CallStatus.planned,
        "crash": "at_most_once",
        "stop_after": False,
        "answers": False,
        "approval": "not_needed",
        "asked_arguments": None,
        "refusal": None,
        "reconciles": False,
        "helper": None,
        "helper_action": "ask",
        "helper_stays": False,
        "within": None,
        "output_limit_bytes": 65536,
        "agent": None,
        "deadline": None,
        "answer": None,
        "salt": "",
    }
