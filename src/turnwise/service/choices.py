"""What clients may choose of the way in which a chat is run: models by name, parameters of their calls, and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from turnwise.engine.config.results import Chat
from turnwise.engine.engine import Engine
from turnwise.states.errors import SettingsError
from turnwise.states.names import DEFAULT_AGENT


class Choices(msgspec.Struct, frozen=True):
    """What the clients of a service may choose, operators among them.

    The name of a model may hold an address, and options of its provider may hold headers and a whole other request: a
    free choice of them would send a stranger the provider's key and the agent's prompt. A tool that an agent's settings
    leave out stays unavailable to its chats, unless the application gives it to one.
    """

    engine: Engine
    models: frozenset[str]

    @classmethod
    def of(cls, engine: Engine, declared: Sequence[str]) -> Self:
        """Return the choice of the agents' own models, but for those whose names hold an address, and of others."""
        return cls(engine, frozenset(declared).union(name for name in engine.models if "://" not in name))

    def check(self, model: str | None, parameters: Mapping[str, Any] | None) -> None:
        """Check what a client chooses for a chat instead of its agent's own.

        Raises:
            SettingsError: the service does not declare the model, or options of its provider are among the parameters.
        """
        if model is not None and model not in self.models:
            names = ", ".join(map(repr, sorted(self.models)))
            allowed = f"must be one of {names}, or left out" if names else "must be left out: there is none to choose"
            raise SettingsError("model", f"{allowed}; it was {model!r:.100}")
        if parameters is not None and "provider_options" in parameters:
            raise SettingsError(
                "parameters['provider_options']", "must be left out: only the service's own agents have options there"
            )

    def check_tools(self, agent: str | None, active: Sequence[str] | None) -> None:
        """Check the tools that a client chooses for a chat instead of those that its agent has active.

        Raises:
            SettingsError: the settings of the agent, or of the one that a new chat gets, leave one of them out.
        """
        if agent is None:  # the engine's only one, or else the one of that name
            only, *others = self.engine.agents
            agent = DEFAULT_AGENT if others else only
        left_out = self.engine.inactive_tools.get(agent, ())
        for name in active or ():
            if name in left_out:
                raise SettingsError(
                    "active_tools", f"must leave out {name!r:.100}, which the agent's own settings leave out"
                )

    def check_chat(self, chat: Chat) -> None:
        """Check what a chat that is brought along says instead of its agent.

        Raises:
            SettingsError: no client could have chosen it here.
        """
        self.check(chat.model, chat.parameters)
        self.check_tools(chat.agent, chat.active_tools)
