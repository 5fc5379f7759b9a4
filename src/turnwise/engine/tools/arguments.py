"""Arguments of tool calls: repaired, coerced, checked, and bad ones described without repeating them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, cast

from turnwise.engine.tools.schemas import meant, place, problems_with
from turnwise.engine.tools.signatures import filled_in
from turnwise.foreign import only_error_in
from turnwise.logger import logger
from turnwise.providers.argument_text import ARGUMENT_TEXT, bracketed, fault_of, whole
from turnwise.states.calls import ClientTool
from turnwise.states.values.digests import as_json
from turnwise.states.values.plain import DEEPEST, is_shallow, type_name, well_formed_json

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from turnwise.engine.tools.declare import Tool

_MAX_NAME_CHARS: Final = 40
_MAX_ITEMS: Final = 20


class BadArguments(Exception):
    """The arguments don't fit the tool's schema. The text is for the model: it names, but never quotes, values."""


def parse(text: str, **log_context: Any) -> dict[str, Any]:
    """Parse, and if needed repair, a JSON object; if that fails, return `{ARGUMENT_TEXT: text}`, which never runs."""
    if not text.strip():
        return {}
    value: Any = whole(text)
    if value is None and fault_of(text) is None:
        value = bracketed(text) or _repair(text)
        if isinstance(value, dict):
            logger.info("arguments_repaired", length=len(text), keys=len(value), **log_context)
    return value if isinstance(value, dict) and is_shallow(value) else {ARGUMENT_TEXT: text}


def parse_error_in(arguments: Mapping[str, Any]) -> str | None:
    """Return the fault of a call's arguments, to follow "the arguments"; `None` if the call may run."""
    if ARGUMENT_TEXT not in arguments:
        return None
    text = str(arguments[ARGUMENT_TEXT])
    fault = fault_of(text) or f"are no JSON object, or one nested deeper than {DEEPEST} levels"
    return f"{fault} ({len(text)} characters)"


def to_json_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to the JSON values that are stored and passed to the tool."""
    return cast("dict[str, Any]", as_json(well_formed_json(_finite(dict(arguments)))))


def coerce(tool: Tool | ClientTool | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Coerce arguments to the tool's schema, at every depth: "30" is 30 for a number. Invalid ones stay unchanged.

    The history, the events and the tool see the same values.
    """
    values: dict[str, Any] = _finite(dict(arguments))
    if tool is None or ARGUMENT_TEXT in values:
        return values
    if isinstance(tool, ClientTool) or tool.signature is None:
        return dict(meant(values, schema_of(tool), trusted=_is_trusted(tool)))
    for read in (lambda: values, lambda: meant(values, tool.schema)):  # the second takes longer
        try:
            fitting: dict[str, Any] = _finite(tool.signature.spelled(read()))
        except Exception:  # noqa: BLE001, S112 - `validate` reports it
            continue
        return fitting
    return values


def validate(tool: Tool | ClientTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments to call the tool with, or raise `BadArguments` with a text for the model."""
    fault = parse_error_in(arguments)
    if fault is not None:
        raise BadArguments(f"Not run: the arguments of {tool.name} {fault}. Call it with one whole JSON object.")
    if not isinstance(tool, ClientTool) and tool.signature is not None:
        try:
            return tool.signature.read(arguments)
        except Exception as error:  # noqa: BLE001 - a type may check itself by code of its own
            problems = problems_of(error)
    else:
        problems = problems_with(arguments, schema_of(tool), trusted=_is_trusted(tool))
        if not isinstance(tool, ClientTool):
            problems += [f"{name}: is not for you to give" for name in filled_in(tool.run) if name in arguments]
        if not problems:
            return dict(arguments)
    raise BadArguments(
        f"Invalid arguments for {tool.name}: {join_problems(problems)}. Received fields: {_fields(arguments)}."
    )


def problems_of(error: Exception) -> list[str]:
    """Return the problems that pydantic found, without quoting values.

    For an error in the code of a check they name the type alone; the log has its traceback.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - takes long to import

    if not isinstance(error, ValidationError):
        raised = only_error_in(error)
        logger.exception("check_failed", error=raised)
        return [f"they cannot be checked ({type_name(raised)})"]
    problems: list[str] = []
    for detail in error.errors():
        steps = detail["loc"]
        path = [step for step, inner in zip_longest(steps, steps[1:]) if inner != "[key]"]  # a wrong key is a value
        problems.append(f"{place(path)}: {_without_value(detail)}")
    return problems


def _without_value(detail: ErrorDetails) -> str:
    """Return pydantic's message, of which only that about the tag of a union quotes a value."""
    if detail["type"] != "union_tag_invalid":
        return detail["msg"]
    context = detail["ctx"]
    return f"Input tag under {context['discriminator']} must be one of {context['expected_tags']}"


def join_problems(problems: Sequence[str]) -> str:
    """Return problems in one line, the first ones of many."""
    return "; ".join(problem[:300] for problem in problems[:_MAX_ITEMS])


def schema_of(tool: Tool | ClientTool) -> Mapping[str, Any]:
    return tool.input_schema if isinstance(tool, ClientTool) else tool.schema


def _is_trusted(tool: Tool | ClientTool) -> bool:
    """Whether the program itself has declared the tool, and neither a client nor a third party."""
    return not isinstance(tool, ClientTool) and tool.source is None


def _repair(text: str) -> Any:
    from json_repair import repair_json  # noqa: PLC0415 - takes long to import, and few replies need it

    try:
        value = repair_json(text, return_objects=True)
    except (ValueError, RecursionError):
        return None
    return value if well_formed_json(value) == value else None  # it does not read both halves of a character


def _finite(value: Any) -> Any:
    """Return a value with text in place of NaN and the infinities, which JSON lacks."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {name: _finite(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
    return value


def _fields(arguments: Mapping[str, Any]) -> str:
    first = list(arguments.items())[:_MAX_ITEMS]
    fields = [f"{str(name)[:_MAX_NAME_CHARS]} ({_measure(value)})" for name, value in first]
    more = [f"and {len(arguments) - _MAX_ITEMS} more"] if len(arguments) > _MAX_ITEMS else []
    return ", ".join([*fields, *more]) or "none"


def _measure(value: Any) -> str:
    if isinstance(value, str) and len(value) > _MAX_NAME_CHARS:
        return f"text of {len(value)} characters"
    return type(value).__name__
