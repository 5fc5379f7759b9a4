"""The table is its own test plan: every row has a case, every pair without a row is refused, nothing is left over."""

from __future__ import annotations

import itertools

import pytest

from support.life import BLANK, NOW
from support.table_cases import Case, cases, name_of, row_of, standing, stray
from turnwise.states import TABLE, ChatState, IllegalTransition, Trigger, decide
from turnwise.states import guards as g
from turnwise.states.decide import legal_triggers
from turnwise.states.facts import Limits
from turnwise.states.names import NEW, UNKNOWN
from turnwise.states.promises import broken_promises
from turnwise.states.table import Row, check, rows_of, triggers_in
from turnwise.states.triggers import OCCURRENCES
from turnwise.states.writes import ERASING_KINDS

S, T = ChatState, Trigger


CASES = list(cases())
PAIRS = set(itertools.product(Trigger, (NEW, UNKNOWN, *ChatState)))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_row_reaches_its_target_and_makes_its_writes(case: Case) -> None:
    row, life, before = row_of(case)
    decision = life.decisions[-1]

    assert decision.target is row.target is life.facts.state
    assert life.facts.version == before.version + 1
    assert broken_promises(life.facts) == ()
    assert " ".join(write.kind for write in decision.writes) == case.writes
    assert " ".join(event.kind for event in decision.events) == case.events


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_declared_write_is_made_once_by_its_rows_only(case: Case) -> None:
    """The audit checker demands it of every record."""
    trigger, kinds = row_of(case)[0].trigger, case.writes.split()
    erasing = {*ERASING_KINDS, "profile"} if trigger is T.message_erased else set()
    own, owned = OCCURRENCES[trigger].own_write, {kind.own_write for kind in OCCURRENCES.values()}

    assert kinds.count(str(own)) == (own is not None)
    assert {*kinds} & {*owned, *ERASING_KINDS} <= {own, *erasing}


def test_every_row_has_a_case() -> None:
    covered = {row_of(case)[0] for case in CASES}

    assert [row for row in TABLE if row not in covered] == []


@pytest.mark.parametrize("state", [NEW, UNKNOWN, *ChatState])
def test_every_missing_row_is_refused(state: str) -> None:
    facts = {NEW: BLANK, UNKNOWN: stray().facts}.get(state) or standing(ChatState(state)).facts
    allowed = legal_triggers(facts)

    for trigger in set(Trigger) - set(triggers_in(state)):
        with pytest.raises(IllegalTransition) as refused:
            decide(facts, trigger, now=NOW, limits=Limits())
        assert (refused.value.state, refused.value.trigger, refused.value.allowed) == (state, trigger, allowed)
        assert str(refused.value).endswith("nothing was written")


def test_rows_and_refusals_cover_every_pair() -> None:
    tried = {(row.trigger, row.source) for row, _, _ in map(row_of, CASES)}
    refused = {(trigger, source) for trigger, source in PAIRS if not rows_of(trigger, source)}

    assert tried | refused == PAIRS
    assert not tried & refused


def test_failing_guards_are_refused_like_a_missing_row() -> None:
    life = standing(S.interrupted)

    with pytest.raises(IllegalTransition) as refused:
        life.held(T.settled)

    assert refused.value.allowed == legal_triggers(life.facts)
    assert {T.settled, T.claimed, T.released, T.failed} & set(refused.value.allowed) == set()


def test_overlapping_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="can both match"):
        check([*TABLE, Row(T.resume, S.error, S.waiting, when=(g.queue_waits,))])


@pytest.mark.parametrize(
    "row",
    [Row(T.resume, S.waiting, "nowhere"), Row(T.resume, "nowhere", S.waiting), Row(T.resume, S.waiting, NEW)],  # type: ignore[arg-type]
    ids=["unknown target", "unknown source", "back to before the creation"],
)
def test_row_of_an_undeclared_state_is_refused(row: Row) -> None:
    with pytest.raises(ValueError, match="not a declared state"):
        check([row])
