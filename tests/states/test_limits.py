"""Limits on arguments: the last value that fits, and the first that does not, of each."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.states import limits
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
    for value, told in misfits:
        with pytest.raises(Misfit) as refused:
            shape(value)
        assert told in refused.value.problem
