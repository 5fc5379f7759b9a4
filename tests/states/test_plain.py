"""Plain values: what is taken of an untrusted value, up to each bound, and a copy that shares nothing."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from turnwise.states.plain import DEEPEST, SAID, Misfit, copied, plain, shown, text


def nested(levels: int, innermost: Any = 1) -> Any:
    """Return objects and arrays by turns, so many inside each other."""
    value = innermost
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def test_plain_depth_limit() -> None:
    assert plain(nested(DEEPEST)) == nested(DEEPEST)
    with pytest.raises(Misfit, match="deeper than 100 levels") as refused:
        plain(nested(DEEPEST + 1))
    assert (refused.value.unstorable, refused.value.type_only, refused.value.place) == (True, False, "")


def test_stored_content_has_wider_limits() -> None:
    said = {"a\0": ["b\0", nested(DEEPEST)]}
    assert plain(said, SAID) == said
    for beyond, problem in (
        (10**4300, r"of 4,300 digits at most"),
        (nested(DEEPEST + 9), r"deeper than 108 levels"),
        (["\ud800"], "surrogate"),
        ([float("nan")], "finite"),
    ):
        with pytest.raises(Misfit, match=problem) as refused:
            plain(beyond, SAID)
        assert refused.value.unstorable


@pytest.mark.parametrize("number", [2**64, -(2**64), 10**4300 - 1, 0, True, 1.5, -1e308, None], ids=range(8))
def test_numbers_of_any_size_pass(number: object) -> None:
    assert plain([number]) == [number]
    assert type(plain(number)) is type(number)


@pytest.mark.parametrize("number", [10**4300, -(10**4300), float("inf"), float("-inf"), float("nan")], ids=range(5))
def test_unstorable_number_is_refused(number: float) -> None:
    with pytest.raises(Misfit, match=r"4,300 digits|finite") as refused:
        plain({"k": [number]})
    assert refused.value.unstorable


def test_plain_returns_an_independent_copy() -> None:
    given = {"c": (1, {"d": None}), "e": MappingProxyType({"f": [True]})}
    taken = plain(given)
    given["e"]["f"].append(False)
    assert taken == {"c": [1, {"d": None}], "e": {"f": [True]}}


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), {1: "x"}, {None: "x"}, [{"k": {b"x": 1}}], range(2)])
def test_value_without_json_is_refused(value: object) -> None:
    with pytest.raises(Misfit, match=r"must hold JSON values only|must have strings as keys") as refused:
        plain(value)
    assert refused.value.unstorable


@pytest.mark.parametrize("said", ["\0", "a\0b", "\ud800", "grün \udfff", {"\0": 1}, ["\ud800"]])
def test_unstorable_text_is_refused(said: Any) -> None:
    with pytest.raises(Misfit, match=r"NUL|surrogate") as refused:
        plain(said)
    assert refused.value.unstorable
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("said", ["", "plain", "grün", "\U0001f600", "\x01\x7f\u2028"])
def test_other_text_passes(said: str) -> None:
    assert text(said) is said


def test_copied_shares_nothing() -> None:
    inner: list[Any] = [1, {"deep": [None, True, 1.5, "x"]}]
    given = {"list": inner, "text": "x", "odd": (inner,), "set": {1}}
    copy = copied(given)
    assert copy == given
    inner[1]["deep"].append("later")
    inner.append("later")
    given["set"].add(2)  # type: ignore[attr-defined]
    assert copy == {
        "list": [1, {"deep": [None, True, 1.5, "x"]}],
        "text": "x",
        "odd": ([1, {"deep": [None, True, 1.5, "x"]}],),
        "set": {1},
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (2**63 - 1, str(2**63 - 1)),
        (2**63, "a whole number of 64 bits"),
        ("x" * 121, f"'{'x' * 119}... (121 long)"),
        (b"x" * 5000, f"b'{'x' * 118}... (5,000 long)"),
        (b"postgresql://me:pass/word@host/db", "b'postgresql://me:***@host/db'"),
        ("use postgresql://me:p@ss@host:5432/db, please", "'use postgresql://me:***@host:5432/db, please'"),
        (f"postgresql://me:{'p' * 200}@host/db", "'postgresql://me:***@host/db'... (224 long)"),
        ("http://host:8080/path", "'http://host:8080/path'"),
        (int, "a class, not an instance of it"),
        ([1], "a value of type list"),
    ],
    ids=str,
)
def test_error_shows_a_short_value_without_passwords(value: object, text: str) -> None:
    assert shown(value) == text
