"""Configurations: how each chat is run, by its agent and by what the chat itself says instead."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from turnwise.engine.agents.agent import OF_THE_ENGINE, Agent, SystemPrompt
from turnwise.engine.agents.answer_format import AnswerFormat, OutputMode, format_of
from turnwise.engine.agents.delegate import BACKGROUND_TOOLS
from turnwise.engine.agents.missing_model import MissingModel
from turnwise.engine.parameters import check_parameters
from turnwise.engine.prompt.hooks import NO_HOOKS, Hooks
from turnwise.engine.settings import Settings
from turnwise.engine.tasks import off_the_loop
from turnwise.engine.tools.declare import Tool, tools_by_name
from turnwise.engine.tools.toolbox import CLIENT_PREFIX, Toolbox
from turnwise.engine.user_code import guarded
from turnwise.providers.answer_schemas import takes_answer_schema
from turnwise.providers.from_name import model_named
from turnwise.providers.prices import load_prices
from turnwise.providers.protocol import Model, refusal_of
from turnwise.providers.windows import window_of
from turnwise.states.calls import ClientTool
from turnwise.states.digests import canonical
from turnwise.states.errors import SettingsError
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.names import DEFAULT_AGENT, ChatState


class Unchanged(Enum):
    """Stands for what a call leaves as it is, where `None` says something."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
_MOST_CHANGED: Final = 1024
"""Configurations of chats that differ from their agents', kept for the next step."""


