"""Runtimes of a worker, for tests of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise import Settings
from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.agents import Agents
from turnwise.engine.blobs.files import Files
from turnwise.engine.isolation.clock import Clock
from turnwise.engine.isolation.tasks import Tasks
from turnwise.engine.prompt.hooks import Hooks
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.transactions.chat_writer import ChatWriter
from turnwise.engine.transactions.runtime import Runtime
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import ScriptedModel


def only_agent(
    model: Any = None, *, tools: Sequence[Any] = (), settings: Settings | None = None, hooks: Hooks | None = None
) -> Agents:
    """Return an engine's agents with only `default`."""
    hooks = hooks or Hooks()
    agent = Agent(
        "default",
        model or ScriptedModel([]),
        tools=tools,
        reminders=hooks.reminders,
        prepare_messages=hooks.prepare_messages,
    )
    return Agents([agent], settings or Settings())


def runtime_of(  # noqa: PLR0913 - what a test may choose
    store: ChatStore,
    clock: Clock,
    *,
    agents: Agents | None = None,
    settings: Settings | None = None,
    broadcaster: Broadcaster | None = None,
    worker_id: str = "w",
    tasks: Tasks | None = None,
) -> Runtime:
    """Return a worker's runtime on a store, by default with one agent without tools."""
    settings = settings or Settings()
    agents = agents or only_agent(settings=settings)
    return Runtime(
        writer=ChatWriter(store, broadcaster or Broadcaster(), agents.limits),
        agents=agents,
        deps=None,
        settings=settings,
        clock=clock,
        worker_id=worker_id,
        tasks=tasks or Tasks(),
        files=Files(store, store.file_store(), settings),
    )
