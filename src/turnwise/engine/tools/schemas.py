"""JSON schemas of arguments: checks schemas, checks arguments against them, and coerces arguments to them."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, cast

from turnwise.engine.tools.limited_checks import TO_CALL, TooCostly, go_on, limited, limited_kind
from turnwise.states.errors import SettingsError, TurnwiseError
from turnwise.states.values.digests import as_json, canonical
from turnwise.states.values.plain import type_name

if TYPE_CHECKING:
    from jsonschema import FormatChecker, ValidationError
    from jsonschema.protocols import Validator

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of tools that every provider accepts."""

ALTERNATIVES: Final = frozenset({"anyOf", "oneOf", "allOf", "not", "enum", "const"})
"""Keywords that no provider accepts at the top of a tool's schema.

Source: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas, and Anthropic's answer
"input_schema does not support oneOf, allOf, or anyOf at the top level".
"""

_DEEPEST: Final = 64
"""The most references that are followed: a schema may refer to itself."""
_LONGEST_STEP: Final = 40
_LONGEST_KNOWN: Final = 64 * 1024
"""The largest schema whose check is cached, in bytes."""


def check_name(whose: str, name: str) -> None:
    """Raise a `SettingsError` unless every provider takes a tool's name."""
    if not NAME.fullmatch(name):
        raise SettingsError(
            whose, "needs a name of 1 to 64 letters, digits, _ and -, as providers demand; give another with name=..."
        )


def check_schema(whose: str, schema: object) -> None:
    """Raise a `SettingsError` unless a tool's schema is one that providers take.

    That is a valid object schema that refers to nothing outside itself, and has no alternatives at its top.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise SettingsError(
            whose, 'needs a JSON schema of type "object" for its arguments, e.g. {"type": "object", "properties": {}}'
        )
    if refused := sorted(ALTERNATIVES.intersection(schema)):
        words = ", ".join(refused)
        raise SettingsError(
            whose, f"its JSON schema has {words} at the top, which providers refuse; move what it says into a property"
        )
    check_valid(whose, schema)


def check_valid(whose: str, schema: Mapping[str, Any]) -> None:
    """Raise a `SettingsError` unless a JSON schema is valid, and refers to nothing outside itself."""
    try:
        plain = cast("dict[str, Any]", as_json(dict(schema)))
    except TurnwiseError as error:
        raise SettingsError(whose, f"needs a JSON schema that JSON can spell: {error}") from error
    spelled = canonical(plain)
    try:
        problem = (_find_problem if len(spelled) <= _LONGEST_KNOWN else _find_problem.__wrapped__)(spelled)
    except TooCostly:
        problem = "its JSON schema takes too long to check; make it smaller"
    if problem is not None:
        raise SettingsError(whose, problem)


@functools.lru_cache(maxsize=256)
def _find_problem(spelled: bytes) -> str | None:
    """Return the problem of a schema, cached: each engine and each chat checks it again."""
    schema = json.loads(spelled)
    kind = type(_validator(schema))
    try:
        error = next(_validator(kind.META_SCHEMA, kind.FORMAT_CHECKER).iter_errors(schema), None)
    except (OverflowError, RecursionError) as unforeseen:  # a pattern with a large number, or too many parentheses
        return f"its JSON schema cannot be checked ({type_name(unforeseen)})"
    if error is not None:
        place = ".".join(str(step) for step in error.absolute_path) or "the top"
        return f"its JSON schema is not valid at {place}: {error.message[:300]}"
    unknown = next((reference for reference in _references(schema) if _resolve(reference, schema) is None), None)
    if unknown is None:
        return None
    return f"its JSON schema refers to {unknown!r}, which it does not hold; only #/... within it can be read"


def problems_with(
    value: Any, schema: Mapping[str, Any], *, trusted: bool = True, whole: str = "arguments"
) -> list[str]:
    """Return the mismatches of a value with the schema, without quoting the value, which is called `whole`.

    A schema that is not `trusted`, of a client or server, has a time limit, and its patterns are not matched.
    """
    try:
        with nullcontext() if trusted else limited(TO_CALL):
            return [
                f"{place(fault.absolute_path, whole)}: {_without_value(fault)}"
                for fault in _validator(schema).iter_errors(dict(value) if isinstance(value, Mapping) else value)
            ]
    except TooCostly:
        return [f"{whole}: takes too long to check against the schema"]
    except Exception as error:  # noqa: BLE001 - a schema may hold what no check foresees, such as a hopeless pattern
        return [f"{whole}: cannot be checked against the schema ({type_name(error)})"]


def place(path: Any, whole: str = "arguments") -> str:
    """Return a path into arguments as text, with long names cut."""
    return ".".join(str(step)[:_LONGEST_STEP] for step in path) or whole


def _validator(schema: Mapping[str, Any], formats: FormatChecker | None = None) -> Validator:
    import jsonschema  # noqa: PLC0415 - takes long to import, and only tools declared by JSON schema need it
    from jsonschema.validators import validator_for  # noqa: PLC0415 - as above
    from referencing import Registry  # noqa: PLC0415 - as above

    kind = validator_for(cast("dict[str, Any]", schema), default=jsonschema.Draft202012Validator)
    # An empty registry: what a schema refers to is never fetched from the network.
    return limited_kind(kind)(cast("dict[str, Any]", schema), registry=Registry(), format_checker=formats)


def _without_value(fault: ValidationError) -> str:
    if fault.validator == "required":
        wanted, instance = cast("list[str]", fault.validator_value), cast("dict[str, Any]", fault.instance)
        missing = [name for name in wanted if name not in instance]
        return f"missing {', '.join(missing)}"
    return f"must satisfy {fault.validator}: {json.dumps(fault.validator_value, default=str)[:200]}"


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference
        for word, inner in schema.items():
            if word not in ("enum", "const", "default", "examples"):
                yield from _references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that a reference names; `None` if the whole schema does not hold it."""
    from referencing import Registry, Resource  # noqa: PLC0415 - takes long to import
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as above
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - as above

    go_on()
    resource: Resource[Any] = Resource.from_contents(root, default_specification=DRAFT202012)
    try:
        found = Registry().with_resource("", resource).resolver().lookup(reference).contents
    except (Unresolvable, ValueError, TypeError):  # the last two for a pointer into a list or number
        return None
    return found if isinstance(found, Mapping) else None