def changes_of(**fields: Any) -> dict[str, Any]:
    """Return the fields that a call changes: all that are not `UNCHANGED`."""
    return {name: value for name, value in fields.items() if value is not UNCHANGED}


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """How a chat is run."""

    agent: str
    version: str | None
    model: Model
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

    def answers_natively(self, client_tools: Sequence[ClientTool]) -> bool:
        """Whether the model itself keeps its answers to the schema, in a chat with these tools of its client."""
        if self.answer is None or self.output_mode == "tool":
            return False
        has_tools = bool(self.toolbox.offered(client_tools, with_answer=False))
        may_answer = self.settings.parameters.get("tool_choice") in (None, "auto", "none")
        is_wanted = self.output_mode == "native" or self.answer.is_closed
        return is_wanted and may_answer and takes_answer_schema(self.model, beside_tools=has_tools)


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
        model: Model | str | None = None,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._settings, self._hooks = settings, hooks
        self._models: dict[str, Model] = {}
        """Models that were made from names: the engine closes them."""
        self._own: dict[str, Configuration] = {}
        self._changed: OrderedDict[tuple[Any, ...], Configuration] = OrderedDict()
        for agent in agents:
            if agent.name in self._own:
                raise SettingsError("agents", f"two agents are named {agent.name!r}; names must be unique")
            self._own[agent.name] = self._configuration(agent, model)
        self.models: Collection[str] = frozenset(self._models)
        """The names of the agents' models; one that was given as a `Model` has none."""
        self._check_helpers()
        self._toolbox = Toolbox({}, dataclasses.replace(settings, active_tools=None))
        self._limits = settings.limits(None)
        self.runs: Mapping[str, Collection[str]] = {
            name: frozenset(own.toolbox.tools) for name, own in self._own.items()
        }
        """What a worker with these agents runs: their names, each with the names of its tools."""

    def _check_helpers(self) -> None:
        for own in self._own.values():
            for tool in own.toolbox.tools.values():
                if tool.helper is not None and tool.helper not in self._own:
                    names = ", ".join(map(repr, sorted(self._own)))
                    raise SettingsError(
                        f"tool {tool.name!r}",
                        f"gives tasks to agent {tool.helper!r}, which must be one of this engine's agents: {names}",
                    )

    def configuration(self, profile: Profile) -> Configuration:
        """Return how a chat is run. If its agent is not one of these, only an interrupt may be settled with it."""
        own = self._own.get(profile.agent)
        if own is None:
            return self._foreign(profile.agent)
        key = _key_of(profile)
        if key is None:
            return own
        changed = self._changed.get(key)
        if changed is None:
            changed = self._changed[key] = self._as_changed(own, profile)
            if len(self._changed) > _MOST_CHANGED:
                self._changed.popitem(last=False)
        return changed

    def _foreign(self, agent: str) -> Configuration:
        anyone = next(iter(self._own.values()))
        return msgspec.structs.replace(
            anyone,
            agent=agent,
            version=None,
            system=None,
            toolbox=self._toolbox,
            answer=None,
            output_mode=None,
            settings=self._settings,
            limits=self._limits,
            hooks=self._hooks,
        )

    def _if_made(self, own: Configuration, profile: Profile) -> Configuration | None:
        """Return a chat's configuration if it is made already: its model may take seconds to make."""
        key = _key_of(profile)
        return own if key is None else self._changed.get(key)

    def toolbox(self, profile: Profile) -> Toolbox:
        """Return the tools of a chat; none if its agent is not one of these."""
        own = self._own.get(profile.agent)
        if own is None:
            return self._toolbox
        made = self._if_made(own, profile)
        return made.toolbox if made is not None else _as_active(own, profile.active_tools).toolbox

    def answer(self, agent: str) -> AnswerFormat | None:
        """Return the form in which an agent answers; `None` for text, or if it is not one of these."""
        own = self._own.get(agent)
        return None if own is None else own.answer

    def ends_turns(self, agent: str, tool: str) -> bool:
        """Return whether a call of that agent's tool ends the turn if it succeeds."""
        own = self._own.get(agent)
        declared = None if own is None else own.toolbox.tools.get(tool)
        return declared is not None and declared.stop_after

    def at_hand(self, profile: Profile) -> Configuration:
        """Return how a chat is run, as far as that takes no time: with its agent's model if its own is not made yet."""
        own = self._own.get(profile.agent)
        return self._foreign(profile.agent) if own is None else self._if_made(own, profile) or own

    def limits(self, profile: Profile) -> Limits:
        """Return the limits of a chat; the engine's if its agent is not one of these."""
        return self.at_hand(profile).limits

    def can_run(self, facts: Facts) -> bool:
        """Return whether these agents can run a chat: the one it needs is among them, and has the tools it needs.

        What an interrupt has left is settled by any worker.
        """
        tools = self.runs.get(facts.agent_needed)
        return facts.state is ChatState.interrupted or (
            tools is not None and all(name in tools for name in facts.calls.needs)
        )

    def chosen(self, name: str | None) -> str:
        """Return the name of the agent that a new chat gets: the one asked for, or the only one, or `default`.

        Raises:
            SettingsError: there is none of that name, or several and no name.
        """
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
        """Check the model and the parameters that a chat has instead of its agent's.

        Raises:
            SettingsError: there is no such model or parameter, or a parameter is not what it has to be.
        """
        if model is not None:
            # A provider's library takes seconds to import, and its prices half a second to load.
            await off_the_loop(lambda: load_prices(self._model_named(model)))
        check_parameters(parameters or {})

    def check_active(self, agent: str, active: Sequence[str] | None, client_tools: Sequence[ClientTool]) -> None:
        """Check the tools that a chat has active instead of its agent's.

        Raises:
            SettingsError: there is no such tool.
        """
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

    def check_definitions(self, agent: str, model: str | None, active: Sequence[str] | None) -> None:
        """Check that what a chat asks can be offered the providers' own tools among those that it has active.

        A model that this process has not made yet is not made for it: a worker looks again before it asks.

        Raises:
            SettingsError: the model cannot be offered one of them.
        """
        own = self._own.get(agent)
        if own is None:
            return
        chosen_model = own.model if model is None else self._models.get(model)
        if chosen_model is not None:
            _check_definitions("this chat", chosen_model, _as_active(own, active).toolbox)

    def load_prices(self) -> None:
        """Load the prices of the agents' models: that takes a moment, once in a process."""
        for own in self._own.values():
            load_prices(own.model)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Hold the connections of the models that were made from names; on leaving, close them."""
        async with AsyncExitStack() as opened:
            for model in self._connections():
                await opened.enter_async_context(model)
            at_first = self._connections()
            try:
                yield
            finally:
                for model in self._connections():  # those that chats have named since: whoever enters may close
                    if model not in at_first:
                        await opened.enter_async_context(model)

    def _connections(self) -> list[AbstractAsyncContextManager[object]]:
        return [model for model in self._models.values() if isinstance(model, AbstractAsyncContextManager)]

    def _configuration(self, agent: Agent, model: Model | str | None) -> Configuration:
        model_or_name = agent.model if agent.model is not None else model
        if model_or_name is None:
            raise SettingsError(f"agent {agent.name!r}", "needs a model, of its own or the engine's")
        settings = self._settings
        if agent.settings is not None:
            shared = {name: getattr(settings, name) for name in OF_THE_ENGINE}
            settings = dataclasses.replace(agent.settings, **shared)
        chosen_model = self._model_named(model_or_name) if isinstance(model_or_name, str) else model_or_name
        answer = None if agent.output is None else format_of(agent.name, agent.output)
        toolbox = _toolbox(agent, answer, settings)
        _check_definitions(f"agent {agent.name!r}", chosen_model, toolbox)
        if agent.output_mode == "native" and not takes_answer_schema(chosen_model, beside_tools=bool(agent.tools)):
            beside = " beside tools" if takes_answer_schema(chosen_model, beside_tools=False) else ""
            raise SettingsError(
                f"agent {agent.name!r}",
                f"model {chosen_model.name!r} keeps no answers to a schema{beside}; choose output_mode='tool', or none",
            )
        return Configuration(
            agent=agent.name,
            version=agent.version,
            model=chosen_model,
            system=agent.system,
            toolbox=toolbox,
            answer=answer,
            output_mode=agent.output_mode,
            settings=settings,
            limits=_limits(settings, chosen_model, answer),
            hooks=Hooks(
                tuple(agent.reminders) or self._hooks.reminders, agent.prepare_messages or self._hooks.prepare_messages
            ),
        )

    def _as_changed(self, own: Configuration, profile: Profile) -> Configuration:
        settings, model = own.settings, own.model
        if profile.parameters is not None:
            settings = dataclasses.replace(settings, parameters={**settings.parameters, **profile.parameters})
        if profile.model is not None:
            model = self._model_here(profile.model)
        changed = msgspec.structs.replace(
            own,
            model=model,
            settings=settings,
            toolbox=msgspec.structs.replace(own.toolbox, settings=settings),
            limits=own.limits if profile.model is None else _limits(settings, model, own.answer),
        )
        return _as_active(changed, profile.active_tools)

    def _model_here(self, name: str) -> Model:
        """Return the model of that name; if it cannot be made in this process, one that says so when it is asked."""
        try:
            return self._model_named(name)
        except SettingsError as error:
            return MissingModel(name, error.problem)

    def _model_named(self, name: str) -> Model:
        if name not in self._models:
            self._models[name] = model_named(name)
        return self._models[name]


def _check_definitions(whose: str, model: Model, toolbox: Toolbox) -> None:
    with guarded():
        problem = refusal_of(model, toolbox.offered(()))
    if problem is not None:
        raise SettingsError(
            whose, f"{problem}; give it a model of that provider, or leave the tool out, for instance by active_tools"
        )


def _limits(settings: Settings, model: Model, answer: AnswerFormat | None) -> Limits:
    """Return an agent's limits. After an answer in a form nothing is said: it would not have the form."""
    limits = settings.limits(window_of(model))
    return limits if answer is None else replace(limits, after_final_step="rest")


