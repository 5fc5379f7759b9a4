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

_LONG: Final = 40
_MOST: Final = 20


class BadArguments(Exception):
    """The arguments don't fit the tool's schema. The text is for the model: it names, but never quotes, values."""


def parse(text: str, **about: Any) -> dict[str, Any]:
    """Return the JSON object that `text` was meant to be; text with which no call may run stands under `ARGUMENT_TEXT`.

    So does an object that is nested deeper than `DEEPEST`: to copy and to check it could take more stack than there is.
    `about` says in the log which call it is of.
    """
    if not text.strip():
        return {}
    value: Any = whole(text)
    if value is None and fault_of(text) is None:
        value = bracketed(text) or _repair(text)
        if isinstance(value, dict):
            logger.info("arguments_repaired", length=len(text), keys=len(value), **about)
    return value if isinstance(value, dict) and is_shallow(value) else {ARGUMENT_TEXT: text}


def fault_in(arguments: Mapping[str, Any]) -> str | None:
    """Return why no call may run with these arguments, in words that follow "the arguments"; `None` if one may.

    Every place that plans, runs, or asks for a call gets the answer from here.
    """
    if ARGUMENT_TEXT not in arguments:
        return None
    text = str(arguments[ARGUMENT_TEXT])
    fault = fault_of(text) or f"are no JSON object, or one nested deeper than {DEEPEST} levels"
    return f"{fault} ({len(text)} characters)"


def spelled(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that came as a mapping as the JSON that they are stored as: the tool is given nothing else.

    Raises:
        InvalidContent: something in them has no JSON.
    """
    return cast("dict[str, Any]", as_json(well_formed_json(_finite(dict(given)))))


def coerce(tool: Tool | ClientTool | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the tool's schema means them, at every depth: "30" is 30 where a number is wanted.

    The history, the events and the tool see the same values. Arguments that cannot be coerced come back as they are;
    `checked` will say what is wrong with them.
    """
    values: dict[str, Any] = _finite(dict(arguments))
    if tool is None or ARGUMENT_TEXT in values:
        return values
    if isinstance(tool, ClientTool) or tool.signature is None:
        return dict(meant(values, schema_of(tool), trusted=_is_trusted(tool)))
    for read in (lambda: values, lambda: meant(values, tool.schema)):  # the second takes longer
        try:
            fitting: dict[str, Any] = _finite(tool.signature.spelled(read()))
        except Exception:  # noqa: BLE001, S112 - `checked` reports it, also what a type's own code raises
            continue
        return fitting
    return values


def checked(tool: Tool | ClientTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments to call the tool with.

    Raises:
        BadArguments: they don't fit; the text says to the model what to correct.
    """
    fault = fault_in(arguments)
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
    raise BadArguments(f"Invalid arguments for {tool.name}: {listed(problems)}. Received fields: {_fields(arguments)}.")


def problems_of(error: Exception) -> list[str]:
    """Return what a check by pydantic found wrong, in words that name but never quote the values.

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
    """Return pydantic's words, of which only those about the tag of a union quote it."""
    if detail["type"] != "union_tag_invalid":
        return detail["msg"]
    context = detail["ctx"]
    return f"Input tag under {context['discriminator']} must be one of {context['expected_tags']}"


def listed(problems: Sequence[str]) -> str:
    """Return problems in one line, the first ones of many."""
    return "; ".join(problem[:300] for problem in problems[:_MOST])


def schema_of(tool: Tool | ClientTool) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's arguments."""
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
    """Return a value with text in the place of NaN and the infinities, which JSON has not."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {name: _finite(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
    return value


def _fields(arguments: Mapping[str, Any]) -> str:
    fields = [f"{str(name)[:_LONG]} ({_measure(value)})" for name, value in list(arguments.items())[:_MOST]]
    more = [f"and {len(arguments) - _MOST} more"] if len(arguments) > _MOST else []
    return ", ".join([*fields, *more]) or "none"


def _measure(value: Any) -> str:
    if isinstance(value, str) and len(value) > _LONG:
        return f"text of {len(value)} characters"
    return type(value).__name__
