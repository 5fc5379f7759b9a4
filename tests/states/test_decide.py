"""Deciding is pure; what it hands out says who did it, why, and what a subscriber sees in which order."""

from __future__ import annotations

import copy

import pytest
from tests.states.table_cases import cases, standing, stray

from support.life import Life, pending, queued, streaming
from turnwise.states import ChatState, Trigger, decide
from turnwise.states.decide import job_of, legal_triggers
from turnwise.states.draft import Draft
from turnwise.states.errors import BrokenPromise, IllegalTransition
from turnwise.states.names import JOBS, UNKNOWN
from turnwise.states.table import triggers_in

S, T = ChatState, Trigger


def test_decide_is_pure() -> None:
    for case in cases():
        life = case.build()
        case.fire(life)
        facts, trigger, arguments = life.asked[-1]
        known = copy.deepcopy((facts, arguments))

        again = decide(facts, trigger, **arguments)

        assert again == life.decisions[-1]
        assert (facts, arguments) == known


def test_decision_breaking_an_invariant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in a write must never reach the disk."""
    monkeypatch.setattr(Draft, "drop_lease", lambda draft: None)
    life = streaming()
    with pytest.raises(BrokenPromise, match=r"step_finished .* has_no_lease; nothing was written") as broken:
        life.reply()
    assert broken.value.promises == ("has_no_lease",)
    assert life.facts.state is S.streaming


def test_decision_holds_actor_and_reason() -> None:
    life = pending()
    assert life.fire(T.interrupt, actor="ann", reason="enough").actor == "ann"
    assert life.decisions[-1].reason == "enough" == life.facts.interrupt_reason
    assert life.settle().actor == "system"


def test_edit_needs_a_user_message() -> None:
    """Not even behind a marker: a clear adds one to an empty history, too."""
    life = Life()
    life.create()
    life.fire(T.clear_context)
    with pytest.raises(IllegalTransition) as refused:
        life.edit("m1")
    assert T.send_message in refused.value.allowed
    assert T.edit_message not in refused.value.allowed
    life.send()
    assert T.edit_message in legal_triggers(life.facts)
    assert life.edit("m2").target is S.pending


def test_unknown_state_can_only_be_repaired() -> None:
    life = stray()
    assert (life.facts.place, job_of(life.facts)) == (UNKNOWN, None)
    assert legal_triggers(life.facts) == (T.repaired,)
    assert life.fire(T.repaired, error=standing(S.error).facts.last_error).source == "brooding"
    assert life.facts.stored_state is None


@pytest.mark.parametrize("state", list(S))
def test_each_state_has_its_job(state: ChatState) -> None:
    facts = standing(state).facts
    assert job_of(facts) == (None if state is S.interrupted else JOBS.get(state))
    assert set(legal_triggers(facts)) <= set(triggers_in(state))


def test_status_comes_between_messages_and_turn_finished() -> None:
    kinds = [event.kind for event in streaming().reply().events]
    assert kinds == ["message", "status", "turn_finished"]


def test_turn_finished_precedes_the_next_message() -> None:
    events = queued(streaming()).reply().events
    assert [event.kind for event in events] == ["message", "turn_finished", "message", "queue", "status"]
    assert events[1].turn == 1
    assert events[2].message.turn == 2
