"""Who acts in a world: the model, the agents and their tools, simulated ones or those of the service under test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import anyio.lowlevel
import msgspec

from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.deps import check_deps
from turnwise.engine.config.settings import CompactionPolicy, RetryPolicy, Settings
from turnwise.engine.isolation.clock import sleep
from turnwise.engine.tools.declare import Tool, ToolFunction
from turnwise.engine.tools.signatures import filled_in
from turnwise.engine.tools.sources import ToolSource, tools_by_name
from turnwise.foreign import described
from turnwise.providers.protocol import Model
from turnwise.states.calls import ClientTool
from turnwise.states.errors import InvalidArgument
from turnwise.states.names import DEFAULT_AGENT
from turnwise.states.values.plain import shown
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation import actors
from turnwise.testing.simulation.actors import simulated_tools
from turnwise.testing.simulation.faults import EVERY_TURN, SOME_TURNS, Faults
from turnwise.testing.simulation.schedules import LIMIT

_CHANCE_OF_DELAY: Final = 0.5
_DELAYS_S: Final = (1.0, 20.0)

Toolmaker = Callable[[Random, ManualClock, actors.Outside, Faults], Sequence[Tool | ToolFunction]]
Agentmaker = Callable[[Random, ManualClock, actors.Outside, Faults], Sequence[Agent]]


class WorldParts(msgspec.Struct, frozen=True):
    """What a world shares with its models, tools and agents."""

    random: Random
    clock: ManualClock
    outside: actors.Outside
    faults: Faults


class ServiceParts(msgspec.Struct, frozen=True):
    """What the service gave a world; `None` for what it simulates."""

    tools: Toolmaker | Sequence[Tool | ToolFunction] | None = None
    agents: Agentmaker | Sequence[Agent] | None = None
    deps: object = None
    model: Model | None = None


class Cast(msgspec.Struct, frozen=True):
    """Who acts in a world."""

    model: Model | Sequence[Model]
    tools: tuple[Tool, ...]
    """Those of the agent `default`."""
    agents: tuple[Agent, ...]
    names: tuple[str, ...]
    """The agents of which a chat may be given to one."""
    client_tools: tuple[ClientTool, ...]
    deps: object
    is_own: bool
    """Whether tools or agents are the service's own."""
    simulates_model: bool

    def agent_of_new_chat(self, random: Random) -> str | None:
        """Return an agent for a new chat; `None` for the one that the engine takes."""
        return random.choice(self.names) if self.is_own else None

    def components(self, settings: Settings) -> list[str]:
        """Return where code of the service runs in this world."""
        missing = {
            "model": not self.simulates_model,
            "summary": not self.simulates_model,
            "tool": not self.tools,
            "reconcile": all(tool.reconcile is None for tool in self.tools),
            "strategy": settings.compaction.strategy is None,
        }
        return [component for component in EVERY_TURN + SOME_TURNS if not missing.get(component)]

    @property
    def every_tool(self) -> dict[str, Tool]:
        """All tools that a process runs, by name."""
        return {tool.name: tool for agent in self.agents for tool in _tools(agent.tools)} | {
            tool.name: tool for tool in self.tools
        }


def cast_of(service: ServiceParts, stage: WorldParts) -> Cast:
    """Return who acts.

    Raises:
        InvalidArgument: an argument is not what it may be.
        SettingsError: a tool or agent is invalid.
    """
    random, clock, outside, faults = stage.random, stage.clock, stage.outside, stage.faults
    is_own = service.tools is not None or service.agents is not None
    maker = service.tools if is_own else simulated_tools
    made = maker(random, clock, outside, faults) if callable(maker) else () if maker is None else maker
    declared = _tools(_sequence("tools", made))
    tools = tuple(_slow(tool, stage) if is_own else tool for tool in declared)
    simulated = actors.SimulatedModel(random, clock, outside, faults, of_service=is_own)
    second = actors.SimulatedModel(random, clock, outside, faults, of_service=is_own, provider="simulated-too")
    check_deps(service.deps)
    agents = _own_agents(service, stage) if is_own else (actors.simulated_clerk(random, clock, outside, faults),)
    has_default = bool(tools) or not agents or service.agents is None
    names = tuple(dict.fromkeys([*((DEFAULT_AGENT,) if has_default else ()), *(agent.name for agent in agents)]))
    cast = Cast(
        model=(simulated, second) if service.model is None else service.model,
        tools=tools,
        agents=agents,
        names=names,
        client_tools=actors.CLIENT_TOOLS,
        deps=service.deps,
        is_own=is_own,
        simulates_model=service.model is None,
    )
    if not is_own:
        return cast
    offered = tuple(tool for tool in actors.CLIENT_TOOLS if tool.name not in cast.every_tool)
    return msgspec.structs.replace(cast, client_tools=offered)


