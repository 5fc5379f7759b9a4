"""Turns: how they begin, what ends them, and that their end is told once, with the right reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from support.life import (
    USAGE,
    Life,
    asking,
    client,
    compacting,
    executing,
    failed,
    interrupted,
    local,
    pending,
    queued,
    streaming,
)
from turnwise.states import ChatState, Trigger
from turnwise.states.calls import ToolResult
from turnwise.states.decide import legal_triggers
from turnwise.states.names import StopReason, Tail
from turnwise.states.usage import NO_USAGE, Usage

S, T = ChatState, Trigger

ANSWER = local("a", stop_after=True, answers=True)


def test_a_reply_without_calls_ends_the_turn_with_its_own_reason_and_the_providers_word() -> None:
    ended = streaming().reply(stop=StopReason.max_tokens).events[-1]

    assert (ended.turn, ended.stop_reason, ended.provider_reason) == (1, StopReason.max_tokens, "stop")
    assert ended.usage == USAGE


def test_calls_in_a_reply_beat_its_stop_reason() -> None:
    life = streaming()
    life.reply(local("a"), stop=StopReason.max_tokens)
    life.run_tools()

    assert life.facts.state is S.streaming
    assert life.facts.turn.ended_by is None


def test_an_empty_reply_ends_the_turn_and_stores_nothing() -> None:
    decision = streaming().reply(text="")

    assert [write.kind for write in decision.writes] == ["usage", "lease:dropped"]
    assert decision.facts.stop_reason is StopReason.end_turn


def test_a_stop_after_tool_ends_the_turn_when_it_succeeds() -> None:
    life = executing(local("a", stop_after=True))
    life.run_tools()

    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.stop_after_tool)


def test_a_turn_that_a_stop_after_tool_has_ended_goes_on_when_it_is_resumed_unless_it_has_its_answer() -> None:
    """An answer is one, whether the model gave it as text or by a call."""
    life = executing(local("a", stop_after=True), local("b", 1))
    life.run_tools()
    assert life.facts.history.tail is Tail.awaits_answer
    assert T.resume in legal_triggers(life.facts)

    life = executing(ANSWER, local("b", 1))
    life.run_tools()
    assert life.facts.history.tail is Tail.answered
    assert T.resume not in legal_triggers(life.facts)

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
    ("given", "fails"),
    [
        (beside_a_client_call, False),
        (beside_a_tool, False),
        (beside_a_tool, True),
        (before_a_compaction, False),
        (before_a_compaction, True),
    ],
)
def test_a_turn_that_has_its_answer_has_it_however_it_ended(given: Callable[[], Life], *, fails: bool) -> None:
    """To go on with it would ask for another answer, and replace the one that was given."""
    life = given()
    if fails:
        life.fail()
    else:
        life.interrupt()
    if not life.facts.settled:
        life.settle()

    assert life.facts.state is (S.error if fails else S.interrupted)
    assert life.facts.history.tail is Tail.answered
    assert T.resume not in legal_triggers(life.facts)
    assert T.send_message in legal_triggers(life.facts)


def test_an_answer_that_was_refused_leaves_a_turn_that_may_go_on() -> None:
    life = executing(ANSWER, max_steps=1)
    life.finish("a", fails=True)
    life.held(T.tools_finished)

    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.max_steps)
    assert T.resume in legal_triggers(life.facts)


def test_a_stop_after_tool_that_fails_lets_the_turn_go_on() -> None:
    life = executing(local("a", stop_after=True))
    life.finish("a", fails=True)
    life.held(T.tools_finished)

    assert life.facts.state is S.streaming


def test_a_stop_after_tool_beside_a_client_call_ends_the_turn_once_the_client_has_answered() -> None:
    life = executing(local("a", stop_after=True), client("b", 1))
    life.run_tools()
    assert life.facts.state is S.requires_action
    life.submit()
    life.claim()

    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.stop_after_tool)


def test_a_turn_out_of_steps_ends_when_the_clients_results_come() -> None:
    life = asking(max_steps=1)
    life.submit(ToolResult("a", 1))
    life.claim()

    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.max_steps)


def test_a_new_turn_has_a_fresh_budget_and_its_own_usage() -> None:
    life = streaming(max_steps=1)
    life.reply()
    life.send()
    life.claim()

    assert (life.facts.turn.number, life.facts.turn.first_step, life.facts.turn.steps) == (2, 2, 1)
    assert life.facts.turn.usage == Usage()
    assert life.facts.usage == USAGE


def test_a_resumed_turn_is_the_same_turn_with_a_fresh_budget() -> None:
    life = interrupted(max_steps=1)
    used = life.facts.turn.usage
    life.fire(T.resume)

    turn = life.facts.turn
    assert (turn.number, turn.steps, turn.open, turn.ended_by, turn.usage) == (1, 0, True, None, used)
    assert (life.facts.interrupt_reason, life.facts.stop_reason) == (None, None)


def test_resuming_a_rested_queue_begins_a_turn_with_its_head() -> None:
    life = queued(streaming(), "first", "second")
    life.interrupt()
    life.settle()
    life.fire(T.resume)

    assert (life.facts.turn.number, life.messages[-1].text) == (2, "first")
    assert [message.text for message in life.facts.queue] == ["second"]


def test_an_error_ends_the_turn_is_named_and_is_forgotten_by_the_next_message() -> None:
    life = failed()
    assert life.facts.stop_reason is StopReason.error
    assert life.facts.last_error is not None
    life.send()

    assert (life.facts.last_error, life.facts.stop_reason) == (None, None)


def test_the_end_of_a_turn_is_told_once() -> None:
    life = interrupted()
    life.fire(T.request_compaction)
    life.claim()
    life.interrupt()
    life.settle()

    assert sum(event.kind == "turn_finished" for event in life.events) == 1
    assert life.facts.stop_reason is StopReason.interrupted


def test_labels_change_without_touching_the_conversation() -> None:
    life: Life = pending()
    history = life.facts.history_version
    life.fire(T.renamed, title="Apples")
    life.fire(T.metadata_changed, metadata={"team": "x"})

    assert (life.facts.profile.title, life.facts.profile.metadata) == ("Apples", {"team": "x"})
    assert life.facts.history_version == history


def test_what_helpers_have_used_counts_on_in_a_resumed_turn_and_not_in_the_next() -> None:
    life = interrupted()
    before = replace(life.facts.turn, helpers_usage=USAGE, usage=USAGE)
    life.facts = replace(life.facts, turn=before)
    life.fire(T.resume, trace="again")
    after = life.facts.turn
    assert (after.number, after.first_step, after.after) == (before.number, before.first_step, before.after)
    assert (after.usage, after.helpers_usage, after.trace, after.open) == (USAGE, USAGE, "again", True)
    life.claim()
    life.attempt()
    life.reply()
    life.send("more")
    assert (life.facts.turn.number, life.facts.turn.helpers_usage) == (before.number + 1, NO_USAGE)


def test_the_chat_that_asked_for_a_turn_is_noted_with_it_and_no_longer_once_a_person_resumes_it() -> None:
    life = streaming()
    life.send("more", asker="lead")
    life.send("by a person")
    life.send("yet more", asker="lead")
    life.fire(T.delete_queued, queued_id=life.facts.queue[2].id)
    assert list(life.facts.askers.values()) == ["lead"]
    life.reply()
    assert (life.facts.turn.asker, life.facts.askers) == ("lead", {})
    life.claim()
    life.interrupt()
    life.settle()
    life.fire(T.resume)
    assert life.facts.turn.asker is None
    life = pending()
    assert life.facts.turn.asker is None
