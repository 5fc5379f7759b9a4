"""The table is its own test plan: every row has a case, and every pair without a row is refused."""

import itertools
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.states.table_cases import Case, cases, first_match, name_of, row_of, standing, stray
from transitions import Event

from support.life import (
    BLANK,
    ERROR,
    NOW,
    OVERFLOW,
    SCHEDULED,
    Life,
    anything_for,
    client,
    delegated,
    local,
    parts_of,
    text_parts,
)
from turnwise.states import TABLE, ChatState, IllegalTransition, decide
from turnwise.states import guards as g
from turnwise.states import triggers as t
from turnwise.states.arguments import StepReply
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.decide import legal_triggers
from turnwise.states.draft import Draft
from turnwise.states.facts import CompactionFacts, Facts, HistoryFacts, Lease, Limits, StepFacts, TurnFacts
from turnwise.states.invariants import broken_invariants
from turnwise.states.machine import accepts, built
from turnwise.states.messages import QueuedMessage
from turnwise.states.names import NEW, UNKNOWN, CallStatus, Need, Stage, Tail
from turnwise.states.step_calls import StepCalls
from turnwise.states.table import Guard, Row, check, rows_of, triggers_in
from turnwise.states.triggers import TRIGGERS, trigger_of
from turnwise.states.writes import ERASING_KINDS

S = ChatState


CASES = list(cases())
PAIRS = set(itertools.product(TRIGGERS.values(), (NEW, UNKNOWN, *ChatState)))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_row_reaches_its_target_and_makes_its_writes(case: Case) -> None:
    row, life, before = row_of(case)
    decision = life.decisions[-1]
    assert decision.target is row.target is life.facts.state
    assert life.facts.version == before.version + 1
    assert broken_invariants(life.facts) == ()
    assert " ".join(write.kind for write in decision.writes) == case.writes
    assert " ".join(event.kind for event in decision.events) == case.events


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_declared_write_is_made_once_by_its_rows_only(case: Case) -> None:
    """The audit checker demands it of every record."""
    trigger, kinds = row_of(case)[0].trigger, case.writes.split()
    erasing = {*ERASING_KINDS, "profile"} if trigger is t.MessageErased else set()
    own, owned = trigger.own_write, {kind.own_write for kind in TRIGGERS.values()}
    assert kinds.count(str(own)) == (own is not None)
    assert {*kinds} & {*owned, *ERASING_KINDS} <= {own, *erasing}


def test_every_row_has_a_case() -> None:
    covered = {row_of(case)[0] for case in CASES}
    assert [row for row in TABLE if row not in covered] == []


@pytest.mark.parametrize("state", [NEW, UNKNOWN, *ChatState])
def test_every_missing_row_is_refused(state: str) -> None:
    facts = {NEW: BLANK, UNKNOWN: stray().facts}.get(state) or standing(ChatState(state)).facts
    allowed = legal_triggers(facts)
    for trigger in set(TRIGGERS.values()) - set(triggers_in(state)):
        with pytest.raises(IllegalTransition) as refused:
            decide(facts, trigger, now=NOW, limits=Limits())
        assert (refused.value.state, refused.value.trigger, refused.value.allowed) == (state, trigger.name, allowed)
        assert str(refused.value).endswith("nothing was written")


def test_rows_and_refusals_cover_every_pair() -> None:
    tried = {(row.trigger, row.source) for row, _, _ in map(row_of, CASES)}
    refused = {(trigger, source) for trigger, source in PAIRS if not rows_of(trigger, source)}
    assert tried | refused == PAIRS
    assert not tried & refused


def test_failing_guards_are_refused_like_a_missing_row() -> None:
    life = standing(S.interrupted)
    with pytest.raises(IllegalTransition) as refused:
        life.held(t.Settled)
    assert refused.value.allowed == legal_triggers(life.facts)
    assert {one.name for one in (t.Settled, t.Claimed, t.Released, t.Failed)} & set(refused.value.allowed) == set()


@pytest.mark.parametrize("guards", [(g.queue_waits,), (g.queue_waits, g.archived)])
def test_row_out_of_reach_is_refused(guards: tuple[Guard[Any], ...]) -> None:
    with pytest.raises(ValueError, match="stands behind one that comes first"):
        check([*TABLE, Row(t.Resume, S.error, S.waiting, when=guards)])


def test_ladder_without_a_last_row_is_refused() -> None:
    with pytest.raises(ValueError, match="claimed in pending must end in one without guards"):
        check(row for row in TABLE if row.when or row.trigger is not t.Claimed)


