"""Arguments of tool calls: repaired, coerced, checked, and bad ones described without repeating them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pydantic

from turnwise.engine.log import Log
from turnwise.engine.tools import Tool
from turnwise.providers.joining import ARGUMENT_TEXT
from turnwise.states.calls import ClientTool

if TYPE_CHECKING:
    from jsonschema import ValidationError

_LONG = 40
_log = Log("turnwise.tools")


class BadArguments(Exception):
    """The arguments don't fit the tool's schema. The text is for the model: it names, but never quotes, values."""


def parse(text: str) -> dict[str, Any]:
    """Return the JSON object that `text` was meant to be; hopeless text stands under `ARGUMENT_TEXT`."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = _repaired(text) if text.lstrip().startswith("{") else None
        if isinstance(value, dict):
            _log.info("arguments_repaired", length=len(text), keys=sorted(value))
    return value if isinstance(value, dict) else {ARGUMENT_TEXT: text}


def coerced(tool: Tool | ClientTool | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the tool's schema means them: "30" is 30 where a number is wanted.

    Arguments that cannot be coerced come back as they are; `checked` will say what is wrong with them.
    """
    schema = tool.input_schema if isinstance(tool, ClientTool) else tool.schema if tool is not None else {}
    properties = schema.get("properties", {})
    known = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, str) and isinstance(properties.get(name), Mapping):
            known[name] = _coerced_value(value, _types(properties[name]))
    return known


def checked(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments to call the tool with.

    Raises:
        BadArguments: they don't fit; the text tells the model what to mend.
    """
    if ARGUMENT_TEXT in arguments:
        raise BadArguments(
            f"The arguments of {tool.name} are no JSON object ({len(str(arguments[ARGUMENT_TEXT]))} characters)."
        )
    problems: list[str]
    if tool.arguments is not None:
        try:
            model = tool.arguments.model_validate(dict(arguments))
        except pydantic.ValidationError as error:
            problems = [f"{_place(known['loc'])}: {known['msg']}" for known in error.errors(include_input=False)]
        else:
            return {name: getattr(model, name) for name in type(model).model_fields}
    else:
        import jsonschema  # noqa: PLC0415 - takes long to import, and only tools declared by JSON schema need it

        validator = jsonschema.Draft202012Validator(tool.schema)
        problems = [
            f"{_place(found.absolute_path)}: {_without_value(found)}"
            for found in validator.iter_errors(dict(arguments))
        ]
        if not problems:
            return dict(arguments)
    received = ", ".join(f"{name} ({_measure(value)})" for name, value in arguments.items()) or "none"
    raise BadArguments(f"Invalid arguments for {tool.name}: {'; '.join(problems)}. Received fields: {received}.")


def _repaired(text: str) -> Any:
    from json_repair import repair_json  # noqa: PLC0415 - takes long to import, and few replies need it

    return repair_json(text, return_objects=True)


def _coerced_value(value: str, types: tuple[str, ...]) -> Any:
    if "string" in types or not types:
        return value
    text = value.strip()
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind, convert in (("integer", int), ("number", float)):
        if kind in types:
            try:
                return convert(text)
            except ValueError:
                continue
    if {"object", "array"} & set(types):
        try:
            parsed = json.loads(text)
        except ValueError:
            return value
        return parsed if isinstance(parsed, dict | list) else value
    return None if "null" in types and text.lower() in ("null", "none", "") else value


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    if isinstance(kind, list):
        return tuple(kind)
    choices = schema.get("anyOf", ())
    return tuple(found for choice in choices if isinstance(choice, Mapping) for found in _types(choice))


def _place(path: Any) -> str:
    return ".".join(str(step) for step in path) or "arguments"


def _without_value(found: ValidationError) -> str:
    if found.validator == "required":
        wanted, given = cast("list[str]", found.validator_value), cast("dict[str, Any]", found.instance)
        missing = [name for name in wanted if name not in given]
        return f"missing {', '.join(missing)}"
    return f"must satisfy {found.validator}: {json.dumps(found.validator_value)[:200]}"


def _measure(value: Any) -> str:
    if isinstance(value, str) and len(value) > _LONG:
        return f"text of {len(value)} characters"
    return type(value).__name__
