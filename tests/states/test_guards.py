"""Guards: no facts match two rows. The table checks it by its words at import, this by asking the guards."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.life import BLANK, ERROR, NOW, OVERFLOW, anything_for, client, delegated, local, parts_of, said
from turnwise.states import ChatState, Trigger
from turnwise.states.arguments import Reply
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.facts import CompactionFacts, Facts, HistoryFacts, Lease, Limits, StepFacts, TurnFacts
from turnwise.states.machine import judge
from turnwise.states.messages import QueuedMessage
from turnwise.states.names import CallStatus, Need, Stage, Tail
from turnwise.states.table import Row, rows_of
from turnwise.states.triggers import Circumstances, Occurrence, occurrence_of

call_ids = st.sampled_from(["a", "b"])


@st.composite
def calls(draw: st.DrawFn) -> tuple[ToolCall, ...]:
    made = []
    for name in draw(st.lists(call_ids, unique=True)):
        kind = draw(st.sampled_from([local, client, delegated]))
        made.append(
            kind(
                name,
                status=draw(st.sampled_from(CallStatus)),
                crash=draw(st.sampled_from(["at_most_once", "at_least_once"])),
                stop_after=draw(st.booleans()),
                deadline=draw(st.sampled_from([None, NOW, NOW + timedelta(seconds=1)])),
            )
        )
    return tuple(made)


queues = st.sampled_from([(), (QueuedMessage(id="m5", parts=said("later"), accepted_at=NOW),)])
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
    history=st.builds(HistoryFacts, tail=st.sampled_from(Tail), foldable=st.integers(0, 1)),
    compaction=st.builds(CompactionFacts, need=st.sampled_from(Need), step=st.integers(0, 1), unproven=st.booleans()),
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
        when_busy=draw(st.sampled_from(["queue", "interrupt"])),
        reply=Reply(
            parts=parts_of(asked),
            calls=asked,
            context_tokens=draw(st.sampled_from([None, 10, 90])),
            context_limit=draw(st.sampled_from([None, 100])),
        ),
        call_id=draw(call_ids),
        results=tuple(ToolResult(name, output=True) for name in draw(st.lists(call_ids, max_size=3))),
        outcome=CallOutcome(call_id=draw(call_ids), status=CallStatus.succeeded, output=None, is_error=False),
        error=draw(st.sampled_from([ERROR, OVERFLOW])),
    )


def holds(row: Row, facts: Facts, occurrence: Occurrence, at: Circumstances) -> bool:
    return all(guard(facts, occurrence, at) for guard in row.when) and not any(
        guard(facts, occurrence, at) for guard in row.unless
    )


@given(facts_of_any_kind, arguments_of_any_kind())
@example(replace(BLANK, version=1), {"now": NOW, "limits": Limits(), "reply": Reply(parts=())})
def test_at_most_one_row_matches_any_facts(facts: Facts, arguments: dict[str, Any]) -> None:
    for trigger in Trigger:
        rows = rows_of(trigger, facts.state)
        if not rows:
            continue
        occurrence, at = occurrence_of(trigger, anything_for(trigger, **arguments))
        matching = [row for row in rows if holds(row, facts, occurrence, at)]

        assert len(matching) <= 1
        assert judge(facts.state, facts, occurrence, at) is (matching[0] if matching else None)
