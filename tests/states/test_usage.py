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
from msgspec.structs import replace

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
def test_sums_do_not_depend_on_order_or_grouping(one: Usage, two: Usage, three: Usage) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)


@given(usages)
def test_no_usage_adds_nothing(usage: Usage) -> None:
    assert usage + NO_USAGE == usage == NO_USAGE + usage


@given(st.lists(usages))
def test_a_figure_is_unknown_only_if_nobody_reported_it(spent: list[Usage]) -> None:
    total = functools.reduce(operator.add, spent, NO_USAGE)
    known = [usage.output_tokens for usage in spent if usage.output_tokens is not None]

    assert total.output_tokens == (sum(known) if known else None)
    assert total.partial == any(usage.partial for usage in spent)


@given(usages)
def test_the_share_of_a_compaction_holds_all_of_it_and_no_share_of_its_own(usage: Usage) -> None:
    share = usage.as_compaction().compaction

    assert share is not None
    assert share.compaction is None
    assert share.input_tokens == usage.input_tokens
    assert usage.as_compaction().input_tokens == usage.input_tokens


@given(usages)
def test_marking_changes_nothing_but_the_mark(usage: Usage) -> None:
    marked = usage.marked_partial()
    assert marked == replace(usage, partial=True, cost_partial=marked.cost_partial)
    assert marked.cost_partial == (usage.cost_partial or (usage.cost is not None and not usage.partial))


@given(usages)
def test_a_silent_call_is_unknown_and_partial(usage: Usage) -> None:
    assert reported(usage) == (usage if usage.known else Usage(partial=True))
    assert reported(None) == Usage(partial=True)
    assert Usage().known is False
    assert Usage(cache_read_tokens=0).known is True


calls = st.tuples(counts, counts, costs, st.booleans()).map(
    lambda given: Usage(input_tokens=given[0], output_tokens=given[1], cost=given[2], partial=given[3])
)
"""What single model calls report."""


@given(st.lists(calls))
def test_a_cost_that_leaves_something_out_says_so(spent: list[Usage]) -> None:
    """An unknown price is not free."""
    total = functools.reduce(operator.add, map(reported, spent), NO_USAGE)
    known = [usage.cost for usage in spent if usage.cost is not None]

    assert total.cost == (sum(known) if known else None)
    assert total.cost_partial == (bool(known) and len(known) < len(spent))


def test_a_cost_is_known_where_no_token_was_counted() -> None:
    assert Usage(cost=Decimal("0.5")).known is True
    assert reported(Usage(cost=Decimal("0.5"))) == Usage(cost=Decimal("0.5"))
    assert Usage(cost=Decimal("0.5")).as_compaction().compaction == Usage(cost=Decimal("0.5"))


def test_sums_are_exact_whatever_the_application_rounds_to() -> None:
    one, other = Usage(cost=Decimal("123456789.000000000001")), Usage(cost=Decimal("0.1"))
    with localcontext() as context:
        context.prec = 3
        assert (one + other).cost == Decimal("123456789.100000000001")


@given(usages)
def test_a_cost_is_text_in_json_and_comes_back_as_it_was(usage: Usage) -> None:
    spelled = msgspec.json.encode(usage)
    assert msgspec.json.decode(spelled, type=Usage) == usage
    assert Usage(**usage.model_dump()) == usage
    told = msgspec.json.decode(spelled).get("cost")
    assert told == (None if usage.cost is None else str(usage.cost))


@pytest.mark.parametrize(("given_cost", "cost"), [(1, "1"), (0.25, "0.25"), ("0.1", "0.1"), (0.1, "0.1"), (0, "0")])
def test_any_number_of_dollars_is_a_cost(given_cost: Any, cost: str) -> None:
    assert Usage(cost=given_cost).cost == Decimal(cost)


@pytest.mark.parametrize(
    "wrong", [-1, Decimal("NaN"), Decimal("sNaN"), float("inf"), Decimal("-0.01"), "dear", True, []]
)
def test_what_is_no_number_of_dollars_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidContent, match=r"^Usage"):
        Usage(cost=wrong)


def test_usage_from_before_costs_were_reckoned_is_unpriced() -> None:
    old = msgspec.json.decode(b'{"input_tokens":7,"output_tokens":2}', type=Usage)
    total = old + Usage(input_tokens=1, output_tokens=1, cost=Decimal("0.5"))
    assert (total.cost, total.cost_partial, total.partial) == (Decimal("0.5"), True, False)


@pytest.mark.parametrize("cost", ["-1", "NaN", "sNaN", "Infinity", "1e16", "1000000000000000.01", "9e999999"])
def test_a_cost_that_no_sum_could_hold_is_refused(cost: str) -> None:
    with pytest.raises(InvalidContent, match="from 0 to 1,000,000,000,000,000"):
        Usage(cost=Decimal(cost))
    assert Usage(cost=Decimal(10**15)).cost == 10**15
