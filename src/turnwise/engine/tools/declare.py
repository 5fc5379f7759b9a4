"""Tools: functions the model may call and turnwise runs, and one by which a model schedules a message to itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from datetime import datetime
from typing import Annotated, Any, Literal, overload

from msgspec.structs import replace
from pydantic import Field, SkipValidation

from turnwise.engine.config.settings import PositiveSeconds
from turnwise.engine.isolation.user_code import in_thread
from turnwise.engine.tools.arguments import BadArguments, coerce, parse, to_json_values, validate
from turnwise.engine.tools.context import ToolContext, ToolOutput
from turnwise.engine.tools.schemas import check_name
from turnwise.engine.tools.signatures import (
    Signature,
    check_names,
    context_parameter,
    filled_in,
    find_called,
    find_described,
    signature_of,
    takes_any_name,
)
from turnwise.foreign import UserCodeError, guarded
from turnwise.providers.protocol import ProviderDefinition, ToolSpec
from turnwise.states.errors import InvalidArgument, QueueFull, SettingsError, ToolFailed
from turnwise.states.names import Approver, Crash, SubagentAction
from turnwise.states.values.checked import checked, configuration
from turnwise.states.values.digests import as_json, digest
from turnwise.states.values.plain import type_name
from turnwise.states.values.values import CheckedCall, Json, Value


class Reconciled(Value, metaclass=CheckedCall, frozen=True):
    """The finding of a tool's `reconcile` after a crash: make one by `done`, `not_done` or `unknown`."""

    verdict: Literal["done", "not_done", "unknown"]
    output: Annotated[Json | ToolOutput, SkipValidation] = None

    @classmethod
    def done(cls, output: Json | ToolOutput = None) -> Reconciled:
        """The call took effect and has this output: it does not run again."""
        return cls("done", output)

    @classmethod
    def not_done(cls) -> Reconciled:
        """The call took no effect and cannot take effect later: it runs, also with `at_most_once`."""
        return cls("not_done")

    @classmethod
    def unknown(cls) -> Reconciled:
        """The outcome is unknown: the crash policy decides."""
        return cls("unknown")


Reconcile = Callable[[ToolContext[Any]], Awaitable[Reconciled | Json | ToolOutput | None]]
"""Says after a crash what became of the call of a context, which it finds by the `idempotency_key`.

A bare `None` stands for `Reconciled.unknown()`, and any other bare value for `Reconciled.done(value)`.
"""


