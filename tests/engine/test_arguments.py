"""The arguments of a tool call: read from what a model spelled, meant as the schema says, refused without a quote."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
import structlog
from pydantic import AfterValidator, BaseModel, Field

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
NUMBERS = ClientTool("add", "Add.", {"type": "object", "additionalProperties": {"type": "integer"}})


@tool
def rest(seconds: int, names: list[str] | None = None) -> str:
    """Rest."""
    return f"{seconds} {names}"


def _odd(_value: int) -> int:
    raise RuntimeError("secret of the type")


@tool
def fragile(value: Annotated[int, AfterValidator(_odd)]) -> str:
    """Break."""
    return str(value)


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


UNKNOWN = Cat(kind="cat")


@tool
def keep(pet: Annotated[Cat | Dog, Field(discriminator="kind")] = UNKNOWN, ages: dict[int, int] | None = None) -> str:
    """Keep."""
    return f"{pet} {ages}"


def nested(levels: int) -> str:
    """Return a JSON object with objects and arrays inside each other, that many in all."""
    objects = levels - levels // 2
    return '{"a":' * objects + "[" * (levels - objects) + "1" + "]" * (levels - objects) + "}" * objects


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ('{"seconds": 3}', {"seconds": 3}),
        ('{"seconds": 3', {"seconds": 3}),
        (" {'seconds': 3}", {"seconds": 3}),
        ("[1, 2]", {ARGUMENT_TEXT: "[1, 2]"}),
        ("three", {ARGUMENT_TEXT: "three"}),
        ('{"a":' * 20_000, {ARGUMENT_TEXT: '{"a":' * 20_000}),
        (f'{{"b": 1, "a": {nested(DEEPEST)}}}', {ARGUMENT_TEXT: f'{{"b": 1, "a": {nested(DEEPEST)}}}'}),
        (nested(DEEPEST), json.loads(nested(DEEPEST))),
        (nested(DEEPEST + 1), {ARGUMENT_TEXT: nested(DEEPEST + 1)}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_argument_text_is_an_object_or_stays_text(text: str, read: dict[str, Any]) -> None:
    assert parse(text) == read


def test_repaired_arguments_are_logged_by_size() -> None:
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as logs:
        for text in ("{'secret': 3, 'b': 4", '{"secret": 3}', "{", "secret"):
            parse(text)
    assert logs[0] == {"event": "arguments_repaired", "length": 20, "keys": 2, "log_level": "info"}
    assert "secret" not in str(logs)


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
def test_arguments_are_coerced_and_always_json(declared: Any, given: dict[str, Any], meant: dict[str, Any]) -> None:
    known = coerced(declared, given)
    assert known == meant
    assert json.loads(json.dumps(known, allow_nan=False)) == known


def test_argument_text_is_not_coerced() -> None:
    """Whatever the schema says of fields that it does not name: it is shown as the model spelled it."""
    assert coerced(NUMBERS, {"n": "30"}) == {"n": 30}
    assert coerced(NUMBERS, parse("30")) == {ARGUMENT_TEXT: "30"}


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
        (NUMBERS, {"n" * 90: "private"}, [f"add: {'n' * 40}: must satisfy type"]),
        (keep, {"pet": {"kind": "secret"}}, ["pet: Input tag under 'kind' must be one of 'cat', 'dog'. Received"]),
        (keep, {"ages": {"secret": 3}}, ["ages.[key]: Input should be a valid integer"]),
        (keep, {"ages": {"3": "private"}}, ["ages.3: Input should be a valid integer"]),
        (fragile, {"value": 1}, ["Invalid arguments for fragile: they cannot be checked (RuntimeError). "]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_invalid_arguments_are_named_and_never_quoted(declared: Any, given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadArguments) as refused:
        checked(declared, given)
    message = str(refused.value)
    assert [word for word in words if word not in message] == [], message
    assert [word for word in ("private", "secret", "sss", "n" * 41, "http") if word in message] == []


def test_failing_validator_is_logged() -> None:
    """The model is message the type of the error alone: whoever wrote the check has to learn what is wrong with it."""
    with structlog.testing.capture_logs() as logs, pytest.raises(BadArguments):
        checked(fragile, {"value": 1})
    (line,) = logs
    assert (line["event"], line["log_level"], type(line["exc_info"])) == ("check_failed", "error", RuntimeError)

    with structlog.testing.capture_logs() as logs, pytest.raises(BadArguments):
        checked(rest, {"seconds": "soon"})
    assert logs == []


def test_first_twenty_problems_and_fields_are_named() -> None:
    for given in ({f"f{n:02}": 1 for n in range(20)}, {f"f{n:02}": 1 for n in range(21)}):
        with pytest.raises(BadArguments) as refused:
            checked(LOOK, given)
        problems, _, fields = str(refused.value).partition("Received fields: ")
        assert fields.count("(int)") == 20
        assert ("f19" in fields, "f20" in fields) == (True, False)
        assert [fields.endswith(", and 1 more."), "more" in fields] == [len(given) == 21] * 2
        assert problems.count(";") < 20
