"""The calls of a step count what is asked of them, and rightly: however they came to be as they are."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.life import executing, local
from turnwise.states.calls import ToolCall
from turnwise.states.names import CallStatus, Executor
from turnwise.states.step_calls import StepCalls
from turnwise.states.values import unshared

NAMES = [f"c{number}" for number in range(6)]
calls = st.builds(
    lambda place, status, executor, step, agent: ToolCall(
        call_id=NAMES[place],
        name="t",
        arguments={},
        executor=executor,
        index=place,
        step=step,
        status=status,
        agent=agent,
    ),
    st.integers(0, 5),
    st.sampled_from(CallStatus),
    st.sampled_from([Executor.local, Executor.client, Executor.chat]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([None, "a"]),
)


@given(st.lists(st.lists(calls, max_size=3), max_size=8))
def test_incremental_counts_equal_fresh_counts(puts: list[list[ToolCall]]) -> None:
    known: dict[str, ToolCall] = {}
    kept = StepCalls()
    for put in puts:
        kept = kept.put(*put)
        known |= {call.call_id: call for call in put}
        fresh = StepCalls(known.values())
        assert kept == fresh == tuple(sorted(known.values(), key=lambda call: call.index))
        assert (kept.local, kept.open_local, kept.open_client, kept.open_delegated, kept.step) == (
            sum(call.is_local for call in known.values()),
            sum(call.is_local and call.open for call in known.values()),
            sum(call.is_client and call.open for call in known.values()),
            sum(call.is_delegated and call.open for call in known.values()),
            next(iter(steps)) if len(steps := {call.step for call in known.values()}) == 1 else None,
        )
        assert (kept.agent, kept.needs, kept.agent_needed) == (fresh.agent, fresh.needs, fresh.agent_needed)
        assert kept.has_open == any(call.open for call in known.values())
        assert json.loads(kept.ids) == [call.call_id for call in kept]
        assert all(kept.get(name) is known.get(name) for name in NAMES)


def test_duplicate_ids_are_not_distinct() -> None:
    call = local("a")
    assert not StepCalls([call, call]).are_distinct
    assert StepCalls([call]).are_distinct


def test_unshared_calls_have_the_same_counts() -> None:
    life = executing(local("a"), local("b", 1))
    life.start("a")
    known = life.facts.calls
    copies: Any = unshared(life.facts).calls
    counts = ("local", "open_local", "open_client", "open_delegated", "needs", "agent", "step", "ids", "are_distinct")
    assert {name: getattr(copies, name) for name in counts} == {name: getattr(known, name) for name in counts}
    assert copies.are_those_of(known)
    assert type(copies) is not StepCalls
    assert [*unshared(copies)] == [*known]