@configuration()
class Tool:
    """A local tool, as declared."""

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[..., Any]
    """Called with the arguments by name; async, or blocking and then run in a thread."""
    signature: Signature | None = None
    """Coerces and checks the arguments; `None` for a tool declared by JSON schema."""
    context_parameter: str | None = None
    parallel_safe: bool = False
    timeout: PositiveSeconds | None = None
    """Seconds; `None` takes `Settings.tool_timeout`."""
    crash: Crash = "at_most_once"
    stop_after: bool = False
    policy: Literal["auto", "ask"] = "auto"
    approver: Approver = "operator"
    """Who may allow calls over HTTP, with `policy="ask"`."""
    reconcile: Reconcile | None = None
    subagent: str | None = None
    """The agent whose chats do what the calls ask, instead of `run`; see `delegate`."""
    subagent_detached: bool = False
    """Whether a subagent works on after its parent has stopped waiting for its answer."""
    subagent_action: SubagentAction | None = None
    """The action on subagents that a call stands for; `None` for a tool that runs."""
    definition: ProviderDefinition | None = None
    """How the provider knows the tool, if it is one of the provider's own; description and schema are not sent."""
    source: str | None = None
    """The third party that offers the tool, such as a server of MCP; `None` for one of the program's own."""
    spec: ToolSpec = field(init=False)
    """The tool as the model sees it."""
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        check_name(f"tool {self.name!r}", self.name)
        if self.subagent_action is not None and self.policy == "ask":
            raise SettingsError(f"tool {self.name!r}", "is answered by subagents, which needs no approval")
        if self.approver != "operator" and self.policy != "ask":
            problem = f"approver={self.approver!r} needs policy='ask': its calls run without approval"
            raise SettingsError(f"tool {self.name!r}", problem)
        if self.definition is not None and self.definition.name != self.name:
            raise SettingsError(
                f"tool {self.name!r}",
                f"must be named {self.definition.name!r}: its definition says what models call it",
            )
        object.__setattr__(self, "spec", ToolSpec(self.name, self.description, self.schema, self.definition))
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(find_called(self.run)))

    async def __call__(
        self,
        arguments: Mapping[str, Any] | str = "",
        /,
        *,
        deps: object = None,
        context: ToolContext[Any] | None = None,
    ) -> Json | ToolOutput:
        """Run the tool by itself, for a test of the tool: read and check the arguments as the engine does, and run it.

        Crash policy, approval and time limit are an engine's, and play no part. A blocking tool runs in a thread.

        Args:
            arguments: as a model gives them: by name, or as the JSON text of that.
            deps: the value of `ToolContext.deps`; it is neither called nor entered.
            context: the whole context of the call; by default `ToolContext.for_tests(deps=deps)`.

        Returns:
            The output as an engine would store it, as JSON; in a `ToolOutput`, with its attachments, if the tool
            returned one.

        Raises:
            InvalidArgument: the arguments do not fit; the text is what the model would read.
            InvalidContent: what the tool returned has no JSON.
            SettingsError: the tool is answered by a subagent, and has no function.
            Exception: what the tool raises.
        """
        if self.subagent_action is not None:
            raise SettingsError(f"tool {self.name!r}", "is answered by a subagent: call it through an engine")
        if context is not None and deps is not None:
            raise InvalidArgument("deps", "stands in the context; give either")
        try:
            given = parse(arguments) if isinstance(arguments, str) else to_json_values(arguments)
            values = validate(self, coerce(self, given))
        except BadArguments as error:
            raise InvalidArgument("arguments", str(error).rstrip(".")) from error
        if self.context_parameter is not None:
            values[self.context_parameter] = ToolContext.for_tests(deps=deps) if context is None else context
        run = functools.partial(self.run, **values)
        try:
            with guarded():
                returned = run() if self.is_async else await in_thread(run)
                if inspect.isawaitable(returned):
                    returned = await returned
        except UserCodeError as error:
            raise error.raised from None
        if isinstance(returned, ToolOutput):
            return replace(returned, output=as_json(returned.output))
        output: Json = as_json(returned)
        return output


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
    approver: Approver = "operator",
    reconcile: Reconcile | None = None,
    definition: ProviderDefinition | None = None,
) -> Callable[[ToolFunction], Tool]: ...
@checked
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
    approver: Approver = "operator",
    reconcile: Reconcile | None = None,
    definition: ProviderDefinition | None = None,
) -> Tool | Callable[[ToolFunction], Tool]:
    """Make a function a tool. Its type hints are the input schema, its docstring describes it and its parameters.

    Args:
        function: async, or blocking (it then runs in a thread): a function, a method, a `functools.partial` (the model
            cannot give the arguments that it fills in) or an object with `__call__`.
        name: the function's name by default; 1 to 64 letters, digits, _ and -.
        description: the first paragraph of the docstring by default.
        schema: JSON schema of the arguments, instead of the type hints.
        parallel_safe: whether calls may run beside each other; a batch does only if all of its calls are.
        timeout: seconds; `Settings.tool_timeout` by default.
        crash: what happens to a call that a crash cut off: `at_most_once` or `at_least_once`.
        stop_after: whether the turn ends when a call succeeds.
        policy: with `ask`, each call waits for approval.
        approver: who may give that approval over HTTP: `operator`, or `owner`, the chat's owner as well.
        reconcile: a function of the call's context that is called after a crash and returns a `Reconciled`.
        definition: the tool as its provider knows it. It has the name, the description and the schema that the model
            reads; type hints or `schema` only check the arguments, and `**arguments` takes them as they come.

    Raises:
        SettingsError: a parameter has no type hint that makes a schema and no schema is given, or nothing describes
            the tool, or it is something that cannot be called for one result; or `name` or `description` is given
            beside a definition, which has them.
    """

    def declare(function: ToolFunction) -> Tool:
        under = function.func if isinstance(function, functools.partial) else function
        known_as = name if name is not None else str(getattr(under, "__name__", type_name(under)))
        if definition is not None:
            known_as = definition.name
            if description is not None or name not in (None, known_as):
                unsent = "name" if description is None else "description"
                problem = f"has a definition, which holds all that the model reads; leave out {unsent}=..."
                raise SettingsError(f"tool {known_as!r}", problem)
        _check_callable(function, known_as)
        check_names(function, known_as)
        context = context_parameter(function, known_as, ToolContext)
        signature, takes = None, schema
        if takes is None and definition is not None and takes_any_name(function, known_as):
            takes = {"type": "object"}
        if takes is None:
            signature = signature_of(function, known_as, without=context)
            takes = signature.schema
        for given in filled_in(function):
            if given in takes.get("properties", ()):
                problem = (
                    f"schema asks the model for {given!r}, which functools.partial has filled in; leave out either"
                )
                raise SettingsError(f"tool {known_as!r}", problem)
        described = description or _summary(function)
        if not described and definition is None:
            raise SettingsError(f"tool {known_as!r}", "needs a docstring or a description: the model chooses by it")
        return Tool(
            name=known_as,
            description=described,
            schema=takes,
            run=function,
            signature=signature,
            context_parameter=context,
            parallel_safe=parallel_safe,
            timeout=timeout,
            crash=crash,
            stop_after=stop_after,
            policy=policy,
            approver=approver,
            reconcile=reconcile,
            definition=definition,
        )

    return declare if function is None else declare(function)


