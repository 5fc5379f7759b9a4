"""Dicts and lists for others to read tell of every change, at every depth; otherwise they are as any other."""

from __future__ import annotations

import json
import pickle
from copy import copy, deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.engine.prompt.lent import CHANGES, lent

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
GIVEN: dict[type, dict[str, tuple[Any, ...]]] = {
    dict: {
        "__setitem__": ("a", 5),
        "__delitem__": ("a",),
        "__ior__": ({"z": 1},),
        "pop": ("a",),
        "setdefault": ("z", 1),
        "update": ({"z": 1},),
    },
    list: {
        "__setitem__": (0, 5),
        "__delitem__": (0,),
        "__iadd__": ([1],),
        "__imul__": (2,),
        "append": (1,),
        "extend": ([1],),
        "insert": (0, 5),
        "remove": (2,),
    },
}
SAMPLES: dict[type, Any] = {dict: {"a": 1, "b": 2}, list: [2, 1]}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in CHANGES for name in CHANGES[kind]])
def test_change_is_reported_and_made(kind: type, name: str) -> None:
    told: list[int] = []
    value, plain = lent({"in": [SAMPLES[kind]]}, lambda: told.append(1))["in"][0], copy(SAMPLES[kind])
    for each in (value, plain):
        getattr(each, name)(*GIVEN[kind].get(name, ()))
    assert told
    assert value == plain != SAMPLES[kind]


@given(values)
def test_reading_and_copying_reports_nothing(value: Any) -> None:
    told: list[int] = []
    given_ = lent(value, lambda: told.append(1))
    assert given_ == value
    assert json.dumps(given_) == json.dumps(value)
    assert msgspec.json.encode(given_) == msgspec.json.encode(value)
    assert repr(given_) == repr(value)
    for own in (copy(given_), deepcopy(given_), pickle.loads(pickle.dumps(given_))):  # noqa: S301
        assert own == value
        assert type(own) is type(value)
        if isinstance(own, dict | list):
            own.clear()
    assert given_ == value
    assert not told
