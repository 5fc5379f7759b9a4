"""The configuration of one chat: its agent's, with the chat's own choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from turnwise.engine.agents.agent import Agent, SystemPrompt
from turnwise.engine.agents.answer_format import AnswerFormat, OutputMode, format_of
from turnwise.engine.agents.delegate import BACKGROUND_TOOLS
from turnwise.engine.agents.models import MissingModel
from turnwise.engine.config.settings import Settings
from turnwise.engine.prompt.hooks import Hooks
from turnwise.engine.tools.declare import Tool
from turnwise.engine.tools.sources import Offer, sources_in, tools_by_name
from turnwise.engine.tools.toolbox import CLIENT_PREFIX, Toolbox
from turnwise.foreign import guarded
from turnwise.providers.parameters import FREE, forced_tool
from turnwise.providers.protocol import Model, refusal_of, takes_answer_schema
from turnwise.providers.usage_and_prices import context_window
from turnwise.states.calls import ClientTool
from turnwise.states.errors import SettingsError
from turnwise.states.facts import Limits, Profile


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """How a chat is run."""

    agent: str
    version: str | None
    model: Model
    """The one that is asked."""
    fallbacks: tuple[tuple[Model, Limits], ...] = ()
    """The agent's other models, in the order in which they are asked, each with the limits of its context window."""
    system: SystemPrompt | None
    """The agent's; a chat may have a system prompt of its own."""
    toolbox: Toolbox
    answer: AnswerFormat | None
    """The form of final answers; `None` for text."""
    output_mode: OutputMode | None
    """The agent's own choice; `None` leaves it to the model."""
    settings: Settings
    limits: Limits
    hooks: Hooks

    @classmethod
    def of(cls, agent: Agent, models: Sequence[Model], settings: Settings, hooks: Hooks) -> Configuration:
        if agent.settings is not None:
            settings = agent.settings.over(settings)
        answer = None if agent.output is None else format_of(agent.name, agent.output)
        toolbox = _toolbox(agent, answer, settings)
        for model in models:
            check_offer(f"agent {agent.name!r}", model, toolbox, settings.parameters)
            if agent.output_mode == "native" and not takes_answer_schema(model, beside_tools=bool(agent.tools)):
                beside = " beside tools" if takes_answer_schema(model, beside_tools=False) else ""
                raise SettingsError(
                    f"agent {agent.name!r}",
                    f"model {model.name!r} keeps no answers to a schema{beside}; choose output_mode='tool', or none",
                )
        if not toolbox.may_change:
            check_tool_choice(f"agent {agent.name!r}", settings.parameters, toolbox.tools)
        (model, limits), *fallbacks = [(one, _limits(settings, one, answer, len(models) - 1)) for one in models]
        return cls(
            agent=agent.name,
            version=agent.version,
            model=model,
            fallbacks=tuple(fallbacks),
            system=agent.system,
            toolbox=toolbox,
            answer=answer,
            output_mode=agent.output_mode,
            settings=settings,
            limits=limits,
            hooks=Hooks(tuple(agent.reminders) or hooks.reminders, agent.prepare_messages or hooks.prepare_messages),
        )

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.model, *(model for model, _ in self.fallbacks))

    def behind(self, failed: int) -> Configuration:
        """Return the configuration with the model that is asked after `failed` models; at most the last one."""
        if not failed or not self.fallbacks:
            return self
        place = min(failed, len(self.fallbacks))
        model, limits = self.fallbacks[place - 1]
        return replace(self, model=model, fallbacks=self.fallbacks[place:], limits=limits)

    def toolbox_of(self, agent: Agent) -> Toolbox:
        return _toolbox(agent, self.answer, self.settings)

    def answers_natively(self, client_tools: Sequence[ClientTool]) -> bool:
        """Whether the model itself keeps its answers to the schema, in a chat with these tools of its client."""
        if self.answer is None or self.output_mode == "tool":
            return False
        searches = bool(self.settings.parameters.get("web_search"))
        has_tools = searches or bool(self.toolbox.list_offered(client_tools, with_answer=False))
        may_answer = self.settings.parameters.get("tool_choice") in FREE
        is_wanted = self.output_mode == "native" or self.answer.is_closed
        return is_wanted and may_answer and takes_answer_schema(self.model, beside_tools=has_tools)

    def for_chat(self, profile: Profile, model: Model | None) -> Configuration:
        """Return the configuration of a chat that has chosen its own model, parameters or tools."""
        settings = self.settings
        if profile.parameters is not None:
            settings = dataclasses.replace(settings, parameters={**settings.parameters, **profile.parameters})
        changed = replace(
            self,
            model=self.model if model is None else model,
            fallbacks=self.fallbacks if model is None else (),
            settings=settings,
            toolbox=replace(self.toolbox, settings=settings),
            limits=self.limits if model is None else _limits(settings, model, self.answer),
        )
        return changed.with_active(profile.active_tools)

    def with_active(self, active: Sequence[str] | None) -> Configuration:
        """Return it with those of the tools active that exist: another version's agent may have had more."""
        if active is None:
            return self
        tools: Mapping[str, Tool] = self.toolbox.tools
        there = tuple(name for name in active if name in tools or name.startswith(CLIENT_PREFIX))
        settings = dataclasses.replace(self.settings, active_tools=there)
        return replace(self, settings=settings, toolbox=replace(self.toolbox, settings=settings))