def _check_callable(function: object, name: str) -> None:
    """Raise a `SettingsError` if a tool cannot be called, is a class, or yields instead of returning one result."""
    whose = f"tool {name!r}"
    if not callable(function):
        raise SettingsError("tools", f"{function!r:.100} is no function and no tool")
    if isinstance(function, Tool):
        raise SettingsError(f"tool {function.name!r}", "is a tool already; declare its function")
    if isinstance(function, type):
        raise SettingsError(whose, "is a class; give a function, or an object of the class that has __call__")
    called = find_called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise SettingsError(
            whose, "yields; a tool returns one result, and shows what comes before it with ToolContext.report"
        )


def _summary(function: ToolFunction) -> str:
    doc = find_described(function).__doc__
    if doc is None and not inspect.isroutine(function):
        doc = type(function).__doc__
    return " ".join(inspect.cleandoc(doc or "").split("\n\n")[0].split())


# Described here and not in the docstring: reading docstrings would import griffe with turnwise.
At = Annotated[datetime, Field(description="When, in the future, as ISO 8601 with the offset from UTC.")]
Note = Annotated[str, Field(description="What you want to know then: you see it as a message.")]


@tool(crash="at_least_once", parallel_safe=True)
async def wake_me(at: At, note: Note, context: ToolContext) -> str:
    """Have yourself woken up later in this chat: at that time you get your note as a message, and go on."""
    # After a crash it runs again: under the same id, which replaces the first, or past its time, once that has fired.
    now = context.chat.updated_at
    if at.utcoffset() is None or at <= now:
        raise ToolFailed(f"at must be in the future, with an offset from UTC; it is {now.isoformat()} now")
    try:
        message = await context.schedule(
            f"You asked to be woken up: {note}", at=at, id=f"wake-{digest(context.key)[:16]}"
        )
    except QueueFull as full:
        raise ToolFailed(str(full)) from full
    return f"You will be woken up at {message.due.isoformat()}."
