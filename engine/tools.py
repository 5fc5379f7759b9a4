"""Tools: functions the model may call and turnwise runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import pydantic
from pydantic import JsonValue

from turnwise.providers.protocol import ToolSpec
from turnwise.states.errors import SettingsError
from turnwise.states.messages import FilePart
from turnwise.states.names import Crash


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool returns when it has more to give than a value."""

    output: JsonValue
    attachments: tuple[FilePart, ...] = ()


@dataclass(slots=True)
class ToolContext:
    """What a tool may know about its call. A tool asks for it by a parameter annotated with this class."""

    chat_id: str
    call_id: str
    step: int
    attempt: int
    idempotency_key: str
    """The same for every run of this call, before and after a crash."""
    report: Callable[[JsonValue], None]
    """Shows progress to subscribers."""
    cancelled: bool = False
    """Turns true when the call is interrupted: for tools that run in a thread and have to look."""


Reconcile = Callable[[ToolContext], Awaitable[JsonValue | ToolOutput | None]]
"""Asked after a crash what became of a call; `None` means that it cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A local tool, as declared."""

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[..., Any]
    """Called with the arguments by name; async, or blocking and then run in a thread."""
    arguments: type[pydantic.BaseModel] | None = None
    """Coerces and checks the arguments; `None` for a tool declared by JSON schema."""
    context_parameter: str | None = None
    parallel_safe: bool = False
    timeout: float | None = None
    """Seconds; `None` takes `Settings.tool_timeout`."""
    crash: Crash = "at_most_once"
    stop_after: bool = False
    policy: Literal["auto", "ask"] = "auto"
    reconcile: Reconcile | None = None
    spec: ToolSpec = field(init=False)
    """The tool as the model sees it."""
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", ToolSpec(self.name, self.description, self.schema))
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.run))


ToolFunction = Callable[..., Any]


@overload
def tool(function: ToolFunction, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    parallel_safe: bool = False,
    timeout: float | None = None,
    crash: Crash = "at_most_once",
    stop_after: bool = False,
    policy: Literal["auto", "ask"] = "auto",
    reconcile: Reconcile | None = None,
) -> Callable[[ToolFunction], Tool]: ...
def tool(  # noqa: PLR0913 - what a tool declares, all keyword-only
    function: ToolFunction | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    parallel_safe: bool = False,
    timeout: float | None = None,
    crash: Crash = "at_most_once",
    stop_after: bool = False,
    policy: Literal["auto", "ask"] = "auto",
    reconcile: Reconcile | None = None,
) -> Tool | Callable[[ToolFunction], Tool]:
    """Make a function a tool. Its type hints are the input schema, its docstring the description.

    Args:
        function: async, or blocking (it then runs in a thread).
        name: the function's name by default.
        description: the first paragraph of the docstring by default.
        schema: JSON schema of the arguments, instead of the type hints.
        parallel_safe: whether calls may run beside each other; a batch does only if all of its calls are.
        timeout: seconds; `Settings.tool_timeout` by default.
        crash: what a crash during a call means.
        stop_after: whether the turn ends when a call succeeds.
        policy: `ask` wants the client's approval before each call.
        reconcile: asked after a crash what became of a call.

    Raises:
        SettingsError: a parameter has no type hint and no schema is given, or nothing describes the tool.
    """

    def declare(function: ToolFunction) -> Tool:
        known_as = name or str(getattr(function, "__name__", ""))
        context_parameter, arguments = _signature(function, known_as, hints_needed=schema is None)
        described = description or _summary(function)
        if not described:
            raise SettingsError(f"tool {known_as!r}", "needs a docstring or a description: the model chooses by it")
        if timeout is not None and not timeout > 0:
            raise SettingsError(f"tool {known_as!r}", f"timeout must be above 0 seconds; it was {timeout}")
        return Tool(
            name=known_as,
            description=described,
            schema=schema if schema is not None else _schema_of(arguments),
            run=function,
            arguments=arguments if schema is None else None,
            context_parameter=context_parameter,
            parallel_safe=parallel_safe,
            timeout=timeout,
            crash=crash,
            stop_after=stop_after,
            policy=policy,
            reconcile=reconcile,
        )

    return declare if function is None else declare(function)


def tools_by_name(tools: Sequence[Tool | ToolFunction]) -> dict[str, Tool]:
    """Return the tools by name; a bare function is declared with the defaults.

    Raises:
        SettingsError: two tools share a name, one cannot be declared, or one has no object schema.
    """
    by_name: dict[str, Tool] = {}
    for given in tools:
        declared = given if isinstance(given, Tool) else tool(given)
        if declared.name in by_name:
            raise SettingsError("tools", f"two tools are named {declared.name!r}; names must be unique")
        check_schema(declared.name, declared.schema)
        by_name[declared.name] = declared
    return by_name


def check_schema(name: str, schema: object) -> None:
    """Check that a tool's schema is an object schema.

    Raises:
        SettingsError: it is not; the text says what would be.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise SettingsError(
            f"tool {name!r}", 'needs a JSON schema of type "object" for its arguments, e.g. {"type": "object"}'
        )


def _signature(
    function: ToolFunction, name: str, *, hints_needed: bool
) -> tuple[str | None, type[pydantic.BaseModel] | None]:
    if not callable(function):
        raise SettingsError("tools", f"{function!r} is no function and no tool")
    hints = inspect.get_annotations(function, eval_str=True)
    fields: dict[str, Any] = {}
    context_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is ToolContext:
            context_parameter = parameter.name
            continue
        if not hints_needed:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise SettingsError(f"tool {name!r}", f"parameter {parameter} can't be named in a schema; give schema=...")
        if parameter.name not in hints:
            raise SettingsError(
                f"tool {name!r}", f"parameter {parameter.name!r} has no type hint; add one, or give schema=..."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    if not hints_needed:
        return context_parameter, None
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        return context_parameter, pydantic.create_model(f"{name}_arguments", __config__=config, **fields)
    except (pydantic.errors.PydanticSchemaGenerationError, pydantic.errors.PydanticUserError) as error:
        raise SettingsError(f"tool {name!r}", f"no schema can be made from its type hints: {error}") from error


def _schema_of(arguments: type[pydantic.BaseModel] | None) -> dict[str, Any]:
    schema: dict[str, Any] = arguments.model_json_schema() if arguments is not None else {"type": "object"}
    schema.pop("title", None)
    for described in schema.get("properties", {}).values():
        described.pop("title", None)
    return schema


def _summary(function: ToolFunction) -> str:
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
