"""Promises: what is broken is named, and each is a sentence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.life import Life, local
from support.table_cases import standing
from turnwise.states import ChatState, Trigger
from turnwise.states.facts import Lease
from turnwise.states.names import Need, Stage, Tail
from turnwise.states.promises import broken_promises
from turnwise.states.step_calls import StepCalls

S, T = ChatState, Trigger


TWICE = standing(S.executing_tools).facts.calls[0]


@pytest.mark.parametrize(
    ("state", "change", "promise"),
    [
        (S.waiting, {"lease": Lease("w", 1)}, "has_no_lease"),
        (S.waiting, {"lease": Lease("w", 7)}, "lease_is_the_newest"),
        (S.waiting, {"settled": False}, "only_interrupts_are_unsettled"),
        (S.waiting, {"promote": True}, "only_unsettled_chats_promote"),
        (S.streaming, {"lease": None}, "has_a_lease"),
        (S.streaming, {"calls": (local("a"),)}, "calls_are_of_this_step"),
        (S.executing_tools, {"calls": StepCalls([TWICE, TWICE])}, "calls_are_of_this_step"),
        (S.pending, {"history": Life().facts.history}, "work_is_left"),
        (S.error, {"last_error": None}, "error_is_named"),
        (S.requires_action, {"calls": ()}, "has_an_open_outside_call"),
        (S.compacting, {"compaction": Life().facts.compaction}, "step_is_not_compacted"),
        (S.executing_tools, {"calls": ()}, "has_local_calls"),
        (S.interrupted, {"lease": Lease("w", 1)}, "rests_without_lease_or_calls"),
        (S.error, {"stored_state": "lost"}, "state_is_declared"),
    ],
)
def test_broken_invariant_is_named(state: ChatState, change: dict[str, object], promise: str) -> None:
    life: Life = standing(state)
    broken = broken_promises(replace(life.facts, **change))  # type: ignore[arg-type]

    assert promise in broken


@pytest.mark.parametrize(
    ("state", "field", "change", "promise"),
    [
        (S.streaming, "step", {"stage": Stage.done}, "model_owes_an_answer"),
        (S.streaming, "history", {"tail": Tail.answered}, "model_owes_an_answer"),
        (S.executing_tools, "step", {"stage": Stage.asking}, "has_local_calls"),
        (S.compacting, "compaction", {"need": Need.none}, "step_is_not_compacted"),
        (S.compacting, "compaction", {"step": 1}, "step_is_not_compacted"),
    ],
)
def test_each_half_of_an_invariant_counts(
    state: ChatState, field: str, change: dict[str, object], promise: str
) -> None:
    facts = standing(state).facts
    assert broken_promises(facts) == ()
    changed = replace(facts, **{field: replace(getattr(facts, field), **change)})
    assert promise in broken_promises(changed)
