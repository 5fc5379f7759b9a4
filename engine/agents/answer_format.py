"""Answer formats: the form in which an agent gives its final answers, so that a program can use them.

The model gives such an answer by calling a tool. Its arguments are the answer; the tool's result says what is wrong
with them, or ends the turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from turnwise.engine.tools.arguments import BadArguments, checked, listed, problems_of
from turnwise.engine.tools.declare import Tool
from turnwise.engine.tools.schemas import check_schema
from turnwise.engine.user_code import guarded
from turnwise.states.errors import SettingsError, ToolFailed

ANSWER_TOOL: Final = "final_answer"
"""The name of the tool by which a model gives an answer in the form that its agent wants."""
DEMAND: Final = f"Give your final answer by calling the tool {ANSWER_TOOL}."
"""Said to a model that has answered otherwise."""

_WRAPPED: Final = "answer"
"""The one argument that holds an answer which is no object."""
_ACCEPTED: Final = "Accepted."


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The form of an agent's answers."""

    tool: Tool
    read: Callable[[Mapping[str, Any]], Any]
    """Returns the answer that arguments of the tool stand for; raises `BadArguments` if they are none."""


def format_of(agent: str, output: Any) -> AnswerFormat:
    """Return the form that a type, or a JSON schema, asks for.

    Raises:
        SettingsError: no schema can be made of it.
    """
    whose = f"agent {agent!r}"
    value: Callable[[Any], Any]
    schema, value = (dict(output), _as_it_is) if isinstance(output, Mapping) else _by_pydantic(whose, output)
    is_object = schema.get("type") == "object"
    described = str(schema.get("description") or "Give the final answer. This ends the turn.")
    if not is_object:
        schema = _within_an_object(schema)
    check_schema(f"{whose}, output", schema)

    def read(arguments: Mapping[str, Any]) -> Any:
        checked(tool, arguments)
        return value(arguments if is_object else arguments[_WRAPPED])

    async def accept(**arguments: Any) -> str:
        try:
            read(arguments)
        except BadArguments as error:
            raise ToolFailed(str(error)) from error
        return _ACCEPTED

    tool = Tool(
        name=ANSWER_TOOL,
        description=described,
        schema=schema,
        run=accept,
        parallel_safe=True,
        crash="at_least_once",
        stop_after=True,
    )
    return AnswerFormat(tool, read)


def _within_an_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    inner = {name: word for name, word in schema.items() if name != "$defs"}
    return {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
        **definitions,
    }


def _as_it_is(value: Any) -> Any:
    return value


def _by_pydantic(whose: str, output: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - takes long to import

    try:
        with guarded():
            adapter: TypeAdapter[Any] = TypeAdapter(output)
            schema = adapter.json_schema()
    except Exception as error:
        raise SettingsError(
            whose, f"no JSON schema can be made of its output {output!r:.100} ({type(error).__name__})"
        ) from error

    def value(given: Any) -> Any:
        try:
            with guarded():
                return adapter.validate_json(json.dumps(given))
        except Exception as error:
            raise BadArguments(f"The answer does not fit: {listed(problems_of(error))}.") from error

    return schema, value
