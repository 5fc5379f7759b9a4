"""Arguments of tool calls: parsed as the model wrote them, coerced and checked by a schema, refused without a quote."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import hypothesis
import pytest
import structlog
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from turnwise import ClientTool, SettingsError, tool
from turnwise.engine.tools import schemas
from turnwise.engine.tools.arguments import BadArguments, coerce, parse, validate
from turnwise.engine.tools.schemas import check_name, check_schema, meant, problems_with
from turnwise.providers.argument_text import ARGUMENT_TEXT
from turnwise.states.values.plain import DEEPEST

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


@tool
def keep(ages: dict[int, int], pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None) -> str:
    """Keep."""
    return f"{pet} {ages}"


def nested(levels: int) -> str:
    """Return a JSON object with that many levels of objects and arrays."""
    objects = levels - levels // 2
    return '{"a":' * objects + "[" * (levels - objects) + "1" + "]" * (levels - objects) + "}" * objects


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ('{"seconds": 3}', {"seconds": 3}),
        ('{"seconds": 3 ', {"seconds": 3}),
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


def _is_part(read: Any, whole: Any) -> bool:
    """Return whether each parsed value is in the whole at the same place."""
    if isinstance(whole, dict) and isinstance(read, dict):
        return all(key in whole and _is_part(inner, whole[key]) for key, inner in read.items())
    if isinstance(whole, list) and isinstance(read, list):
        return len(read) <= len(whole) and all(map(_is_part, read, whole))
    return type(read) is type(whole) and bool(read == whole)


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)


@hypothesis.given(st.dictionaries(st.text(), _VALUES, min_size=1), st.booleans(), st.data())
def test_cut_text_never_yields_a_value_of_its_own(whole: dict[str, Any], escaped: bool, data: st.DataObject) -> None:
    """Parsing a truncated object yields a part of the object, or nothing."""
    text = json.dumps(whole, ensure_ascii=escaped)
    for end in {data.draw(st.integers(1, len(text) - 1)), len(text) - 1}:
        read = parse(text[:end])
        assert read == {ARGUMENT_TEXT: text[:end]} or _is_part(read, whole), text[:end]
    assert parse(text) == whole
    assert parse(text * 2) == {ARGUMENT_TEXT: text * 2}


def test_repaired_arguments_are_logged_by_size() -> None:
    with structlog.testing.capture_logs() as logs:
        for text in ("{'secret': 3, 'b': 4 ", '{"secret": 3}', "{", "secret"):
            parse(text)
    assert logs[0] == {"event": "arguments_repaired", "length": 21, "keys": 2, "log_level": "info"}
    assert "secret" not in str(logs)


@pytest.mark.parametrize("declared", [rest, LOOK], ids=["typed", "by schema"])
@pytest.mark.parametrize(
    ("arguments", "meant"),
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
def test_arguments_are_coerced_and_always_json(declared: Any, arguments: dict[str, Any], meant: dict[str, Any]) -> None:
    known = coerce(declared, arguments)
    assert known == meant
    assert json.loads(json.dumps(known, allow_nan=False)) == known


@pytest.mark.parametrize(
    ("declared", "arguments", "words"),
    [
        (LOOK, {ARGUMENT_TEXT: "x" * 50}, ["Not run: the arguments of look are no JSON object", "(50 characters)."]),
        (rest, {}, ["seconds: Field required", "Received fields: none."]),
        (rest, {"seconds": "s" * 41}, ["seconds: ", "Received fields: seconds (text of 41 characters)."]),
        (rest, {"seconds": "s" * 40}, ["seconds: ", "Received fields: seconds (str)."]),
        (LOOK, {"seconds": "private"}, ["Invalid arguments for look: ", "seconds", "Received fields: seconds (str)."]),
        (LOOK, {"seconds": 1, "n" * 90: [1]}, [f"Received fields: seconds (int), {'n' * 40} (list)."]),
        (NUMBERS, {"n" * 90: "private"}, [f"add: {'n' * 40}: must satisfy type"]),
        (keep, {"pet": {"kind": "secret"}, "ages": {}}, ["Input tag under 'kind' must be one of 'cat', 'dog'"]),
        (keep, {"ages": {"secret": 3}}, ["ages.[key]: Input should be a valid integer"]),
        (keep, {"ages": {"3": "private"}}, ["ages.3: Input should be a valid integer"]),
        (fragile, {"value": 1}, ["Invalid arguments for fragile: they cannot be checked (RuntimeError). "]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_invalid_arguments_are_named_and_never_quoted(
    declared: Any, arguments: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(BadArguments) as refused:
        validate(declared, arguments)
    message = str(refused.value)
    assert [word for word in words if word not in message] == [], message
    assert [word for word in ("private", "secret", "sss", "n" * 41, "http") if word in message] == []


def test_failing_validator_is_logged() -> None:
    """The model sees only the type of the error; the log shows its author the cause."""
    with structlog.testing.capture_logs() as logs, pytest.raises(BadArguments):
        validate(fragile, {"value": 1})
    (line,) = logs
    assert (line["event"], line["log_level"], type(line["exc_info"])) == ("check_failed", "error", RuntimeError)

    with structlog.testing.capture_logs() as logs, pytest.raises(BadArguments):
        validate(rest, {"seconds": "soon"})
    assert logs == []


def test_first_twenty_problems_and_fields_are_named() -> None:
    for arguments in ({f"f{n:02}": 1 for n in range(20)}, {f"f{n:02}": 1 for n in range(21)}):
        with pytest.raises(BadArguments) as refused:
            validate(LOOK, arguments)
        problems, _, fields = str(refused.value).partition("Received fields: ")
        assert fields.count("(int)") == 20
        assert ("f19" in fields, "f20" in fields) == (True, False)
        assert [fields.endswith(", and 1 more."), "more" in fields] == [len(arguments) == 21] * 2
        assert problems.count(";") < 20


# Schemas


def of(schema: Any, **more: Any) -> dict[str, Any]:
    """Return the schema of an object with a field `x` of that schema."""
    return {"type": "object", "properties": {"x": schema}, **more}


INTEGER = {"type": "integer"}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"

MEANT = [
    # numbers
    ("30", INTEGER, 30),
    ("3.5", INTEGER, "3.5"),
    ("3.5", {"type": "number"}, 3.5),
    ("3", {"type": ["integer", "number"]}, 3),
    ("1e3", {"type": ["integer", "number"]}, 1000.0),
    ("1e999", {"type": ["number", "null"]}, "1e999"),
    # what is no text is left alone
    # text is text where it may be
    ("30", {"type": ["string", "integer"]}, "30"),
    ("30", {}, "30"),
    # truths
    ("true", {"type": "boolean"}, True),
    (" FALSE", {"type": "boolean"}, False),
    ("yes", {"type": "boolean"}, "yes"),
    # nothing
    ("null", {"type": ["integer", "null"]}, None),
    ("None", {"type": ["integer", "null"]}, None),
    ("", {"type": ["integer", "null"]}, None),
    # objects and lists in text
    ('{"a": 1}', {"type": "object"}, {"a": 1}),
    ("[1, 2]", {"type": "array"}, [1, 2]),
    ("[" * 100_000, {"type": "array"}, "[" * 100_000),
    ('{"a": "1"}', {"type": "object", "properties": {"a": INTEGER}}, {"a": 1}),
    # inside of objects
    ({"a": "1", "b": "2"}, {"properties": {"a": INTEGER}}, {"a": 1, "b": "2"}),
    ({"a": "1", "b": "2"}, {"additionalProperties": INTEGER}, {"a": 1, "b": 2}),
    ({"a": "1", "b": "2"}, {"properties": {"a": {}}, "additionalProperties": INTEGER}, {"a": "1", "b": 2}),
    # inside of lists
    (["1", "2", "3"], {"prefixItems": [{}], "items": INTEGER}, ["1", 2, 3]),
    # one of several
    ("3", {"anyOf": [INTEGER, {"type": "null"}]}, 3),
    ("null", {"anyOf": [INTEGER, {"type": "null"}]}, None),
    ("3", {"anyOf": [INTEGER, {"type": "string"}]}, "3"),
    ("3", {"anyOf": [{"$ref": "#/$defs/Whole"}, {"type": "null"}]}, 3),
    ({"a": "1"}, {"anyOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"a": INTEGER}}]}, {"a": 1}),
    ({"a": "1"}, {"oneOf": [{"required": ["b"]}, {"properties": {"a": INTEGER}}]}, {"a": 1}),
    (["1"], {"anyOf": [{"items": {"$ref": "#/definitions/Whole"}}]}, [1]),
    # all of several
    ("3", {"allOf": [{}, INTEGER]}, 3),
    (
        {"a": "1", "b": "2"},
        {"allOf": [{"properties": {"a": INTEGER}}, {"properties": {"b": INTEGER}}]},
        {"a": 1, "b": 2},
    ),
    # references
    ("3", {"$ref": "#/$defs/Whole"}, 3),
    ("3", {"$ref": "#/$defs/a~1b"}, 3),
    ("3", {"$ref": "#/$defs/Several/anyOf/1"}, 3),
    ("3", {"$ref": "#/$defs/Several/anyOf/2"}, "3"),
    ("3", {"$ref": "#/$defs/Missing"}, "3"),
    ("3", {"$ref": "#whole"}, 3),
    ("3", {"$ref": "#other"}, 3),
    ("3", {"$ref": "urn:whole"}, 3),
    ({"x": {"x": "3"}}, {"$ref": "#"}, {"x": {"x": "3"}}),
]
DEFINED = {
    "$defs": {
        "Whole": INTEGER,
        "a/b": INTEGER,
        "Several": {"anyOf": [{"type": "null"}, INTEGER]},
        "Anchored": {"$anchor": "whole", **INTEGER},
        "Moving": {"$dynamicAnchor": "other", **INTEGER},
        "Named": {"$id": "urn:whole", **INTEGER},
    },
    "definitions": {"Whole": INTEGER},
}


@pytest.mark.parametrize(("value", "schema", "understood"), MEANT)
def test_values_are_coerced_as_the_schema_says(value: Any, schema: Any, understood: Any) -> None:
    found = meant({"x": value}, of(schema, **DEFINED))["x"]
    assert (found, type(found)) == (understood, type(understood))


@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
def test_endless_choices_terminate(word: str) -> None:
    loop = of({"$ref": "#/$defs/L"}, **{"$defs": {"L": {word: [{"$ref": "#/$defs/L"}]}}})
    for value in ("3", {"a": "3"}, ["3"]):
        assert meant({"x": value}, loop) == {"x": value}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (None, 'of type "object"'),
        ({"type": "array"}, 'of type "object"'),
        ({"type": "object", "required": "x"}, "not valid at required"),
        ({"type": "object", "$schema": DRAFT_4, "exclusiveMaximum": True}, "not valid at the top"),
        ({"type": "object", "default": object()}, "JSON can spell"),
        (of({"$ref": "#/$defs/X"}), "refers to '#/\\$defs/X'"),
        (of({"anyOf": [{}, {"$ref": "#/$defs/X"}]}), "refers to"),
        (of({"$ref": "#/properties/x/enum/0", "enum": [3]}), "refers to"),
        (of({"$ref": "#/maxProperties/0"}, maxProperties=3), "refers to '#/maxProperties/0'"),
    ],
)
def test_invalid_schema_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=rf"(?s)^mine: .*{problem}"):
        check_schema("mine", schema)


def test_valid_schema_is_accepted() -> None:
    """References are resolved where the schema refers, not in values that it lists."""
    check_schema("mine", of({"$ref": "#/$defs/Whole"}, **DEFINED))
    check_schema("mine", of({}, properties={"$ref": {"type": "string"}}))
    check_schema("mine", of({"enum": [{"$ref": "#/nowhere"}], "const": {"$ref": "x"}, "examples": [{"$ref": "x"}]}))


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a\n", "é"])
def test_invalid_name_is_refused(name: str) -> None:
    check_name("mine", "A-z_9".ljust(64, "a"))
    with pytest.raises(SettingsError, match="needs a name of 1 to 64"):
        check_name("mine", name)


@pytest.mark.parametrize(
    ("arguments", "schema", "problems"),
    [
        ({"x": 3}, of(INTEGER), []),
        ({}, of(INTEGER, required=["x"]), ["arguments: missing x"]),
        ({"x": [1, "secret"]}, of({"items": INTEGER}), ['x.1: must satisfy type: "integer"']),
        ({"x": 1}, of({"enum": ["e" * 300]}), ['x: must satisfy enum: ["' + "e" * 198]),
        ({"x": "a"}, of({"pattern": "("}), [f"arguments: cannot be checked against the schema ({re.error.__name__})"]),
    ],
)
def test_problem_is_named_without_the_value(arguments: Any, schema: Any, problems: list[str]) -> None:
    found = problems_with(arguments, schema)
    assert found == problems
    assert "secret" not in str(found)


NEVER_MATCHED = {"pattern": "^(a+)+$"}
"""Python needs 10 ms for 18 letters and another one, and twice the time with each letter more."""


@pytest.mark.parametrize(
    "schema",
    [
        of(NEVER_MATCHED),
        of({"anyOf": [NEVER_MATCHED, {"$ref": "#/$defs/P"}]}, **{"$defs": {"P": NEVER_MATCHED}}),
        {"propertyNames": NEVER_MATCHED},
        {"patternProperties": {"^(y+)+$": {}}, "additionalProperties": False},
        {"allOf": [{"patternProperties": {"^(y+)+$": {}}}], "unevaluatedProperties": False},
    ],
    ids=str,
)
def test_patterns_of_untrusted_schemas_are_not_matched(schema: Any) -> None:
    arguments = {"x": "a" * 18 + "!"}
    assert problems_with(arguments, schema)
    assert problems_with(arguments, schema, trusted=False) == []
    assert meant({"x": ["1"]}, of({"anyOf": [of(NEVER_MATCHED), {"items": INTEGER}]}), trusted=False) == {"x": [1]}


def doubling(times: int) -> Any:
    """Return a schema that doubles in size at every level of references."""
    doubled = {f"D{at}": {"anyOf": [{"$ref": f"#/$defs/D{at + 1}"}] * 2} for at in range(times)}
    return of({"$ref": "#/$defs/D0"}, **{"$defs": {**doubled, f"D{times}": INTEGER}})


def test_untrusted_schema_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "TO_CALL", 0.02)
    schema = doubling(11)
    assert problems_with({"x": "a"}, schema) == [f"x: must satisfy anyOf: {json.dumps([{'$ref': '#/$defs/D1'}] * 2)}"]
    too_long = ["arguments: takes too long to check against the schema"]
    assert problems_with({"x": "a"}, schema, trusted=False) == too_long
    arguments = {"x": {"n": "1"}}
    assert meant(arguments, schema, trusted=False) == arguments
    assert meant({"x": "3"}, doubling(3), trusted=False) == {"x": 3}


def test_schema_follows_its_draft() -> None:
    """Without a named draft the newest one counts, in which `prefixItems` describes the first items."""
    assert problems_with({"x": ["a"]}, of({"prefixItems": [INTEGER]})) == ['x.0: must satisfy type: "integer"']
    old = of({"items": [INTEGER]}, **{"$schema": "http://json-schema.org/draft-07/schema#"})
    assert problems_with({"x": ["a"]}, old) == ['x.0: must satisfy type: "integer"']


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_remote_references_are_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"type": "integer"}', encoding="utf-8")
    (problem,) = problems_with({"x": "a"}, of({"$ref": outside.as_uri()}))
    assert problem.startswith("arguments: cannot be checked")
