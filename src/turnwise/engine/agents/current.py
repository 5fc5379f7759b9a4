"""The current configuration of an agent: it changes when a source of its tools does."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.tools.sources import Offer, sources_in


class CurrentConfiguration:
    """How the chats of an agent are run now.

    Args:
        agent: the agent.
        configuration: the configuration with the tools that were known when the engine was made.
    """

    def __init__(self, agent: Agent, configuration: Configuration) -> None:
        self.sources = sources_in(agent.tools)
        self.generation = 0
        """How many times the agent's tools have changed."""
        self._agent = agent
        self._configuration = configuration
        self._offers = self._current_offers()

    @property
    def configuration(self) -> Configuration:
        """The configuration with the tools that the sources offer now."""
        offers = self._current_offers()
        if any(new is not old for new, old in zip(offers, self._offers, strict=True)):
            own = self._configuration
            self._configuration = replace(own, toolbox=own.toolbox_of(self._agent))
            self._offers = offers
            self.generation += 1
        return self._configuration

    def _current_offers(self) -> tuple[Offer, ...]:
        return tuple(source.offer() for source in self.sources)
