"""Limits on arguments: the last value that fits, and the first that does not, of each."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from turnwise.states import limits
from turnwise.states.output_limit import shared_within, size_in_json, text_within, within
from turnwise.states.plain import Misfit
from turnwise.states.shapes import shape_of

EDGES: dict[str, tuple[list[Any], list[tuple[Any, str]]]] = {
    "Key": (
        ["", "k" * 1024, "ä" * 512],
        [("k" * 1025, "must be 1,024 bytes at most; it was 1,025"), ("ä" * 513, "1,026")],
    ),
    "Name": (["n", "n" * 1024], [("n" * 1025, "1,024"), ("", "must say something; it was empty"), (" \n", "empty")]),
    "Label": (["", "l" * 16_384], [("l" * 16_385, "16,384")]),
    "Description": (["d", "d" * 65_536], [("d" * 65_537, "65,536"), (" ", "must say something")]),
    "JsonObject": (
        [{}, {"a": "x" * (262_144 - 8)}],
        [({"a": "x" * (262_144 - 7)}, "must be 262,144 bytes of JSON at most; it was 262,145")],
    ),
    "PageSize": ([1, 10_000], [(0, "must be from 1 to 10000; it was 0"), (10_001, "10001")]),
    "Ordinal": ([0, 2**53], [(-1, "must be from 0"), (2**53 + 1, f"to {2**53}; it was {2**53 + 1}")]),
    "Count": ([0, 2**53], [(-1, "must be from 0"), (2**53 + 1, f"to {2**53}; it was {2**53 + 1}")]),
    "Positive": ([1, 2**53], [(0, "must be from 1"), (2**53 + 1, f"to {2**53}; it was {2**53 + 1}")]),
    "Duration": (
        [0, 0.5, 1e9],
        [(-0.001, "must be at least 0"), (float("nan"), ""), (float("inf"), "must be finite; it was inf")],
    ),
    "Seconds": ([0, 0.5, 1e9], [(-0.001, "must be at least 0; it was -0.001"), (float("nan"), "")]),
}


@pytest.mark.parametrize("name", EDGES)
def test_limits_at_their_edges(name: str) -> None:
    shape = shape_of(getattr(limits, name))
    assert shape is not None
    fitting, misfits = EDGES[name]
    for value in fitting:
        assert shape(value) == value
    for value, problem in misfits:
        with pytest.raises(Misfit) as refused:
            shape(value)
        assert problem in refused.value.problem


VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(VALUES, st.integers(0, 40))
def test_output_is_cut_to_the_limit(output: JsonValue, limit: int) -> None:
    kept = within(output, limit)
    if kept is output:
        assert len(output.encode() if isinstance(output, str) else msgspec.json.encode(output)) <= limit
        return
    assert isinstance(kept, str)
    cut = re.fullmatch(r"(?s)(.*)\n\[cut: (\d+) of (\d+) bytes are not shown\]", kept)
    assert cut is not None
    beginning, missing, whole = cut[1].encode(), int(cut[2]), int(cut[3])
    assert len(beginning) + missing == whole > limit
    assert limit - 3 <= len(beginning) <= limit, "all that fits is kept, and no half character"
    if isinstance(output, str):
        assert output.encode().startswith(beginning)


def test_output_limit_at_its_edges() -> None:
    assert within("äöü", 6) == "äöü"
    assert text_within("äöü", 5) == "äö\n[cut: 2 of 6 bytes are not shown]"
    assert within([1, 2], 5) == [1, 2]
    assert within([1, 2], 4) == "[1,2\n[cut: 1 of 5 bytes are not shown]"
    assert within(1234567, 6) == "123456\n[cut: 1 of 7 bytes are not shown]"
    assert within(None, 4) is None


@given(st.lists(VALUES | st.text('a\0\n"é€😀', max_size=500), max_size=6), st.integers(60, 400))
def test_shared_limit_is_split_evenly(outputs: list[JsonValue], even: int) -> None:
    limit = even * len(outputs)
    kept = shared_within(outputs, limit)
    whole, sizes = [list(map(size_in_json, given)) for given in (outputs, kept)]
    cuts = [place for place, output in enumerate(kept) if output is not outputs[place]]
    assert sum(sizes) <= limit
    assert bool(cuts) == (sum(whole) > limit), "what fits is left as it is"
    for place in cuts:
        assert whole[place] > even, "an output within an even share is whole"
        assert sizes[place] > max(sizes) - 8, "no output is longer than those that were cut, but for a character"


def test_short_outputs_leave_room_for_long_ones() -> None:
    short, first, second = "short", "a" * 1000, ["b" * 1000]
    kept = shared_within([first, short, second], 407)
    assert kept == [within(first, 158), short, within(second, 157)]
    assert [size_in_json(output) for output in kept] == [200, 7, 200]
    assert shared_within([first, short], 1009) == [first, short]
    assert shared_within([first, short], 1008) == [within(first, 960), short]


def test_tiny_limit_leaves_only_the_note() -> None:
    assert shared_within(["a" * 1000], -1) == ["\n[cut: 1000 of 1000 bytes are not shown]"]
    assert shared_within([], 0) == []
