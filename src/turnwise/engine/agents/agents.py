"""The agents that an engine runs, and the configurations of their chats."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.answer_format import AnswerFormat
from turnwise.engine.agents.configuration import Configuration, CurrentConfiguration, check_offer, check_tool_choice
from turnwise.engine.agents.models import MissingModel, Models
from turnwise.engine.config.settings import Settings
from turnwise.engine.prompt.hooks import NO_HOOKS, Hooks
from turnwise.engine.tools.sources import ToolSource
from turnwise.engine.tools.toolbox import CLIENT_PREFIX, Toolbox
from turnwise.persistence.shares import Shares
from turnwise.providers.parameters import check_parameters
from turnwise.providers.protocol import Model
from turnwise.providers.usage_and_prices import load_prices, token_prices
from turnwise.states.budgets import CallEstimator
from turnwise.states.calls import ClientTool
from turnwise.states.errors import SettingsError
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.names import DEFAULT_AGENT, ChatState
from turnwise.states.values.digests import canonical

_MOST_CHANGED: Final = 1024
"""Configurations of chats that differ from their agents', cached for the next step."""


class Agents:
    """The agents that an engine runs.

    Raises:
        SettingsError: two have one name, one has no model, or a tool or setting of one is invalid.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        settings: Settings,
        *,
        model: Model | str | Sequence[Model | str] | None = None,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._settings, self._hooks = settings, hooks
        self._models = Models(asked=settings.run_worker)
        self._own: dict[str, CurrentConfiguration] = {}
        self._changed: OrderedDict[tuple[Any, ...], Configuration] = OrderedDict()
        for agent in agents:
            if agent.name in self._own:
                raise SettingsError("agents", f"two agents are named {agent.name!r}; names must be unique")
            models = self._models.listed(agent.model if agent.model is not None else model)
            if not models:
                raise SettingsError(f"agent {agent.name!r}", "needs a model, of its own or the engine's")
            self._own[agent.name] = CurrentConfiguration(agent, Configuration.of(agent, models, settings, hooks))
        self.models: Collection[str] = self._models.names
        """The names of the agents' models; one that was given as a `Model` has none."""
        self._check_subagents()
        self._toolbox = Toolbox({}, dataclasses.replace(settings, active_tools=None))
        self._limits = settings.limits(None)

    def __contains__(self, agent: str) -> bool:
        return agent in self._own

    @property
    def sources(self) -> Collection[ToolSource]:
        return [source for own in self._own.values() for source in own.sources]

    def sources_of(self, agent: str) -> Collection[ToolSource]:
        """Return the sources of an agent's tools; none if it is not one of these."""
        own = self._own.get(agent)
        return () if own is None else own.sources

    @property
    def runs(self) -> Mapping[str, frozenset[str]]:
        """The names of the agents that a worker with these agents runs, each with the names of its tools."""
        return {name: frozenset(own.configuration.toolbox.tools) for name, own in self._own.items()}

    @property
    def shares(self) -> Shares | None:
        """The round of fair claims; `None` if no setting asks for one."""
        settings = self._settings
        fair = settings.caps or any(own.configuration.settings.fair_by for own in self._own.values())
        return Shares(settings.weights, settings.caps) if fair else None

    @property
    def inactive_tools(self) -> Mapping[str, Collection[str]]:
        return {name: own.configuration.toolbox.inactive for name, own in self._own.items()}

    def _find_configuration(self, agent: str) -> Configuration | None:
        own = self._own.get(agent)
        return None if own is None else own.configuration

    def _check_subagents(self) -> None:
        for own in self._own.values():
            for tool in own.configuration.toolbox.tools.values():
                if tool.subagent is not None and tool.subagent not in self._own:
                    names = ", ".join(map(repr, sorted(self._own)))
                    raise SettingsError(
                        f"tool {tool.name!r}",
                        f"gives tasks to agent {tool.subagent!r}, which must be one of this engine's agents: {names}",
                    )

    def asking(self, facts: Facts, profile: Profile | None = None) -> Configuration:
        """Return a chat's configuration, or that of another profile, with the first model that has not failed."""
        return self.configuration(profile or facts.profile).behind(len(facts.turn.fallback_from))

    def configuration(self, profile: Profile) -> Configuration:
        """Return a chat's configuration. If its agent is not one of these, only an interrupt may be settled with it."""
        own = self._find_configuration(profile.agent)
        if own is None:
            return self._foreign(profile.agent)
        key = self._configuration_key(profile)
        if key is None:
            return own
        changed = self._changed.get(key)
        if changed is None:
            changed = self._changed[key] = self._for_chat(own, profile)
            if len(self._changed) > _MOST_CHANGED:
                self._changed.popitem(last=False)
        return changed

    def _configuration_key(self, profile: Profile) -> tuple[Any, ...] | None:
        """Return the key of a chat's own configuration; `None` if it is the agent's."""
        if profile.model is None and profile.parameters is None and profile.active_tools is None:
            return None
        parameters = b"" if profile.parameters is None else canonical(profile.parameters)
        generation = self._own[profile.agent].generation
        return (profile.agent, generation, profile.model, parameters, profile.active_tools)

    def _for_chat(self, own: Configuration, profile: Profile) -> Configuration:
        """Return a chat's own configuration; if it is invalid, with a model that raises the error when it is asked."""
        model = None if profile.model is None else self._models.or_missing(profile.model)
        try:
            return own.for_chat(profile, model)
        except SettingsError as error:  # another version of turnwise took its parameters
            name, problem = profile.model or str(own.model.name), f"{error.field}: {error.problem}"
            return own.for_chat(replace(profile, parameters=None), MissingModel(name, problem, "bad_request"))

    def _foreign(self, agent: str) -> Configuration:
        anyone = next(iter(self._own.values())).configuration
        return replace(
            anyone,
            agent=agent,
            version=None,
            fallbacks=(),
            system=None,
            toolbox=self._toolbox,
            answer=None,
            output_mode=None,
            settings=self._settings,
            limits=self._limits,
            hooks=self._hooks,
        )

    def _find_made(self, own: Configuration, profile: Profile) -> Configuration | None:
        """Return a chat's configuration if it exists already: creating its model may take seconds."""
        key = self._configuration_key(profile)
        return own if key is None else self._changed.get(key)

    def toolbox(self, profile: Profile) -> Toolbox:
        """Return the tools of a chat; none if its agent is not one of these."""
        own = self._find_configuration(profile.agent)
        if own is None:
            return self._toolbox
        made = self._find_made(own, profile)
        return made.toolbox if made is not None else own.with_active(profile.active_tools).toolbox

    def answer(self, agent: str) -> AnswerFormat | None:
        """Return the form of an agent's answers; `None` for text, or if it is not one of these."""
        own = self._find_configuration(agent)
        return None if own is None else own.answer

    def ends_turns(self, agent: str, tool: str) -> bool:
        """Whether a call of that agent's tool ends the turn if it succeeds."""
        own = self._find_configuration(agent)
        declared = None if own is None else own.toolbox.tools.get(tool)
        return declared is not None and declared.stop_after

    def at_hand(self, profile: Profile) -> Configuration:
        """Return a chat's configuration without waiting: with its agent's model if its own does not exist yet."""
        own = self._find_configuration(profile.agent)
        return self._foreign(profile.agent) if own is None else self._find_made(own, profile) or own

    def limits(self, facts: Facts) -> Limits:
        """Return the limits of a chat with the model that is asked; the engine's if its agent is not one of these."""
        return self.at_hand(facts.profile).behind(len(facts.turn.fallback_from)).limits

    def estimator(self, facts: Facts, now: datetime) -> CallEstimator:
        configuration = self.at_hand(facts.profile).behind(len(facts.turn.fallback_from))
        prices = token_prices(configuration.model, now)
        return CallEstimator(
            max_output_tokens=configuration.settings.parameters.get("max_output_tokens"),
            input_price=prices and prices[0],
            output_price=prices and prices[1],
        )

    def can_run(self, facts: Facts) -> bool:
        """Whether these agents have the agent and tools that a chat needs. Any worker settles an interrupt."""
        own = self._find_configuration(facts.agent_needed)
        can_answer = own is not None and own.toolbox.tools.keys() >= {*facts.calls.needs}
        return can_answer or facts.state is ChatState.interrupted

    def chosen(self, name: str | None) -> str:
        """Return the name of the agent of a new chat: the requested one, or the only one, or `default`."""
        names = ", ".join(map(repr, sorted(self._own)))
        if name is None:
            if len(self._own) == 1:
                return next(iter(self._own))
            if DEFAULT_AGENT in self._own:
                return DEFAULT_AGENT
            raise SettingsError("agent", f"must be one of {names}: this engine has several")
        if name not in self._own:
            raise SettingsError("agent", f"must be one of {names}; it was {name!r:.100}")
        return name

    async def check(self, model: str | None, parameters: Mapping[str, Any] | None) -> None:
        """Check the model and the parameters that a chat has instead of its agent's."""
        if model is not None:
            await self._models.check(model)
        check_parameters(parameters or {})

    def check_client_tools(self, agent: str, client_tools: Sequence[ClientTool]) -> None:
        """Refuse client tools with the name of a tool of the chat's new agent."""
        for tool in client_tools:
            if tool.name in self.runs.get(agent, ()):
                raise SettingsError(
                    f"client tool {tool.name!r}",
                    f"needs a name of its own; agent {agent!r} has another tool of this name",
                )

    def check_active(self, agent: str, active: Sequence[str] | None, client_tools: Sequence[ClientTool]) -> None:
        if active is None:
            return
        tools = self.runs.get(agent, ())
        names = [*sorted(tools), *sorted(CLIENT_PREFIX + tool.name for tool in client_tools)]
        for name in active:
            if name not in names:
                there = ", ".join(names) or "none"
                raise SettingsError(
                    "active_tools", f"agent {agent!r} and this chat's client have no tool {name!r:.100}; tools: {there}"
                )

    def check_tool_choice(
        self, agent: str, parameters: Mapping[str, Any] | None, client_tools: Sequence[ClientTool]
    ) -> None:
        tools = self.runs.get(agent)
        if tools is not None:
            check_tool_choice(f"agent {agent!r}", parameters or {}, tools, client_tools)

    def check_offer(
        self,
        agent: str,
        model: str | None,
        active: Sequence[str] | None,
        parameters: Mapping[str, Any] | None,
    ) -> None:
        """Check that the chat's model can be offered its provider-defined tools and web search.

        A model that does not exist in this process yet is checked by the worker before it is asked.
        """
        own = self._find_configuration(agent)
        if own is None or (model is None and active is None and not parameters):
            return
        every = {**own.settings.parameters, **(parameters or {})}
        for chosen_model in own.models if model is None else (self._models.if_made(model),):
            if chosen_model is not None:
                check_offer("this chat", chosen_model, own.with_active(active).toolbox, every)

    def load_prices(self) -> None:
        for own in self._own.values():
            for model in own.configuration.models:
                load_prices(model)

    def connected(self) -> AbstractAsyncContextManager[None]:
        """Hold the connections of the models that were made from names; on leaving, close them."""
        return self._models.connected()
