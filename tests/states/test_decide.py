"""Deciding is pure; what it hands out says who did it, why, and what a subscriber sees in which order."""

from __future__ import annotations

import copy
import inspect

import pytest

from support.life import NOW, Life, asking, local, pending, queued, streaming
from support.table_cases import cases, standing, stray
from turnwise import states
from turnwise.states import ChatState, Trigger, decide
from turnwise.states import actions as a
from turnwise.states.decide import job_of, legal_triggers, place_of
from turnwise.states.draft import Draft
from turnwise.states.errors import BrokenPromise, IllegalTransition
from turnwise.states.names import JOBS, NEW, UNKNOWN, Job
from turnwise.states.table import triggers_in

S, T = ChatState, Trigger


def test_deciding_twice_gives_the_same_and_changes_nothing_it_was_given() -> None:
    for case in cases():
        life = case.build()
        case.fire(life)
        facts, trigger, arguments = life.asked[-1]
        known = copy.deepcopy((facts, arguments))

        again = decide(facts, trigger, **arguments)

        assert again == life.decisions[-1]
        assert (facts, arguments) == known


def test_deciding_is_an_ordinary_function() -> None:
    assert not inspect.iscoroutinefunction(decide)


def test_a_decision_that_would_break_a_promise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in a write must never reach the disk."""
    monkeypatch.setattr(Draft, "drop_lease", lambda draft: None)
    life = streaming()

    with pytest.raises(BrokenPromise, match=r"step_finished .* has_no_lease; nothing was written") as broken:
        life.reply()

    assert broken.value.promises == ("has_no_lease",)
    assert life.facts.state is S.streaming


def test_actor_and_reason_stand_on_the_decision() -> None:
    life = pending()

    assert life.fire(T.interrupt, actor="ann", reason="enough").actor == "ann"
    assert life.decisions[-1].reason == "enough" == life.facts.interrupt_reason
    assert life.settle().actor == "system"


def test_a_chat_that_does_not_exist_can_only_be_created() -> None:
    life = Life()

    assert place_of(life.facts) == NEW
    assert legal_triggers(life.facts) == (T.create,)
    assert life.create().source is None


def test_where_the_user_has_said_nothing_there_is_nothing_to_edit() -> None:
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


def test_a_stored_state_that_nobody_knows_can_only_be_repaired() -> None:
    life = stray()

    assert (place_of(life.facts), job_of(life.facts)) == (UNKNOWN, None)
    assert legal_triggers(life.facts) == (T.repaired,)
    assert life.fire(T.repaired, error=standing(S.error).facts.last_error).source == "brooding"
    assert life.facts.stored_state is None


@pytest.mark.parametrize("state", list(S))
def test_a_state_says_which_job_runs_in_it(state: ChatState) -> None:
    facts = standing(state).facts

    assert job_of(facts) == (None if state is S.interrupted else JOBS.get(state))
    assert set(legal_triggers(facts)) <= set(triggers_in(state))


def test_an_interrupted_chat_has_a_job_until_it_is_settled() -> None:
    life = streaming()
    life.interrupt()

    assert job_of(life.facts) is Job.settle
    life.settle()
    assert job_of(life.facts) is None


def test_the_status_follows_the_messages_it_implies_and_precedes_the_end_of_the_turn() -> None:
    kinds = [event.kind for event in streaming().reply().events]

    assert kinds == ["message", "status", "turn_finished"]


def test_the_end_of_a_turn_is_told_before_the_message_of_the_next() -> None:
    events = queued(streaming()).reply().events

    assert [event.kind for event in events] == ["message", "turn_finished", "message", "queue", "status"]
    assert events[1].turn == 1
    assert events[2].message.turn == 2


def test_the_time_of_the_last_change_of_state_is_kept_while_it_lasts() -> None:
    life = asking(local("a"))
    life.wait(5)
    life.start("a")

    assert (life.facts.since, life.facts.updated_at) == (NOW, life.now)


def test_the_floor_shows_the_names_of_the_contract() -> None:
    assert set(states.__all__) == {"ChatState", "Trigger", "TABLE", "decide", "IllegalTransition"}
    assert all(getattr(states, name) is not None for name in states.__all__)


def test_the_actions_that_are_exported_are_those_that_rows_name() -> None:
    named = {action.__name__ for row in states.TABLE for action in row.actions}

    assert {name for name, value in vars(a).items() if callable(value)} == named
