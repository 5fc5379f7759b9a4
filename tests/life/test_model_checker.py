"""Every reachable state in a small scope: the table breaks no promise and always leads to rest."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.life.model_checker import explore
from tests.life.model_checker_features import Budgets, Fallback, Feature, Schedules, Steering

from support.planted_faults import always, never, nothing, plant_functions, plant_no_refusal, plant_rows, without_rows
from turnwise.states import TABLE, ChatState, guards, refusals
from turnwise.states import actions as a
from turnwise.states import triggers as t
from turnwise.states.draft import Draft
from turnwise.states.table import Row

pytestmark = pytest.mark.deep
S = ChatState
HANDED_BACK = (t.Claimed, S.pending, S.requires_action)
"""No trigger leads to such a chat: the row returns client calls to the client."""
SECOND_STEPS = ((t.ToolsFinished, S.executing_tools), (t.StepFinished, S.streaming))
"""A compaction may also precede the next step."""
SCHEDULING = {t.Schedule, t.Unschedule, t.ScheduleFired}
NO_MOVES = {t.Repaired, t.Imported, t.FallbackStarted, *SCHEDULING}
"""Triggers for damaged or foreign chats, and those of features."""
UNPAID = {(t.AttemptStarted, state, S.pending) for state in (S.streaming, S.compacting)}
"""Effects of budgets alone, which a feature explores, as it does fallback and steering."""
SCOPES: dict[str, tuple[dict[str, Any], set[Any]]] = {
    "a turn that goes on after its compaction": ({}, {HANDED_BACK, (t.DeadlinePassed, S.requires_action, S.pending)}),
    "a turn that rests, promoting chats, a deadline for all": (
        {"after_final_step": "rest", "promote_after_interrupt": True, "action_deadline": 5.0, "max_steps": 1},
        {
            HANDED_BACK,
            (t.PromoteQueued, S.interrupted, S.pending),
            *((trigger, source, S.streaming) for trigger, source in SECOND_STEPS),
        },
    ),
}
"""The limits of each scope, and the rows that are unreachable in it."""


@pytest.mark.parametrize("scope", SCOPES)
def test_a_chat_keeps_its_promises_and_comes_to_rest(scope: str) -> None:
    limits, unreached = SCOPES[scope]
    explored = explore(**limits)
    assert not explored.problems, "\n\n".join(explored.problems)
    assert explored.places > 1000
    assert explored.longest < 60
    sound = {(row.trigger, str(row.source), row.target) for row in TABLE if row.trigger not in NO_MOVES}
    assert sound - explored.fired == unreached | UNPAID


FEATURES: dict[str, tuple[Feature, set[Any]]] = {
    "messages that steer": (Steering(), set()),
    "another model": (Fallback(), {(t.FallbackStarted, state, state) for state in (S.streaming, S.compacting)}),
    "budgets": (Budgets(), UNPAID),
    "a schedule": (
        Schedules(),
        {
            (row.trigger, str(row.source), row.target)
            for row in TABLE
            if row.trigger in SCHEDULING and row.source != S.compacting
        },
    ),
}
"""Each with the rows that no other scope reaches."""


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_alone_keeps_its_promises(feature: str) -> None:
    """In a small scope: few calls, one step, and compactions only where the feature needs them."""
    besides, rows = FEATURES[feature]
    explored = explore(besides)
    assert not explored.problems, "\n\n".join(explored.problems)
    assert explored.places > 1000
    assert rows <= explored.fired


FEATURE_FAULTS: dict[str, tuple[Feature, Any, Any, str]] = {
    "a model that failed is forgotten": (Fallback(), a.fall_back, nothing, "models have failed"),
    "calls that no budget pays": (Budgets(), guards.budget_short, never, "begins a call that no budget pays"),
    "a firing that a crash repeats": (Schedules(), a.fire_schedule, nothing, "was sent before"),
    "a firing after it was taken back": (Schedules(), a.remove_schedule, nothing, "taken back"),
    "a firing of what was read before": (Schedules(), guards.schedule_is_due, always, "sends what is not due"),
}


@pytest.mark.parametrize("fault", FEATURE_FAULTS)
def test_a_fault_of_a_feature_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feature, function, instead, words = FEATURE_FAULTS[fault]
    plant_functions(monkeypatch, {function: instead})
    assert words in "".join(explore(feature, stop_at=1).problems)


def _forget_the_queue(draft: Draft[Any]) -> None:
    a.note_interrupt(draft)
    draft.queue = ()


def _compact_again(row: Row) -> Row:
    if (row.trigger, row.target) == (t.CompactionFailed, S.waiting):
        return replace(row, target=S.pending, actions=())
    return row


def _answer_silently(draft: Draft[Any]) -> None:
    for call in draft.calls:
        if call.open:
            draft.put_calls(call.with_status(draft.trigger.outcome.status))


Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, tuple[Plant, str]] = {
    "open client calls overlooked": (
        lambda patch: plant_functions(patch, {guards.outside_calls_open: never}),
        "nobody knows of the open call c0",
    ),
    "an interrupt that forgets the queue": (
        lambda patch: plant_functions(patch, {a.note_interrupt: _forget_the_queue}),
        "is in 0 places",
    ),
    "calls that may start again after a crash": (
        lambda patch: plant_functions(patch, {a.give_up_started_calls: nothing}),
        "may start a second time",
    ),
    "a call that ends without a result": (
        lambda patch: plant_functions(patch, {a.finish_call: _answer_silently}),
        "with 0 results",
    ),
    "a holder whose lease is gone": (
        lambda patch: plant_no_refusal(patch, refusals.refuse_dead_token),
        "(under a dead token) is taken",
    ),
    "an interrupt that nobody settles": (
        lambda patch: plant_rows(patch, without_rows(t.Settled, S.interrupted)),
        "a dead end: no progress move leads on",
    ),
    "a compaction that stays due": (lambda patch: plant_rows(patch, _compact_again), "an endless run"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has its trace."""
    plant, words = FAULTS[fault]
    plant(monkeypatch)
    first = explore(stop_at=1).problems[0]
    problem, *way = first.splitlines()
    assert words in problem
    assert way[0].split() == ["create", "new", "->", "waiting"]
