"""Applying: the only place where a decision becomes fact. Decide, write and audit in one transaction, then notify."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar, Unpack

import anyio

from turnwise.engine.hub import Hub
from turnwise.engine.log import Log
from turnwise.engine.observation import Observers
from turnwise.persistence.protocol import ChatStore, Committed, Plan
from turnwise.states.arguments import Arguments
from turnwise.states.decide import Decision, decide
from turnwise.states.events import PartEvent
from turnwise.states.facts import Facts, Limits
from turnwise.states.names import Trigger

Outcome = TypeVar("Outcome")

_log = Log("turnwise.transitions")


class Chain:
    """Decisions made one on another, to be committed together: each keeps its own audit record and version."""

    __slots__ = ("_actor", "_limits", "decisions", "facts", "now")

    def __init__(self, facts: Facts, now: datetime, limits: Limits, actor: str) -> None:
        self.facts = facts
        """The facts after the last decision."""
        self.now = now
        self.decisions: list[Decision] = []
        self._limits = limits
        self._actor = actor

    @property
    def entered(self) -> bool:
        """Whether the chain has brought the chat into the state it is in now."""
        return any(decision.source != decision.target for decision in self.decisions)

    def fire(self, trigger: Trigger, **arguments: Unpack[Arguments]) -> Facts:
        """Decide the next trigger and return the facts after it.

        Raises:
            TurnwiseError: the trigger is refused; the whole chain is then given up.
        """
        arguments = {"now": self.now, "limits": self._limits, "actor": self._actor, **arguments}
        decision = decide(self.facts, trigger, **arguments)
        self.decisions.append(decision)
        self.facts = decision.facts
        return decision.facts


Script = Callable[[Chain], object]
"""Fires triggers on a chain. It is pure: a store may run it in another thread, and again after a conflict."""


@dataclass(frozen=True, slots=True)
class Applier:
    """Performs scripts on chats.

    A caller that is cancelled meanwhile learns of it afterwards: what is committed is always told.
    """

    store: ChatStore
    hub: Hub
    limits: Limits
    observers: Observers = field(default_factory=Observers)

    async def change(self, chat_id: str, script: Script, *, actor: str, shown: Sequence[PartEvent] = ()) -> Committed:
        """Run `script` on a chat in one transaction, then tell whoever listens."""
        return self._told(await _shielded(self.store.change(chat_id, self.plan(script, actor), shown=shown)))

    async def create(self, chat_id: str, script: Script, *, actor: str) -> Committed:
        """Run `script` on a chat that does not exist yet."""
        return self._told(await _shielded(self.store.create(chat_id, self.plan(script, actor))))

    async def claim(self, script: Script, *, actor: str, limit: int) -> list[Committed]:
        """Run `script` on chats that want a worker."""
        committed = await _shielded(self.store.claim(self.plan(script, actor), limit=limit))
        return [self._told(claimed) for claimed in committed]

    def plan(self, script: Script, actor: str) -> Plan:
        """Return the script as the store wants it."""

        def decided(facts: Facts, now: datetime) -> Sequence[Decision]:
            chain = Chain(facts, now, self.limits, actor)
            script(chain)
            return chain.decisions

        return decided

    def _told(self, committed: Committed) -> Committed:
        if _log.listens():
            _log_all(committed)
        if committed.decisions:
            self.hub.deliver(committed)
            self.observers.transitioned(committed.decisions)
        return committed


def _log_all(committed: Committed) -> None:
    for decision in committed.decisions:
        after = decision.facts
        _log.info(
            decision.trigger.value,
            chat_id=after.chat_id,
            version=after.version,
            source=decision.source,
            state=after.state.value,
            actor=decision.actor,
        )


async def _shielded(work: Awaitable[Outcome]) -> Outcome:
    with anyio.CancelScope(shield=True):
        outcome = await work
    return outcome  # noqa: RET504 - inside the block mypy sees no return: a scope may swallow exceptions
