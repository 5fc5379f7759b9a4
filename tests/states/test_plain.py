"""Plain values: which untrusted values are accepted, up to each bound, as a copy that shares nothing."""

import re
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from turnwise.states.values import limits
from turnwise.states.values.hints import validator_of
from turnwise.states.values.limits import shared_within, size_in_json, text_within, within
from turnwise.states.values.plain import DEEPEST, MODEL_LIMITS, Misfit, copied, plain, shown, text


def nested(levels: int, innermost: Any = 1) -> Any:
    """Return that many levels of alternating objects and arrays."""
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
    content = {"a\0": ["b\0", nested(DEEPEST)]}
    assert plain(content, MODEL_LIMITS) == content
    for beyond, problem in (
        (10**4300, r"of 4,300 digits at most"),
        (nested(DEEPEST + 9), r"deeper than 108 levels"),
        (["\ud800"], "surrogate"),
        ([float("nan")], "finite"),
    ):
        with pytest.raises(Misfit, match=problem) as refused:
            plain(beyond, MODEL_LIMITS)
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
    original = {"c": (1, {"d": None}), "e": MappingProxyType({"f": [True]})}
    taken = plain(original)
    original["e"]["f"].append(False)
    assert taken == {"c": [1, {"d": None}], "e": {"f": [True]}}


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), {1: "x"}, {None: "x"}, [{"k": {b"x": 1}}], range(2)])
def test_value_without_json_is_refused(value: object) -> None:
    with pytest.raises(Misfit, match=r"must hold JSON values only|must have strings as keys") as refused:
        plain(value)
    assert refused.value.unstorable


@pytest.mark.parametrize("content", ["\0", "a\0b", "\ud800", "grün \udfff", {"\0": 1}, ["\ud800"]])
def test_unstorable_text_is_refused(content: Any) -> None:
    with pytest.raises(Misfit, match=r"NUL|surrogate") as refused:
        plain(content)
    assert refused.value.unstorable
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("content", ["", "plain", "grün", "\U0001f600", "\x01\x7f\u2028"])
def test_other_text_passes(content: str) -> None:
    assert text(content) is content


def test_copied_shares_nothing() -> None:
    inner: list[Any] = [1, {"deep": [None, True, 1.5, "x"]}]
    original = {"list": inner, "text": "x", "odd": (inner,), "set": {1}}
    copy = copied(original)
    assert copy == original
    inner[1]["deep"].append("later")
    inner.append("later")
    original["set"].add(2)  # type: ignore[attr-defined]
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


# Limits


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
    "PageSize": ([1, 10_000], [(0, "must be at least 1; it was 0"), (10_001, "at most 10000; it was 10001")]),
    "Ordinal": ([0, 2**53], [(-1, "must be at least 0; it was -1"), (2**53 + 1, f"must be at most {2**53}; it")]),
    "Count": ([0, 2**53], [(-1, "must be at least 0; it was -1"), (2**53 + 1, f"must be at most {2**53}; it")]),
    "Positive": ([1, 2**53], [(0, "must be at least 1; it was 0"), (2**53 + 1, f"must be at most {2**53}; it")]),
    "Duration": (
        [0, 0.5, 1e9],
        [(-0.001, "must be at least 0"), (float("nan"), ""), (float("inf"), "must be finite; it was inf")],
    ),
    "Seconds": ([0, 0.5, 1e9], [(-0.001, "must be at least 0; it was -0.001"), (float("nan"), "")]),
}


@pytest.mark.parametrize("name", EDGES)
def test_limits_at_their_edges(name: str) -> None:
    shape = validator_of(getattr(limits, name))
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
    result = within(output, limit)
    if result is output:
        assert len(output.encode() if isinstance(output, str) else msgspec.json.encode(output)) <= limit
        return
    assert isinstance(result, str)
    cut = re.fullmatch(r"(?s)(.*)\n\[cut: (\d+) of (\d+) bytes are not shown\]", result)
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
    result = shared_within(outputs, limit)
    whole, sizes = [list(map(size_in_json, values)) for values in (outputs, result)]
    cuts = [place for place, output in enumerate(result) if output is not outputs[place]]
    assert sum(sizes) <= limit
    assert bool(cuts) == (sum(whole) > limit), "what fits is left as it is"
    for place in cuts:
        assert whole[place] > even, "an output within an even share is whole"
        assert sizes[place] > max(sizes) - 8, "no output is longer than those that were cut, but for a character"


def test_short_outputs_leave_room_for_long_ones() -> None:
    short, first, second = "short", "a" * 1000, ["b" * 1000]
    result = shared_within([first, short, second], 407)
    assert result == [within(first, 158), short, within(second, 157)]
    assert [size_in_json(output) for output in result] == [200, 7, 200]
    assert shared_within([first, short], 1009) == [first, short]
    assert shared_within([first, short], 1008) == [within(first, 960), short]
