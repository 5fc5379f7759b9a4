"""Usage: sums in which unknown is never zero."""

from __future__ import annotations

import functools
import operator

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from turnwise.states.usage import NO_USAGE, Usage, reported

counts = st.none() | st.integers(min_value=0, max_value=10**9)
plain = st.builds(
    Usage,
    input_tokens=counts,
    output_tokens=counts,
    reasoning_tokens=counts,
    cache_read_tokens=counts,
    cache_write_tokens=counts,
    partial=st.booleans(),
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
    assert usage.marked_partial() == replace(usage, partial=True)


@given(usages)
def test_a_silent_call_is_unknown_and_partial(usage: Usage) -> None:
    assert reported(usage) == (usage if usage.known else Usage(partial=True))
    assert reported(None) == Usage(partial=True)
    assert Usage().known is False
    assert Usage(cache_read_tokens=0).known is True