def _own_agents(service: ServiceParts, stage: WorldParts) -> tuple[Agent, ...]:
    """Return the service's agents; each without a model of its own has the world's."""
    random, clock, outside, faults = stage.random, stage.clock, stage.outside, stage.faults
    maker = service.agents
    made = maker(random, clock, outside, faults) if callable(maker) else () if maker is None else maker
    agents: list[Agent] = []
    for agent in _sequence("agents", made):
        if not isinstance(agent, Agent):
            raise InvalidArgument("agents", f"must hold agents; one was {shown(agent)}")
        if agent.model is None and service.model is None:
            own = actors.SimulatedModel(random, clock, outside, faults, agent=agent.name, of_service=True)
            agent = dataclasses.replace(agent, model=own)  # noqa: PLW2901 - the same agent, with a model
        slow = [_slow(tool, stage) for tool in _tools(agent.tools)]
        agents.append(dataclasses.replace(agent, tools=slow))
    return tuple(agents)


def _slow(tool: Tool, stage: WorldParts) -> Tool:
    """Return a tool that takes some of the world's time before it does anything: else nothing comes in between."""
    if not tool.is_async or filled_in(tool.run):
        return tool

    async def run(**arguments: Any) -> Any:
        if stage.random.random() < _CHANCE_OF_DELAY:
            await sleep(stage.clock, stage.random.choice(_DELAYS_S))
        else:
            await anyio.lowlevel.checkpoint()
        return await tool.run(**arguments)

    return dataclasses.replace(tool, run=run)


def _tools(declared: Sequence[Tool | ToolFunction | ToolSource]) -> list[Tool]:
    return [*tools_by_name(declared).values()]


def _sequence(argument: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        right = f"must be {argument}, or a function of the world that makes them"
        raise InvalidArgument(argument, f"{right}; it was {shown(value)}")
    return value


def drawn_settings(parts: WorldParts, namer: Random, lease: float) -> Settings:
    """Return the settings of a simulated world's engines; `namer` decides how chats get their titles."""
    random = parts.random
    return Settings(
        lease=lease,
        shutdown_grace=0,
        coalesce=0,
        max_steps=random.choice([2, 6, 50]),
        queue_limit=3,
        schedule_limit=LIMIT,
        fair_by=random.choice([None, "owner"]),
        max_running_per_owner=random.choice([None, None, 1]),
        startup_timeout=15,
        idle_timeout=15,
        tool_timeout=30,
        action_deadline=random.choice([None, 60.0]),
        promote_after_interrupt=random.random() < 0.3,
        subagent_depth=2,
        subagents_at_once=2,
        tools_parallel=random.choice(["safe", "all"]),
        describe_error=described,
        retry=RetryPolicy(attempts=4, after_output=random.choice(["reset", "never"])),
        compaction=CompactionPolicy(
            context_limit=actors.CONTEXT_LIMIT,
            after_final_step=random.choice(["continue", "rest"]),
            timeout=15,
            strategy=actors.simulated_strategy(random, parts.faults) if random.random() < 0.3 else None,
        ),
        inline_file_bytes=1,
        keep_parts=random.choice([None, 0.1, 10]),
        title=namer.choice([None, None, "model", "first_line"]),
    )
