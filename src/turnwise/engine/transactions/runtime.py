"""The runtime of an engine: its parts, for jobs, commands and the worker; and what is known to come next in a chat."""

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
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.engine.transactions.chat_writer import ChatWriter, UnitOfWork
from turnwise.persistence.protocol import ChatStore
from turnwise.states.calls import ToolCall
from turnwise.states.names import WORKER, ChatState
from turnwise.states.triggers import AttemptStarted, CallStarted, Claimed

_CALLS_KEPT: Final = 50_000


class StartedCalls:
    """The calls that began in this process, the latest ones: none begins again as if it never had.

    The store knows of each start, unless a failover or a restored backup has taken it back.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, chat_id: str, call_id: str) -> None:
        """Note that a call begins. Safe in any thread."""
        self._calls[chat_id, call_id] = None
        if len(self._calls) > _CALLS_KEPT:
            self._calls.popitem(last=False)

    def __contains__(self, call: tuple[str, str]) -> bool:
        """Return whether a call, by chat and id, was started here."""
        return call in self._calls


class Runtime(msgspec.Struct, kw_only=True):
    """What every job of an engine works with."""

    writer: ChatWriter
    agents: Agents
    """Who answers in which chat, and how."""
    settings: Settings
    """The engine's: an agent may have other ones for its own chats."""
    clock: Clock
    worker_id: str
    tasks: Tasks
    """Run work that must not hold up a job: storing parts, and user code."""
    files: Files
    """The files of its chats."""
    deps: object
    """What tools need beside their arguments, or what makes it of a chat."""
    warned_of: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Providers and models whose unknown context window was logged."""
    unpriced: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Providers and models of which a call of unknown cost was logged."""
    system_prompts: SystemPrompts = msgspec.field(default_factory=SystemPrompts)
    started_calls: StartedCalls = msgspec.field(default_factory=StartedCalls)
    stopping: bool = False
    """Whether the worker is stopping and takes on nothing more."""

    @property
    def store(self) -> ChatStore:
        """The store."""
        return self.writer.store

    @property
    def actor(self) -> str:
        """The worker, as the audit log names it."""
        return f"{WORKER}{self.worker_id}"

    @property
    def observers(self) -> Observers:
        """Who watches."""
        return self.writer.observers

    def first_calls(
        self, calls: Sequence[ToolCall], toolbox: Toolbox, *, agent: str, deps_of: str | None
    ) -> tuple[ToolCall, ...]:
        """Return the calls to start in the commit that brings the chat to them.

        There are none if the agent's deps have to be opened first, which may fail or take long: they are open for the
        agent `deps_of`.
        """
        waits = self.stopping or (callable(self.deps) and deps_of != agent)
        return () if waits else toolbox.first_calls(calls)

    def begin(self, unit: UnitOfWork, *, claims: bool, deps_of: str | None = None) -> None:
        """Fire the triggers that are known to come next, so that they share the commit.

        With `claims` a chat that waits for a worker is claimed if this one can run it; then the attempt or the calls of
        its state begin, unless they have begun with the transition. A worker that stops begins nothing by this: it may
        let the chat go right after the commit.
        """
        if self.stopping:
            return
        can_run = self.agents.can_run(unit.facts)
        while claims and can_run and unit.facts.state is ChatState.pending:
            unit.fire(Claimed(worker=self.worker_id), actor=self.actor)
        facts = unit.facts
        if facts.lease is None or facts.lease.worker != self.worker_id or not unit.entered:
            return
        token, is_due = facts.lease.token, not facts.step.attempt_open and facts.step.retry_at is None
        if facts.state in (ChatState.streaming, ChatState.compacting) and is_due and can_run:
            unit.fire(AttemptStarted(token=token), actor=self.actor)
        elif facts.state is ChatState.executing_tools:
            toolbox = self.agents.toolbox(facts.profile_of_calls)
            for call in self.first_calls(facts.calls, toolbox, agent=facts.agent_needed, deps_of=deps_of):
                unit.fire(CallStarted(token=token, call_id=call.call_id), actor=self.actor)
