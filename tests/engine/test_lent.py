"""Dicts and lists for others to read tell of every change, at every depth; otherwise they are as any other."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from turnwise.engine.prompt.lent import CHANGES, lent

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
