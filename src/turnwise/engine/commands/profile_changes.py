"""Changes of a chat's profile: its labels, its agent, model, parameters, tools and system prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import msgspec

from turnwise.engine.agents.agents import Agents
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.states.calls import ClientTool
from turnwise.states.errors import SettingsError
from turnwise.states.triggers import Archived, Configured, MarkedRead, MetadataChanged, Renamed, Unarchived
from turnwise.states.values.digests import differ

_LABELS: Final = ("title", "metadata", "archived")
_CONFIGURABLE: Final = ("agent", "model", "parameters", "active_tools", "system")
_CLIENT_TOOLS: Final = "client_tools"
"""The client's own, which stay when the agent changes."""


class Labelling(msgspec.Struct, frozen=True):
    """Changes a chat's labels, and whether it is archived. Equal values change nothing."""

    labels: Mapping[str, Any]

    @classmethod
    def of(cls, labels: Mapping[str, Any]) -> Self:
        if not labels:
            raise SettingsError("update_chat", f"needs one of {', '.join(_LABELS)} to change")
        return cls(labels)

    def __call__(self, unit: UnitOfWork) -> None:
        labels, facts = self.labels, unit.facts
        if labels.get("archived") is False and facts.archived:
            unit.fire(Unarchived())
        if "title" in labels:
            title = labels["title"]
            is_final = title is not None or facts.titled  # or a title may be generated
            if title != facts.profile.title or not is_final:
                unit.fire(Renamed(title=title))
        if "metadata" in labels and differ(labels["metadata"], unit.facts.profile.metadata):
            unit.fire(MetadataChanged(metadata=dict(labels["metadata"])))
        if labels.get("archived") and not unit.facts.archived:
            unit.fire(Archived())


class MarkingRead(msgspec.Struct, frozen=True):
    """Marks the end of the last turn as read. If the chat is read, or that turn comes after `turn`, nothing changes."""

    turn: int | None

    def __call__(self, unit: UnitOfWork) -> None:
        facts = unit.facts
        if facts.unread and (self.turn is None or facts.last_ended_turn <= self.turn):
            unit.fire(MarkedRead())


class Configuring(msgspec.Struct, frozen=True):
    """Changes the agent of a chat, or its options. Another agent resets the options that are not given."""

    agents: Agents
    choices: Mapping[str, Any]

    @classmethod
    async def of(cls, agents: Agents, choices: Mapping[str, Any]) -> Self:
        if not choices:
            raise SettingsError("configure", f"needs one of {', '.join((*_CONFIGURABLE, _CLIENT_TOOLS))} to change")
        if "agent" in choices:
            agents.chosen(choices["agent"])
        await agents.check(choices.get("model"), choices.get("parameters"))
        return cls(agents, choices)

    def __call__(self, unit: UnitOfWork) -> None:
        agents, choices, profile = self.agents, self.choices, unit.facts.profile
        client_tools: tuple[ClientTool, ...] = choices.get(_CLIENT_TOOLS, profile.client_tools)
        before = {name: getattr(profile, name) for name in _CONFIGURABLE}
        stays = before if choices.get("agent", profile.agent) == profile.agent else dict.fromkeys(_CONFIGURABLE)
        after = {**stays, **{name: choice for name, choice in choices.items() if name != _CLIENT_TOOLS}}
        if after["agent"] != profile.agent or _CLIENT_TOOLS in choices:
            agents.check_client_tools(after["agent"], client_tools)
        agents.check_active(after["agent"], choices.get("active_tools"), client_tools)
        agents.check_tool_choice(after["agent"], choices.get("parameters"), client_tools)
        if choices.keys() & {"model", "active_tools", "parameters"}:
            agents.check_offer(after["agent"], after["model"], after["active_tools"], after["parameters"])
        if differ(after, before) or client_tools != profile.client_tools:
            unit.fire(Configured(**after, client_tools=client_tools))