def test_library_fires_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an inert library, no trigger is accepted."""
    lives = [(case, case.build()) for case in CASES]
    monkeypatch.setattr(Event, "trigger", lambda *_: None)
    for case, life in lives:
        with pytest.raises(IllegalTransition):
            case.fire(life)


@pytest.mark.parametrize(
    "row",
    [Row(t.Resume, S.waiting, "nowhere"), Row(t.Resume, "nowhere", S.waiting), Row(t.Resume, S.waiting, NEW)],  # type: ignore[arg-type]
    ids=["unknown target", "unknown source", "back to before the creation"],
)
def test_row_of_an_undeclared_state_is_refused(row: Row) -> None:
    with pytest.raises(ValueError, match="not a declared state"):
        check([row])


QUEUED = QueuedMessage(id="q", parts=text_parts("hi"), accepted_at=NOW)
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
        *((state, {"lease": Lease("w", 1)}, "has_no_lease") for state in (S.pending, S.requires_action, S.error)),
        *((state, {"lease": None}, "has_a_lease") for state in (S.executing_tools, S.compacting)),
        *((state, {"calls": (local("a"),)}, "has_no_open_call") for state in (S.waiting, S.streaming, S.error)),
        *((state, {"calls": (local("a"),)}, "has_no_open_local_call") for state in (S.compacting, S.requires_action)),
        (S.interrupted, {"calls": (local("a"),)}, "rests_without_lease_or_calls"),
        (S.waiting, {"queue": (QUEUED,)}, "queue_is_empty"),
        (S.waiting, {"archived": True, "schedules": (SCHEDULED,)}, "archived_chats_have_no_schedules"),
    ],
)
def test_broken_invariant_is_named(state: ChatState, change: dict[str, object], promise: str) -> None:
    life: Life = standing(state)
    broken = broken_invariants(replace(life.facts, **change))  # type: ignore[arg-type]
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
    assert broken_invariants(facts) == ()
    changed = replace(facts, **{field: replace(getattr(facts, field), **change)})
    assert promise in broken_invariants(changed)


# Guards over any facts


call_ids = st.sampled_from(["a", "b"])


@st.composite
def calls(draw: st.DrawFn) -> tuple[ToolCall, ...]:
    drawn = []
    for name in draw(st.lists(call_ids, unique=True)):
        kind = draw(st.sampled_from([local, client, delegated]))
        drawn.append(
            kind(
                name,
                status=draw(st.sampled_from(CallStatus)),
                crash=draw(st.sampled_from(["at_most_once", "at_least_once"])),
                stop_after=draw(st.booleans()),
                deadline=draw(st.sampled_from([None, NOW, NOW + timedelta(seconds=1)])),
            )
        )
    return tuple(drawn)


queues = st.sampled_from(
    [(), *((QueuedMessage(id="m5", parts=text_parts("x"), accepted_at=NOW, steers=s),) for s in (0, 1))]
)
facts_of_any_kind = st.builds(
    Facts,
    chat_id=st.just("c"),
    profile=st.just(BLANK.profile),
    state=st.sampled_from(ChatState),
    version=st.just(3),
    settled=st.booleans(),
    promote=st.booleans(),
    lease=st.sampled_from([None, Lease("w", 1)]),
    turn=st.builds(
        TurnFacts,
        steps=st.integers(0, 3),
        started_at=st.just(NOW),
        reentries=st.integers(0, 3),
        compacts_no_more=st.booleans(),
    ),
    step=st.builds(StepFacts, number=st.just(1), stage=st.sampled_from(Stage)),
    calls=calls(),
    queue=queues,
    schedules=st.sampled_from([(), (SCHEDULED,)]),
    history=st.builds(HistoryFacts, tail=st.sampled_from(Tail), foldable=st.integers(0, 2)),
    compaction=st.builds(
        CompactionFacts,
        need=st.sampled_from(Need),
        step=st.integers(0, 1),
        unproven=st.booleans(),
        context_limit=st.just(100),
        next_tokens=st.sampled_from([None, 100, 101]),
    ),
)


SCHEDULED_MESSAGES: Final = st.builds(
    replace,
    st.just(SCHEDULED),
    due=st.sampled_from([NOW, NOW + timedelta(days=1)]),
    when_busy=st.sampled_from(["queue", "steer", "skip"]),
)


@st.composite
def arguments_of_any_kind(draw: st.DrawFn) -> dict[str, Any]:
    asked = draw(calls())
    return dict(  # noqa: C408 - arguments by name
        now=NOW,
        limits=draw(
            st.builds(
                Limits, max_steps=st.sampled_from([None, 2]), after_final_step=st.sampled_from(["continue", "rest"])
            )
        ),
        when_busy=draw(st.sampled_from(["queue", "steer", "interrupt"])),
        reply=StepReply(
            parts=parts_of(asked),
            calls=asked,
            context_tokens=draw(st.sampled_from([None, 10, 90])),
            context_limit=draw(st.sampled_from([None, 100])),
        ),
        call_id=draw(call_ids),
        results=tuple(ToolResult(name, output=True) for name in draw(st.lists(call_ids, max_size=3))),
        outcome=CallOutcome(call_id=draw(call_ids), status=CallStatus.succeeded, output=None, is_error=False),
        error=draw(st.sampled_from([ERROR, OVERFLOW])),
        message=draw(SCHEDULED_MESSAGES),
    )


IDLE: Final = built(replace(row, actions=()) for row in TABLE)
"""The machine without actions: the facts are drawn at random, and guards must judge them all."""


@given(facts_of_any_kind, arguments_of_any_kind())
@example(replace(BLANK, version=1), {"now": NOW, "limits": Limits(), "reply": StepReply(parts=())})
def test_first_row_that_holds_is_taken(facts: Facts, arguments: dict[str, Any]) -> None:
    for trigger in triggers_in(facts.state):
        draft = Draft(facts, *trigger_of(trigger, anything_for(trigger, **arguments)))
        row = first_match(draft)

        assert accepts(draft) == (row is not None)
        assert bool(IDLE.events[trigger.name].trigger(draft, draft)) == (row is not None)
        assert draft.state == (facts.state if row is None else row.target)
