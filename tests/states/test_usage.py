"""Usage: sums in which unknown is never zero."""

from __future__ import annotations

import functools
import operator
from decimal import Decimal, localcontext
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.states.errors import InvalidContent
from turnwise.states.usage import NO_USAGE, Usage, reported

counts = st.none() | st.integers(min_value=0, max_value=10**9)
costs = st.none() | st.decimals(min_value=0, max_value=10**6, places=12)
plain = st.builds(
    Usage,
    input_tokens=counts,
    output_tokens=counts,
    reasoning_tokens=counts,
    cache_read_tokens=counts,
    cache_write_tokens=counts,
    partial=st.booleans(),
    cost=costs,
    cost_partial=st.booleans(),
)
usages = plain | plain.map(Usage.as_compaction)


@given(usages, usages, usages)
def test_sums_are_commutative_and_associative(one: Usage, two: Usage, three: Usage) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)


@given(st.lists(usages))
def test_figure_is_unknown_only_if_unreported(spent: list[Usage]) -> None:
    total = functools.reduce(operator.add, spent, NO_USAGE)
    known = [usage.output_tokens for usage in spent if usage.output_tokens is not None]
    assert total.output_tokens == (sum(known) if known else None)
    assert total.partial == any(usage.partial for usage in spent)


@given(usages)
def test_compaction_share_holds_all_of_its_usage(usage: Usage) -> None:
    share = usage.as_compaction().compaction
    assert share is not None
    assert share.compaction is None
    assert share.input_tokens == usage.input_tokens
    assert usage.as_compaction().input_tokens == usage.input_tokens


@given(usages)
def test_call_without_usage_is_partial(usage: Usage) -> None:
    assert reported(usage) == (usage if usage.known else Usage(partial=True))
    assert reported(None) == Usage(partial=True)
    assert Usage().known is False
    assert Usage(cache_read_tokens=0).known is True


calls = st.tuples(counts, counts, costs, st.booleans()).map(
    lambda given: Usage(input_tokens=given[0], output_tokens=given[1], cost=given[2], partial=given[3])
)
"""What single model calls report."""


@given(st.lists(calls))
def test_incomplete_cost_is_partial(spent: list[Usage]) -> None:
    """An unknown price is not free."""
    total = functools.reduce(operator.add, map(reported, spent), NO_USAGE)
    known = [usage.cost for usage in spent if usage.cost is not None]
    assert total.cost == (sum(known) if known else None)
    assert total.cost_partial == (bool(known) and len(known) < len(spent))


def test_cost_sums_are_exact() -> None:
    one, other = Usage(cost=Decimal("123456789.000000000001")), Usage(cost=Decimal("0.1"))
    with localcontext() as context:
        context.prec = 3
        assert (one + other).cost == Decimal("123456789.100000000001")


@given(usages)
def test_cost_round_trips_as_text(usage: Usage) -> None:
    spelled = msgspec.json.encode(usage)
    assert msgspec.json.decode(spelled, type=Usage) == usage
    assert Usage(**usage.model_dump()) == usage
    assert msgspec.json.decode(spelled).get("cost") == (None if usage.cost is None else str(usage.cost))


@pytest.mark.parametrize(("given_cost", "cost"), [(1, "1"), (0.25, "0.25"), ("0.1", "0.1"), (0.1, "0.1"), (0, "0")])
def test_numbers_become_costs(given_cost: Any, cost: str) -> None:
    assert Usage(cost=given_cost).cost == Decimal(cost)


@pytest.mark.parametrize(
    "wrong", [-1, Decimal("NaN"), Decimal("sNaN"), float("inf"), Decimal("-0.01"), "dear", True, []]
)
def test_invalid_cost_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidContent, match=r"^Usage"):
        Usage(cost=wrong)