def check_offer(whose: str, model: Model, toolbox: Toolbox, parameters: Mapping[str, Any]) -> None:
    """Check that a model can be offered provider-defined tools of a toolbox, and web search if wanted.

    A model that is missing here is not checked; the process that asks it checks again.
    """
    if isinstance(model, MissingModel):
        return
    with guarded():
        problem = refusal_of(model, toolbox.list_offered(()), parameters)
    if problem is not None:
        raise SettingsError(
            whose, f"{problem}; give it a model that can, or leave that out (a tool for instance by active_tools)"
        )


def check_tool_choice(
    whose: str, parameters: Mapping[str, Any], tools: Iterable[str], client_tools: Sequence[ClientTool] = ()
) -> None:
    """Check that a tool which the parameters force exists."""
    forced = forced_tool(parameters)
    declared = [tool.name for tool in client_tools]
    if forced is None or forced in (*tools, *declared) or forced.startswith(CLIENT_PREFIX):
        return
    there = ", ".join(sorted([*tools, *declared])) or "none"
    raise SettingsError(
        "parameters['tool_choice']",
        f"must be 'auto', 'none', 'required' or the name of a tool; {whose} has no tool {forced!r:.100}; tools: "
        f"{there}; a client's tool NAME may be called {CLIENT_PREFIX}NAME here",
    )


def _limits(settings: Settings, model: Model, answer: AnswerFormat | None, fallbacks: int = 0) -> Limits:
    """Return an agent's limits. An answer in a form must be the last message, so nothing follows it."""
    asked = f"{model.provider}:{model.name}"
    limits = replace(settings.limits(context_window(model)), fallbacks=fallbacks, asked_model=asked)
    if settings.max_running_per_model is not None:
        limits = replace(limits, capped_model=asked)
    return limits if answer is None else replace(limits, after_final_step="rest")


def _toolbox(agent: Agent, answer: AnswerFormat | None, settings: Settings) -> Toolbox:
    declared = [*agent.tools, *([] if answer is None else [answer.tool])]
    if any(isinstance(one, Tool) and one.subagent_action == "start" for one in declared):
        declared += BACKGROUND_TOOLS
    sources = sources_in(declared)
    retired = frozenset(tool.name for source in sources for tool in source.offer().retired)
    tools = tools_by_name(declared)
    return Toolbox(
        tools,
        settings,
        None if answer is None else answer.tool,
        retired=frozenset(name for name in retired if tools[name].source is not None),
        may_change=bool(sources),
    )


class CurrentConfiguration:
    """The present configuration of an agent's chats."""

    def __init__(self, agent: Agent, configuration: Configuration) -> None:
        self.sources = sources_in(agent.tools)
        self.generation = 0
        """How many times the agent's tools have changed."""
        self._agent = agent
        self._configuration = configuration
        self._offers = self._current_offers()

    @property
    def configuration(self) -> Configuration:
        if not self.sources:  # the common case, asked many times a turn
            return self._configuration
        offers = self._current_offers()
        if any(new is not old for new, old in zip(offers, self._offers, strict=True)):
            own = self._configuration
            self._configuration = replace(own, toolbox=own.toolbox_of(self._agent))
            self._offers = offers
            self.generation += 1
        return self._configuration

    def _current_offers(self) -> tuple[Offer, ...]:
        return tuple(source.offer() for source in self.sources)
