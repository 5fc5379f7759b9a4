"""Agents: declared, named configurations that chats, workers and the audit log refer to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic

from pydantic import SkipValidation

from turnwise.engine.agents.answer_format import OutputMode
from turnwise.engine.config.results import Chat
from turnwise.engine.config.settings import Settings
from turnwise.engine.prompt.hooks import PrepareMessages, Reminder
from turnwise.engine.tools.declare import Tool, ToolFunction
from turnwise.engine.tools.sources import ToolSource
from turnwise.providers.protocol import Model
from turnwise.states.errors import SettingsError
from turnwise.states.values.checked import configuration
from turnwise.states.values.limits import Name

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", default=Any)
    Output = TypeVar("Output", default=Any)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")
    Output = TypeVar("Output")

SystemPrompt = str | Callable[[Chat], str | Awaitable[str]]
"""A system prompt, or a function of the chat that makes one; it is asked once per turn."""


@configuration(kw_only=False)
class Agent(Generic[Deps, Output]):
    """A model, a system prompt, tools and settings, under a name that chats refer to.

    Raises:
        SettingsError: the name is empty or too long, or a setting belongs to the engine.
    """

    name: Name
    model: Model | str | Sequence[Model | str] | None = None
    """A `Model`, or the name of one; by default the engine's. Of several the first is asked, and each of the others
    once those before it have failed in a turn, by an error of `RetryPolicy.fallback_on`."""
    system: SystemPrompt | None = None
    """The system prompt of chats that have none of their own."""
    tools: Sequence[Tool | ToolFunction | ToolSource] = ()
    """Tools, functions that become tools with the defaults, and sources of tools, such as `MCPTools`."""
    output: Annotated[type[Output] | Mapping[str, Any] | None, SkipValidation] = None
    """The form of final answers: a type that pydantic can check, or a JSON schema. `TurnResult.output` is the value."""
    settings: Settings | None = None
    """Fields that are left out take the engine's values. Those that `Settings.scope` calls the engine's are given
    to the engine alone."""
    version: Name | None = None
    """Recorded with every answer."""
    reminders: Sequence[Reminder] = ()
    """Producers of system messages for single requests; by default the engine's."""
    prepare_messages: PrepareMessages | None = None
    """Replaces the messages of single requests; by default the engine's."""
    output_mode: OutputMode | None = None
    """How the model gives answers in that form: `native` keeps its text to the schema, `tool` has it call a tool.

    By default `native` where the model can do that, beside the tools that it is offered."""

    def __post_init__(self) -> None:
        if self.output_mode is not None and self.output is None:
            raise SettingsError(
                f"agent {self.name!r}", f"output_mode={self.output_mode!r} needs output=..., the form of its answers"
            )
        for name in () if self.settings is None else self.settings.misplaced:
            raise SettingsError(
                f"agent {self.name!r}", f"settings.{name} belongs to the engine; give it in Engine(settings=...)"
            )
