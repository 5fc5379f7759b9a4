"""Forks: a chat that begins with the history of another."""

from __future__ import annotations

import pytest
from tests.states.table_cases import Case, cases

from support.life import PROFILE, Life, compacting, waiting
from turnwise.states import ChatState, Trigger
from turnwise.states.arguments import Inheritance
from turnwise.states.names import Audience
from turnwise.states.writes import CutHistory, EraseEdits, EraseMessage, InsertBoundary, InsertMessage

S, T = ChatState, Trigger


def fork_of(parent: Life) -> Life:
    """Return a fork of a chat as it stands."""
    history = parent.facts.history
    child = Life()
    child.fire(
        T.create,
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
    assert (child.facts.state, child.messages, child.facts.history) == (
        S.waiting,
        parent.messages,
        parent.facts.history,
    )
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
    """By it a worker knows whether what it remembers of a chat is what the model must see."""
    life = case.build()
    case.fire(life)
    forked = fork_of(life).decisions if life.messages else ()
    for decision in [*life.decisions, *forked]:
        kinds = {type(write) for write in decision.writes}
        changed = not kinds.isdisjoint((InsertMessage, CutHistory, EraseMessage, EraseEdits))
        assert (decision.facts.history_version == decision.facts.version) is changed, decision.trigger
