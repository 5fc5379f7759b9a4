"""The arguments of a tool call: read from what a model spelled, meant as the schema says, refused without a quote."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from turnwise import ClientTool, tool
from turnwise.engine.tools.arguments import BadArguments, checked, coerced, parse
from turnwise.providers.reply_builder import ARGUMENT_TEXT
from turnwise.states.plain import DEEPEST

SCHEMA = {
    "type": "object",
    "properties": {
        "seconds": {"type": "integer"},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
    "required": ["seconds"],
    "additionalProperties": False,
}
LOOK = ClientTool("look", "Look.", SCHEMA)


@tool
def rest(seconds: int, names: list[str] | None = None) -> str:
    """Rest."""
    return f"{seconds} {names}"


@tool
def measure(value: float) -> str:
    """Measure."""
    return str(value)


def _odd(_value: int) -> int:
    raise RuntimeError("secret of the type")


@tool
def fragile(value: Annotated[int, AfterValidator(_odd)]) -> str:
    """Break."""
    return str(value)


def nested(levels: int) -> str:
    """Return a JSON object with objects and arrays inside each other, that many in all."""
    objects = levels - levels // 2
    return '{"a":' * objects + "[" * (levels - objects) + "1" + "]" * (levels - objects) + "}" * objects


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        (" \n", {}),
        ('{"seconds": 3}', {"seconds": 3}),
        ('{"seconds": 3', {"seconds": 3}),
        (" {'seconds': 3}", {"seconds": 3}),
        ("[1, 2]", {ARGUMENT_TEXT: "[1, 2]"}),
        ("null", {ARGUMENT_TEXT: "null"}),
        ("three", {ARGUMENT_TEXT: "three"}),
        ("[{'seconds': 3", {ARGUMENT_TEXT: "[{'seconds': 3"}),
        ("[" * 200_000, {ARGUMENT_TEXT: "[" * 200_000}),
        ('{"a":' * 20_000, {ARGUMENT_TEXT: '{"a":' * 20_000}),
        *((nested(levels), json.loads(nested(levels))) for levels in (2, DEEPEST)),
        *((nested(levels), {ARGUMENT_TEXT: nested(levels)}) for levels in (DEEPEST + 1, 490, 900)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_text_is_an_object_or_stays_a_text(text: str, read: dict[str, Any]) -> None:
    assert parse(text) == read


@pytest.mark.parametrize("declared", [rest, LOOK], ids=["typed", "by schema"])
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"seconds": "30"}, {"seconds": 30}),
        ({"seconds": 30.0}, {"seconds": 30}),
        ({"seconds": "soon"}, {"seconds": "soon"}),
        ({"seconds": float("nan")}, {"seconds": "nan"}),
        (
            {"seconds": 1, "more": [float("inf"), {"x": (-float("inf"),)}]},
            {"seconds": 1, "more": ["inf", {"x": ["-inf"]}]},
        ),
        ({ARGUMENT_TEXT: "soon"}, {ARGUMENT_TEXT: "soon"}),
    ],
    ids=str,
)
def test_arguments_are_meant_as_the_schema_says_and_always_json(
    declared: Any, given: dict[str, Any], meant: dict[str, Any]
) -> None:
    known = coerced(declared, given)
    assert known == meant
    assert json.loads(json.dumps(known, allow_nan=False)) == known


def test_what_a_type_lets_through_is_json_all_the_same() -> None:
    assert coerced(measure, {"value": "inf"}) == {"value": "inf"}
    assert coerced(None, {"value": float("-inf")}) == {"value": "-inf"}
    assert coerced(LOOK, {"where": {"x": "1.5"}}) == {"where": {"x": 1.5}}
    assert coerced(rest, {"seconds": "3", "names": '["a"]'}) == {"seconds": 3, "names": ["a"]}


def test_what_fits_is_what_the_tool_is_called_with() -> None:
    assert checked(rest, {"seconds": 3, "names": ["a"]}) == {"seconds": 3, "names": ["a"]}
    assert checked(LOOK, {"seconds": 3}) == {"seconds": 3}


@pytest.mark.parametrize(
    ("declared", "given", "words"),
    [
        (
            LOOK,
            {ARGUMENT_TEXT: "x" * 50},
            ["The arguments of look are no JSON object, or one nested", "(50 characters)."],
        ),
        (rest, {}, ["seconds: Field required", "Received fields: none."]),
        (rest, {"seconds": "s" * 41}, ["seconds: ", "Received fields: seconds (text of 41 characters)."]),
        (rest, {"seconds": "s" * 40}, ["seconds: ", "Received fields: seconds (str)."]),
        (LOOK, {"seconds": "private"}, ["Invalid arguments for look: ", "seconds", "Received fields: seconds (str)."]),
        (LOOK, {"seconds": 1, "n" * 90: [1]}, [f"Received fields: seconds (int), {'n' * 40} (list)."]),
        (fragile, {"value": 1}, ["Invalid arguments for fragile: they cannot be checked (RuntimeError). "]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_does_not_fit_is_named_and_never_quoted(declared: Any, given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadArguments) as refused:
        checked(declared, given)
    told = str(refused.value)
    assert [word for word in words if word not in told] == [], told
    assert [word for word in ("private", "secret", "sss", "n" * 41, "http") if word in told] == []


def test_of_many_problems_and_fields_the_first_twenty_are_told() -> None:
    for given in ({f"f{n:02}": 1 for n in range(20)}, {f"f{n:02}": 1 for n in range(21)}):
        with pytest.raises(BadArguments) as refused:
            checked(LOOK, given)
        problems, _, fields = str(refused.value).partition("Received fields: ")
        assert fields.count("(int)") == 20
        assert ("f19" in fields, "f20" in fields) == (True, False)
        assert ("and 1 more." in fields) == (len(given) == 21)
        assert problems.count(";") < 20


def test_one_problem_is_told_in_a_few_words() -> None:
    schema = {"type": "object", "properties": {"mode": {"enum": [f"mode number {n}" for n in range(200)]}}}
    with pytest.raises(BadArguments) as refused:
        checked(ClientTool("look", "Look.", schema), {"mode": 7})
    assert 200 < len(str(refused.value)) < 400
