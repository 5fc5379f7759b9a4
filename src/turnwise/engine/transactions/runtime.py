"""The runtime of an engine: its parts, for jobs, commands and the worker; and the triggers that follow a transition."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.system_prompts import SystemPrompts
from turnwise.engine.blobs.files import Files
from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.clock import Clock
from turnwise.engine.isolation.tasks import Tasks
from turnwise.engine.observers.observer import Observers
from turnwise.engine.subscriptions.watch import ChatFeed
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.engine.transactions.chat_writer import ChatWriter, UnitOfWork
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.shares import Shares
from turnwise.states.calls import ToolCall
from turnwise.states.names import WORKER, ChatState
from turnwise.states.triggers import AttemptStarted, CallStarted, Claimed

_CALLS_KEPT: Final = 50_000


class StartedCalls:
    """Recent tool calls started by this process.

    Prevents a second execution if a failover or restore loses the recorded start.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, chat_id: str, call_id: str) -> None:
        """Note that a call starts. Safe in any thread."""
        self._calls[chat_id, call_id] = None
        if len(self._calls) > _CALLS_KEPT:
            self._calls.popitem(last=False)

    def __contains__(self, call: tuple[str, str]) -> bool:
        """Whether a call, by chat and id, was started here."""
        return call in self._calls


class Runtime(msgspec.Struct, kw_only=True):
    """The parts of an engine that every job uses."""

    writer: ChatWriter
    agents: Agents
    """The agent registry."""
    settings: Settings
    """The engine's: an agent may have other ones for its own chats."""
    clock: Clock
    worker_id: str
    tasks: Tasks
    """Run work that must not hold up a job: storing parts, and user code."""
    files: Files
    """The files of its chats."""
    deps: object
    """Dependencies passed to tools: a value, or a factory that takes the chat."""
    warned_context_window: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Providers and models whose unknown context window was logged."""
    warned_unknown_cost: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Providers and models of which a call of unknown cost was logged."""
    system_prompts: SystemPrompts = msgspec.field(default_factory=SystemPrompts)
    started_calls: StartedCalls = msgspec.field(default_factory=StartedCalls)
    shares: Shares | None = None
    """The worker's round of fair claims; `None` if the chat that waits longest comes first."""
    chats_wait: bool = False
    """Whether chats may wait in the store for a worker."""
    opened_feed: ChatFeed | None = None
    stopping: bool = False
    """Whether the worker is shutting down and starts nothing more."""

    @property
    def feed(self) -> ChatFeed:
        """The changes of all chats, for streams."""
        if self.opened_feed is None:
            self.opened_feed = ChatFeed(self.store, self.writer.broadcaster, self.clock, self.tasks)
        return self.opened_feed

    @property
    def store(self) -> ChatStore:
        return self.writer.store

    @property
    def actor(self) -> str:
        """The worker, as the audit log names it."""
        return f"{WORKER}{self.worker_id}"

    @property
    def observers(self) -> Observers:
        return self.writer.observers

    def calls_to_start(
        self, calls: Sequence[ToolCall], toolbox: Toolbox, *, agent: str, deps_agent: str | None
    ) -> tuple[ToolCall, ...]:
        """Return the calls to start in the commit of the transition to `executing_tools`.

        Returns none if the agent's dependencies must be opened first, which may fail or take long. They are open for
        the agent `deps_agent`.
        """
        waits = self.stopping or (callable(self.deps) and deps_agent != agent)
        return () if waits else toolbox.first_calls(calls)

    def fire_next_triggers(self, unit: UnitOfWork, *, claim: bool, deps_agent: str | None = None) -> None:
        """Claim the chat if `claim` is set, then start the attempt or calls of its state, all in one commit.

        Skips attempts and calls that the transition already started. Does nothing while the worker is shutting down,
        because it may release the lease right after this commit.
        """
        if self.stopping:
            return
        can_run = self.agents.can_run(unit.facts)
        if self.shares is not None:
            claim = claim and not (self.shares.caps or self.chats_wait)  # waiting chats come first
        while claim and can_run and unit.facts.state is ChatState.pending:
            unit.fire(Claimed(worker=self.worker_id), actor=self.actor)
        facts = unit.facts
        if facts.lease is None or facts.lease.worker != self.worker_id or not unit.entered:
            return
        token, is_due = facts.lease.token, not facts.step.attempt_open and facts.step.retry_at is None
        if facts.state in (ChatState.streaming, ChatState.compacting) and is_due and can_run:
            unit.fire(AttemptStarted(token=token), actor=self.actor)
        elif facts.state is ChatState.executing_tools:
            toolbox = self.agents.toolbox(facts.profile_of_calls)
            for call in self.calls_to_start(facts.calls, toolbox, agent=facts.agent_needed, deps_agent=deps_agent):
                unit.fire(CallStarted(token=token, call_id=call.call_id), actor=self.actor)
