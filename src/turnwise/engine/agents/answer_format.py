"""Answer formats: the form of an agent's final answers, for programs.

A model that supports schemas gives such an answer as its text. Any other calls a tool: its arguments are the answer,
and its result describes their faults, or ends the turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from pydantic import TypeAdapter

from turnwise.engine.tools.arguments import BadArguments, coerce, join_problems, problems_of, validate
from turnwise.engine.tools.declare import Tool
from turnwise.engine.tools.schemas import ALTERNATIVES, check_schema, problems_with
from turnwise.foreign import guarded
from turnwise.providers.protocol import ModelRequest
from turnwise.states.errors import SettingsError, ToolFailed
from turnwise.states.messages import Part, TextPart
from turnwise.states.model_errors import INVALID_ANSWER, ModelError
from turnwise.states.values.plain import Misfit, plain_object, type_name

ANSWER_TOOL: Final = "final_answer"
"""The name of the tool that takes final answers."""
DEMAND: Final = f"Give your final answer by calling the tool {ANSWER_TOOL}."
"""The message to a model that has answered otherwise."""
OutputMode = Literal["native", "tool"]
"""How a model gives an answer in a form: as text that the provider constrains to a schema, or by a tool call."""

_WRAPPED: Final = "answer"
"""The argument that holds an answer which is no object."""
_ACCEPTED: Final = "Accepted."
_AGAIN: Final = "Give your final answer again, as JSON of the schema and nothing else."
_RESTRICTING: Final = ("type", "$ref", "enum", "const", "anyOf", "oneOf", "allOf")
"""Keywords of schemas that restrict the value."""
_DEFINITIONS: Final = ("$defs", "definitions")
_REFERS_ELSEWHERE: Final = re.compile(r'"\$ref": "#(?!/(\$defs|definitions)/)')
_BY_NAME: Final = ("properties", *_DEFINITIONS)
_IN_ROWS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_ALONE: Final = ("items", "not")
"""Where in a schema other schemas stand."""


class AnswerFormat(msgspec.Struct, frozen=True):
    """The form of an agent's answers."""

    tool: Tool
    """Its schema is also that of answers as text."""
    read: Callable[[Mapping[str, Any]], Any]
    """Returns the answer in the tool's arguments, or raises `BadArguments`."""
    is_closed: bool
    """Whether the schema names every field that an answer may have: some providers' own modes drop all others."""

    def arguments_in(self, text: str) -> dict[str, Any]:
        """Return the tool's arguments in the text of an answer, or raise `BadArguments` with a text for the model."""
        try:
            answer = plain_object(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError, Misfit) as error:
            raise BadArguments(f"The answer is no JSON object ({len(text)} characters).") from error
        arguments = coerce(self.tool, answer)
        problems = problems_with(arguments, self.tool.schema)
        if problems:
            raise BadArguments(f"The answer does not fit: {join_problems(problems)}.")
        self.read(arguments)
        return arguments

    def demand(self, text: str | None) -> str:
        """Return the message to a model whose text does not have the form; `None` for a text that is gone."""
        if text is None:
            return _AGAIN
        try:
            self.arguments_in(text)
        except BadArguments as error:
            return f"{error} {_AGAIN}"
        return "Give your final answer again."


def answer_fault(answer: AnswerFormat | None, request: ModelRequest, parts: Sequence[Part]) -> str | None:
    """Return the fault of a reply without calls, as an answer in the agent's form; `None` for a valid one."""
    if answer is None:
        return None
    if request.answer_schema is None:
        return f"The answer is text, and no call of {ANSWER_TOOL}."
    try:
        answer.arguments_in("".join(part.text for part in parts if isinstance(part, TextPart)))
    except BadArguments as error:
        return str(error)
    return None


def answer_retries_exhausted(refused: int, fault: str) -> ModelError:
    """Return the error of a turn whose answers were refused, the last one for `fault`.

    Clients may read it, too: it names fields, and quotes none.
    """
    error = ModelError(
        INVALID_ANSWER,
        retryable=False,
        message=f"{refused} answers did not have the form that the agent wants (Settings.answer_retries). {fault}",
    )
    error.note = fault
    return error


def format_of(agent: str, output: Any) -> AnswerFormat:
    """Return the form that a type, or a JSON schema, describes."""
    whose = f"agent {agent!r}"
    value: Callable[[Any], Any]
    schema, value = (
        (dict(output), lambda answer: answer) if isinstance(output, Mapping) else _build_by_pydantic(whose, output)
    )
    is_object = schema.get("type") == "object" and ALTERNATIVES.isdisjoint(schema)
    described = str(schema.get("description") or "Give the final answer. This ends the turn.")
    if not is_object:
        schema = _within_an_object(whose, schema)
    check_schema(f"{whose}, output", schema)

    def read(arguments: Mapping[str, Any]) -> Any:
        validate(tool, arguments)
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
    return AnswerFormat(tool, read, is_closed=_is_closed(schema))


def _is_closed(schema: Any) -> bool:
    if not isinstance(schema, Mapping) or not any(word in schema for word in _RESTRICTING):
        return False
    is_open = schema.get("additionalProperties") not in (None, False) or "patternProperties" in schema
    if is_open or (schema.get("type") == "object" and not schema.get("properties")):
        return False
    inner = [one for word in _BY_NAME for one in schema.get(word, {}).values()]
    inner += [one for word in _IN_ROWS for one in schema.get(word, ())]
    inner += [schema[word] for word in _ALONE if word in schema]
    is_array = schema.get("type") == "array"
    return all(map(_is_closed, inner)) and ("items" in schema or "prefixItems" in schema or not is_array)


def _within_an_object(whose: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    inner = dict(schema)
    definitions: dict[str, Any] = {name: inner.pop(name) for name in _DEFINITIONS if name in inner}
    if _REFERS_ELSEWHERE.search(json.dumps(schema)):
        raise SettingsError(whose, 'its output is no object, so a "$ref" in it must begin with "#/$defs/"')
    return {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
        **definitions,
    }


def _build_by_pydantic(whose: str, output: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    try:
        with guarded():
            adapter: TypeAdapter[Any] = TypeAdapter(output)
            schema = adapter.json_schema()
    except Exception as error:
        problem = f"no JSON schema can be made of its output {output!r:.100} ({type_name(error)})"
        raise SettingsError(whose, problem) from error

    def value(answer: Any) -> Any:
        try:
            with guarded():
                return adapter.validate_json(json.dumps(answer))
        except Exception as error:
            raise BadArguments(f"The answer does not fit: {join_problems(problems_of(error))}.") from error

    return schema, value