def _key_of(profile: Profile) -> tuple[Any, ...] | None:
    """Return the key of a chat's own configuration: what it has chosen itself; `None` if that is nothing."""
    if profile.model is None and profile.parameters is None and profile.active_tools is None:
        return None
    parameters = b"" if profile.parameters is None else canonical(profile.parameters)
    return (profile.agent, profile.model, parameters, profile.active_tools)


def _as_active(configuration: Configuration, active: Sequence[str] | None) -> Configuration:
    """Return the configuration with those tools active that there are: another version's agent may have had more."""
    if active is None:
        return configuration
    tools: Mapping[str, Tool] = configuration.toolbox.tools
    there = tuple(name for name in active if name in tools or name.startswith(CLIENT_PREFIX))
    settings = dataclasses.replace(configuration.settings, active_tools=there)
    toolbox = msgspec.structs.replace(configuration.toolbox, settings=settings)
    return msgspec.structs.replace(configuration, settings=settings, toolbox=toolbox)


def _toolbox(agent: Agent, answer: AnswerFormat | None, settings: Settings) -> Toolbox:
    tools = tools_by_name([*agent.tools, *([] if answer is None else [answer.tool])])
    if any(one.helper_action == "start" for one in tools.values()):
        tools = tools_by_name([*tools.values(), *BACKGROUND_TOOLS])
    return Toolbox(tools, settings, None if answer is None else answer.tool)
