"""Guards judge any facts, and of the rows that hold the machine takes the first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.states.table_cases import first_match

from support.life import BLANK, ERROR, NOW, OVERFLOW, anything_for, client, delegated, local, parts_of, said
from turnwise.states import ChatState
from turnwise.states.arguments import Reply
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.draft import Draft
from turnwise.states.facts import CompactionFacts, Facts, HistoryFacts, Lease, Limits, StepFacts, TurnFacts
from turnwise.states.machine import accepts, built
from turnwise.states.messages import QueuedMessage
from turnwise.states.names import CallStatus, Need, Stage, Tail
from turnwise.states.table import TABLE, triggers_in
from turnwise.states.triggers import occurrence_of

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


IDLE: Final = built(replace(row, actions=()) for row in TABLE)
"""The machine without actions: these facts are drawn from thin air, and guards must judge them all the same."""


@given(facts_of_any_kind, arguments_of_any_kind())
@example(replace(BLANK, version=1), {"now": NOW, "limits": Limits(), "reply": Reply(parts=())})
def test_first_row_that_holds_is_taken(facts: Facts, arguments: dict[str, Any]) -> None:
    for trigger in triggers_in(facts.state):
        draft = Draft(facts, *occurrence_of(trigger, anything_for(trigger, **arguments)))
        row = first_match(draft)

        assert accepts(trigger, draft) == (row is not None)
        assert bool(IDLE.events[trigger].trigger(draft, draft)) == (row is not None)
        assert draft.state == (facts.state if row is None else row.target)
