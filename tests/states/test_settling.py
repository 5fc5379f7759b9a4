"""Interrupts, lost attempts and repairs: what was shown is kept or taken back, and never both."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.states.table_cases import standing, stray

from support.life import ERROR, USAGE, client, executing, local, streaming, unsettled
from turnwise.states import ChatState, IllegalTransition, Trigger
from turnwise.states.names import CallStatus, StopReason, Tail
from turnwise.states.promises import broken_promises

S, T = ChatState, Trigger


def test_interrupt_keeps_the_partial_answer() -> None:
    life = unsettled()
    life.settle(life.partial(text="so f", usage=USAGE))
    message = life.messages[-1]
    assert (message.text, message.partial, message.synthetic) == ("so f", True, False)
    assert (life.facts.history.tail, life.facts.stop_reason) == (Tail.partial, StopReason.interrupted)
    assert life.facts.usage == USAGE.marked_partial()


def test_edit_does_not_wait_for_settling() -> None:
    """Stop, then say it better: what was shown would be cut as soon as it was kept."""
    life = unsettled()
    life.edit("m1")
    assert (life.facts.state, life.facts.settled, life.facts.lease) == (S.pending, True, None)
    assert [message.text for message in life.messages] == ["rather"]
    assert life.facts.usage.partial


def test_complete_calls_of_a_partial_answer_are_kept() -> None:
    life = unsettled()
    life.settle(life.partial(local("a"), client("b", 1)))
    assert [message.role for message in life.messages] == ["user", "assistant", "tool", "tool"]
    assert {call.status for call in life.facts.calls} == {CallStatus.interrupted}
    assert life.facts.history.tail is Tail.awaits_answer


def test_discarded_attempt_is_not_kept() -> None:
    """It was taken back: keeping it would show subscribers what they were decided to forget."""
    life = streaming()
    shown = life.partial()
    life.discard()
    life.interrupt()
    life.settle(shown)
    assert [message.role for message in life.messages] == ["user"]


def test_interrupted_chat_starts_nothing() -> None:
    life = executing()
    life.interrupt()
    for work in (life.attempt, life.reply, life.run_tools):
        with pytest.raises(IllegalTransition):
            work()


def test_next_holder_settles_an_interrupted_chat() -> None:
    life = unsettled()
    life.held(T.lease_expired)
    with pytest.raises(IllegalTransition):
        life.held(T.lease_expired)
    life.claim()
    life.settle(life.partial())
    assert (life.facts.settled, life.messages[-1].partial) == (True, True)


def test_new_attempt_discards_a_lost_one() -> None:
    life = streaming()
    life.held(T.lease_expired)
    life.claim()
    events = life.attempt().events
    assert [(event.kind, event.attempt) for event in events] == [("attempt_discarded", 1)]
    assert (life.facts.step.attempt, life.facts.usage.partial) == (2, True)


def test_usage_of_an_edited_attempt_is_counted() -> None:
    life = streaming()
    life.edit("m1", usage=USAGE)
    assert life.facts.usage == USAGE.marked_partial()


def test_retry_schedule_survives_a_restart() -> None:
    life = streaming()
    life.discard()
    retry_at = life.facts.step.retry_at
    life.held(T.released)
    life.claim()
    step = life.facts.step
    assert (step.failures, step.attempt, step.retry_at) == (1, 1, retry_at)
    life.attempt()
    assert (life.facts.step.failures, life.facts.step.attempt, life.facts.step.retry_at) == (1, 2, None)


def test_failed_attempts_are_counted_by_what_they_cost() -> None:
    """Time-outs count in a row; what was paid counts by the kind of its error, whatever failed in between."""
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
    life = stray(state)
    assert broken_promises(life.facts)
    life.fire(T.repaired, error=ERROR)
    assert (life.facts.state, life.facts.last_error, broken_promises(life.facts)) == (S.error, ERROR, ())


@pytest.mark.parametrize("state", list(S))
def test_sound_chat_is_not_repaired(state: ChatState) -> None:
    with pytest.raises(IllegalTransition):
        standing(state).fire(T.repaired, error=ERROR)
