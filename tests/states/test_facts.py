"""Facts: nobody changes them in place, and an engine that sets no limits has those of the table."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.life import Life, local, pending
from turnwise import Settings
from turnwise.states.facts import Limits
from turnwise.states.step_calls import StepCalls


def test_facts_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        pending().facts.version = 9  # type: ignore[misc]

    assert Limits() == Limits()


def test_the_limits_of_an_engine_that_sets_none_are_the_limits_of_the_table() -> None:
    assert Settings().limits(None) == Limits()


def test_facts_take_calls_as_any_sequence() -> None:
    facts = replace(Life().facts, calls=(local("a"),))
    assert type(facts.calls) is StepCalls
