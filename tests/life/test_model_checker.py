"""All that can happen to a chat in a small scope: the table keeps every promise and always leads to a rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.life.model_checker import explore

from support.planted_faults import never, nothing, plant_functions, plant_no_refusal, plant_rows, without_rows
from turnwise.states import TABLE, ChatState, Trigger, guards, refusals
from turnwise.states import actions as a
from turnwise.states.actions import compaction
from turnwise.states.draft import Draft
from turnwise.states.table import Row

S, T = ChatState, Trigger
HANDED_BACK = (T.claimed, S.pending, S.requires_action)
"""No trigger leaves a chat so: the row hands back to the client what a worker finds to be the client's."""
SECOND_STEPS = (
    (T.tools_finished, S.executing_tools),
    (T.compaction_failed, S.compacting),
    (T.step_finished, S.streaming),
)
"""A compaction also leads to the step that it made room for."""
NO_MOVES = {T.repaired, T.imported}
"""What comes to a chat that stands there already, damaged or from another store; each has tests of its own."""
SCOPES: dict[str, tuple[dict[str, Any], set[Any]]] = {
    "a turn that goes on after its compaction": (
        {},
        {HANDED_BACK, (T.deadline_passed, S.requires_action, S.pending)},
    ),
    "a turn that rests, promoting chats, a deadline for all": (
        {"after_final_step": "rest", "promote_after_interrupt": True, "action_deadline": 5.0, "max_steps": 1},
        {
            HANDED_BACK,
            (T.promote_queued, S.interrupted, S.pending),
            *((trigger, source, S.streaming) for trigger, source in SECOND_STEPS),
        },
    ),
}
"""The limits of each scope, and the rows that nothing reaches in it."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scope", SCOPES)
def test_whatever_happens_a_chat_keeps_its_promises_and_a_worker_brings_it_to_rest(scope: str) -> None:
    limits, unreached = SCOPES[scope]
    explored = explore(**limits)
    assert not explored.problems, "\n\n".join(explored.problems)
    assert explored.places > 1000
    assert explored.longest < 60
    sound = {(row.trigger, str(row.source), row.target) for row in TABLE if row.trigger not in NO_MOVES}
    assert sound - explored.fired == unreached


def _forget_the_queue(draft: Draft[Any]) -> None:
    a.note_interrupt(draft)
    draft.queue = ()


def _begin_uncounted_step(draft: Draft[Any]) -> None:
    steps = draft.turn.steps
    a.begin_step(draft)
    draft.turn = replace(draft.turn, steps=steps)


def _compact_again(row: Row) -> Row:
    if (row.trigger, row.target) == (T.compaction_failed, S.waiting):
        return replace(row, target=S.pending, actions=())
    return row


def _conclude_too_early(row: Row) -> Row:
    """Let what a client has to do be asked for while a tool still runs."""
    if (row.trigger, row.target) == (T.tools_finished, S.requires_action):
        return replace(row, unless=tuple(g for g in row.unless if g is not guards.local_calls_open))
    return row


def _plan_no_client_calls(draft: Draft[Any]) -> None:
    for call in draft.occurrence.reply.calls:
        if call.is_local:
            draft.put_calls(call)


def _answer_silently(draft: Draft[Any]) -> None:
    for call in draft.calls:
        if call.open:
            draft.put_calls(call.with_status(draft.occurrence.outcome.status))


def _take_all(draft: Draft[Any]) -> None:
    a.take_queue_head(draft)
    draft.queue = ()


Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, tuple[Plant, str]] = {
    "a lease that is not dropped": (
        lambda patch: plant_functions(patch, {a.drop_lease: nothing}),
        "after released the chat is still held",
    ),
    "open client calls overlooked": (
        lambda patch: plant_functions(patch, {guards.outside_calls_open: never}),
        "nobody knows of the open call c0",
    ),
    "a client that is asked before the tools have ended": (
        lambda patch: plant_rows(patch, _conclude_too_early),
        "breaks has_no_open_local_call",
    ),
    "tools that are never concluded": (
        lambda patch: plant_functions(patch, {a.conclude_tools: nothing}),
        "the chat rests, but its step is acting",
    ),
    "a failed compaction that is not noted": (
        lambda patch: patch.setattr(compaction, "_conclude", nothing),
        "breaks",
    ),
    "an interrupt that forgets the queue": (
        lambda patch: plant_functions(patch, {a.note_interrupt: _forget_the_queue}),
        "is in 0 places",
    ),
    "a queue of which one message survives": (
        lambda patch: plant_functions(patch, {a.take_queue_head: _take_all}),
        "is in 0 places",
    ),
    "calls that may start again after a crash": (
        lambda patch: plant_functions(patch, {a.give_up_started_calls: nothing}),
        "may start a second time",
    ),
    "calls that an interrupt leaves open": (
        lambda patch: plant_functions(patch, {a.close_open_calls: nothing}),
        "breaks has_no_open_call",
    ),
    "client calls that nobody plans": (
        lambda patch: plant_functions(patch, {a.plan_calls: _plan_no_client_calls}),
        "breaks has_an_open_outside_call",
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
        lambda patch: plant_rows(patch, without_rows(T.settled, S.interrupted)),
        "a dead end: no progress move leads on",
    ),
    "an error that nothing leads out of": (
        lambda patch: plant_rows(patch, lambda row: None if row.source == S.error != row.target else row),
        "a dead end: no outside move leads on",
    ),
    "a compaction that stays due": (
        lambda patch: plant_rows(patch, _compact_again),
        "an endless run",
    ),
    "steps that are not counted": (
        lambda patch: plant_functions(patch, {a.begin_step: _begin_uncounted_step}),
        "an endless run",
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_told_with_the_way_that_leads_to_it(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, words = FAULTS[fault]
    plant(monkeypatch)
    first = explore(stop_at=1).problems[0]
    problem, *way = first.splitlines()
    assert words in problem
    assert way[0].split() == ["create", "new", "->", "waiting"]


def test_a_trace_reads_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_functions(monkeypatch, {a.give_up_started_calls: nothing})
    told = [" ".join(line.split()) for line in explore(stop_at=1).problems[0].splitlines()]
    assert told == [
        "after released a call of ['c0'] may start a second time",
        "create new -> waiting",
        "send_message waiting -> pending",
        "claimed pending -> streaming",
        "attempt_started streaming -> streaming",
        "step_finished (a local call) streaming -> executing_tools (c0 planned)",
        "call_started (c0) executing_tools (c0 planned) -> executing_tools (c0 started)",
        "released executing_tools (c0 started) -> pending",
    ]