def meant(value: Any, schema: Any, *, trusted: bool = True) -> Any:
    """Return a value coerced to the schema, at every depth: "30" is 30 for a number. Otherwise return it unchanged.

    For `trusted` see `problems_with`.
    """
    try:
        with nullcontext() if trusted else limited(TO_CALL):
            return _meant(value, schema, schema, _DEEPEST)
    except TooCostly:
        return value


def _meant(value: Any, schema: Any, root: Mapping[str, Any], deepest: int) -> Any:
    """Return a value coerced to a schema, whose references are looked up in `root`."""
    go_on()
    while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str) and deepest:
        schema, deepest = _resolve(schema["$ref"], root), deepest - 1
    if not isinstance(schema, Mapping) or not deepest:
        return value
    if isinstance(value, str):
        value = _read(value, _types(schema, root, deepest))
    for word in ("anyOf", "oneOf"):
        value = _meant_by_one(value, schema.get(word), root, deepest - 1)
    for inner in _each(schema.get("allOf")):
        value = _meant(value, inner, root, deepest - 1)
    if isinstance(value, dict):
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        schemas = properties if isinstance(properties, Mapping) else {}
        return {name: _meant(item, schemas.get(name, others), root, deepest) for name, item in value.items()}
    if isinstance(value, list):
        first, others = list(_each(schema.get("prefixItems"))), schema.get("items")
        return [_meant(item, first[at] if at < len(first) else others, root, deepest) for at, item in enumerate(value)]
    return value


def _meant_by_one(value: Any, choices: Any, root: Mapping[str, Any], deepest: int) -> Any:
    """Return a value coerced to the first of several schemas that it then fits."""
    if not isinstance(value, dict | list):
        return value
    definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
    for choice in _each(choices):
        understood = _meant(value, choice, root, deepest)
        if not problems_with({"value": understood}, {**definitions, "properties": {"value": choice}}):
            return understood
    return value


def _each(schemas: Any) -> Sequence[Any]:
    return schemas if isinstance(schemas, list | tuple) else ()


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], deepest: int) -> frozenset[str]:
    """Return the types that a value may have; none if the schema does not restrict them."""
    go_on()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(kind)
    types: set[str] = set()
    for choice in (*_each(schema.get("anyOf")), *_each(schema.get("oneOf"))):
        inner = _resolve(choice["$ref"], root) if isinstance(choice, Mapping) and "$ref" in choice else choice
        choices = _types(inner, root, deepest - 1) if isinstance(inner, Mapping) and deepest else frozenset()
        if not choices:
            return frozenset()
        types |= choices
    return frozenset(types)


def _read(text: str, types: frozenset[str]) -> Any:
    """Return the value that a text spells, if the types allow no text; else the text."""
    if "string" in types:
        return text
    stripped = text.strip()
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    for kind, convert in _NUMBERS.items():
        if kind in types:
            try:
                number = convert(stripped)
                if math.isfinite(number):
                    return number
            except (ValueError, OverflowError):
                continue
    if {"object", "array"} & types:
        try:
            parsed = json.loads(stripped)
        except (ValueError, RecursionError):
            return text
        return parsed if isinstance(parsed, dict | list) else text
    return None if "null" in types and stripped.lower() in ("null", "none", "") else text


_NUMBERS: Final[dict[str, Callable[[str], int | float]]] = {"integer": int, "number": float}
