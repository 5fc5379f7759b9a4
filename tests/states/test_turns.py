"""Turns: how they begin, what ends them, and that their end is told once, with the right reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from support.life import (
    USAGE,
    Life,
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
from turnwise.states.decide import legal_triggers
from turnwise.states.names import StopReason, Tail
from turnwise.states.usage import NO_USAGE, Usage

S, T = ChatState, Trigger

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


def test_empty_reply_stores_no_message() -> None:
    decision = streaming().reply(text="")

    assert [write.kind for write in decision.writes] == ["usage", "lease:dropped"]
    assert decision.facts.stop_reason is StopReason.end_turn


def test_stop_after_tool_ends_the_turn() -> None:
    life = executing(local("a", stop_after=True))
    life.run_tools()

    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.stop_after_tool)


def test_resume_after_stop_after_tool() -> None:
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
def test_answered_turn_cannot_be_resumed(given: Callable[[], Life], *, fails: bool) -> None:
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


def test_refused_answer_leaves_the_turn_resumable() -> None:
    life = executing(ANSWER, max_steps=1)
    life.finish("a", fails=True)
    life.held(T.tools_finished)

    assert (life.facts.state, life.facts.stop_reason) == (S.waiting, StopReason.max_steps)
    assert T.resume in legal_triggers(life.facts)


def test_failed_stop_after_tool_does_not_end_the_turn() -> None:
    life = executing(local("a", stop_after=True))
    life.finish("a", fails=True)
    life.held(T.tools_finished)

    assert life.facts.state is S.streaming


def test_new_turn_has_its_own_usage() -> None:
    life = streaming(max_steps=1)
    life.reply()
    life.send()
    life.claim()

    assert (life.facts.turn.number, life.facts.turn.first_step, life.facts.turn.steps) == (2, 2, 1)
    assert life.facts.turn.usage == Usage()
    assert life.facts.usage == USAGE


def test_resumed_turn_keeps_number_and_usage() -> None:
    life = interrupted(max_steps=1)
    used = life.facts.turn.usage
    life.fire(T.resume)

    turn = life.facts.turn
    assert (turn.number, turn.steps, turn.open, turn.ended_by, turn.usage) == (1, 0, True, None, used)
    assert (life.facts.interrupt_reason, life.facts.stop_reason) == (None, None)


def test_resume_starts_the_head_of_the_queue() -> None:
    life = queued(streaming(), "first", "second")
    life.interrupt()
    life.settle()
    life.fire(T.resume)

    assert (life.facts.turn.number, life.messages[-1].text) == (2, "first")
    assert [message.text for message in life.facts.queue] == ["second"]


def test_error_is_cleared_by_the_next_message() -> None:
    life = failed()
    assert life.facts.stop_reason is StopReason.error
    assert life.facts.last_error is not None
    life.send()

    assert (life.facts.last_error, life.facts.stop_reason) == (None, None)


def test_turn_finished_is_sent_once() -> None:
    life = interrupted()
    life.fire(T.request_compaction)
    life.claim()
    life.interrupt()
    life.settle()

    assert sum(event.kind == "turn_finished" for event in life.events) == 1
    assert life.facts.stop_reason is StopReason.interrupted


def test_subagent_usage_counts_in_a_resumed_turn() -> None:
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


def test_turn_names_the_chat_that_requested_it() -> None:
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
