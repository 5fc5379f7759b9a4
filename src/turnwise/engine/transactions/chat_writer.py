"""Changes chats: decides, writes and audits in one transaction, then tells subscribers. All changes come this way."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, Final, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from turnwise.engine.checkpoints.publisher import Publisher
from turnwise.engine.observers.observer import Observers
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.subscriptions.latest_events import Latest
from turnwise.logger import about, logger
from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.protocol import ChatStore, Committed, Permission, Runs
from turnwise.persistence.tombstone import Tombstone
from turnwise.states import triggers as t
from turnwise.states.decide import Decision, decide
from turnwise.states.draft import Draft
from turnwise.states.events import CompactionEvent, PartEvent
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.machine import accepts
from turnwise.states.triggers import TransitionContext, Trigger

Outcome = TypeVar("Outcome")

_TROUBLE: Final = (t.Failed, t.AttemptDiscarded, t.CompactionFailed, t.LeaseExpired, t.Repaired)


_COMPACTION_FIGURES: Final = ("step", "folded", "carried", "messages_after", "context_tokens", "tokens_after")


class UnitOfWork:
    """Decisions to be committed together, each made on the facts before it, with its own audit record and version."""

    __slots__ = ("_at", "decisions", "facts", "stopped")

    def __init__(self, facts: Facts, at: TransitionContext) -> None:
        self.facts = facts
        """The facts after the last decision."""
        self.decisions: list[Decision] = []
        self.stopped = False
        """Whether the changes that follow are skipped."""
        self._at = at

    @property
    def now(self) -> datetime:
        """The database's time."""
        return self._at.now

    @property
    def limits(self) -> Limits:
        """The settings of the chat's agent that the table asks."""
        return self._at.limits

    @property
    def entered(self) -> bool:
        """Whether the unit has brought the chat into the state it is in now."""
        return any(decision.source != decision.target for decision in self.decisions)

    def accepts(self, trigger: Trigger) -> bool:
        """Return whether the table has a row for the trigger as the chat stands now."""
        return accepts(Draft(self.facts, trigger, self._at))

    def fire(self, trigger: Trigger, *, actor: str | None = None, reason: str | None = None) -> Facts:
        """Decide the next trigger and return the facts after it. Without `actor` it is the unit's own.

        Raises:
            TurnwiseError: the trigger is refused; nothing of the unit is committed.
        """
        at = self._at
        if actor is not None or reason is not None:
            at = replace(at, actor=actor or at.actor, reason=reason)
        decision = decide(self.facts, trigger, at)
        self.decisions.append(decision)
        self.facts = decision.facts
        return decision.facts


Change = Trigger | Callable[[UnitOfWork], object]
"""What is to happen to a chat: one trigger, or a function that fires some on a unit.

The function is pure: a store may run it in another thread, and again after a conflict.
"""


Act = Callable[Concatenate[str, Change, ...], Awaitable[Committed]]
"""Makes changes of a chat in one transaction, on behalf of `actor`."""
LimitsOf = Callable[[Profile], Limits]
"""Returns the limits of a chat, by its profile."""


class _Plan(msgspec.Struct, frozen=True):
    """Changes as one plan for the store, with a salt for the digests of their decisions."""

    changes: Sequence[Change]
    limits_of: LimitsOf
    actor: str
    salt: str = msgspec.field(default_factory=partial(secrets.token_hex, 16))

    def __call__(self, facts: Facts, now: datetime) -> Sequence[Decision]:
        limits = self.limits_of(facts.profile)
        unit = UnitOfWork(facts, TransitionContext(now=now, limits=limits, salt=self.salt, actor=self.actor))
        for change in self.changes:
            if unit.stopped:
                break
            if isinstance(change, Trigger):
                unit.fire(change)
            else:
                change(unit)
        return unit.decisions


class ChatWriter(msgspec.Struct, frozen=True):
    """Carries changes out: all that are given for a chat in one transaction, one after another.

    A caller's cancellation takes effect only afterwards, so that subscribers are always told of a commit.
    """

    store: ChatStore
    broadcaster: Broadcaster
    limits_of: LimitsOf
    observers: Observers = msgspec.field(default_factory=Observers)
    publisher: Publisher | None = None
    """Publishes checkpoints of what was committed."""

    async def change(
        self,
        chat_id: str,
        *changes: Change,
        actor: str,
        shown: Sequence[PartEvent] = (),
        on_commit: Callable[[Committed], object] | None = None,
        limits_of: LimitsOf | None = None,
    ) -> Committed:
        """Change a chat, call `on_commit`, then publish to subscribers; `limits_of` stands for the writer's."""
        plan = _Plan(changes, limits_of or self.limits_of, actor)
        return await self._announced(chat_id, self.store.change(chat_id, plan, shown=shown), on_commit)

    async def create(
        self,
        chat_id: str,
        change: Change,
        *,
        actor: str,
        parent: tuple[str, int] | None = None,
        unchanged: bool = False,
    ) -> Committed:
        """Create a chat; `parent`, `unchanged` and their errors are those of `ChatStore.create`."""
        plan = _Plan((change,), self.limits_of, actor)
        return await self._announced(chat_id, self.store.create(chat_id, plan, parent=parent, unchanged=unchanged))

    async def import_chat(self, chat: WholeChat, change: Change, *, actor: str) -> Committed:
        """Take a chat in, and change it."""
        plan = _Plan((change,), self.limits_of, actor)
        return await self._announced(chat.chat_id, self.store.import_chat(chat, plan))

    async def repair(self, chat_id: str, change: Change, *, actor: str) -> Committed:
        """Change what can be read of a chat."""
        plan = _Plan((change,), self.limits_of, actor)
        return await self._announced(chat_id, self.store.repair(chat_id, plan))

    async def delete(self, chat_id: str, permit: Permission, *, actor: str) -> Tombstone:
        """Delete a chat if that is permitted, then let everybody in this process forget it."""
        left = await _shielded(self.store.delete(chat_id, permit, actor=actor))
        logger.info("deleted", chat_id=chat_id, actor=left.actor, records=left.records)
        self.broadcaster.forget(chat_id)
        if self.publisher is not None:
            self.publisher.note(chat_id)
        return left

    async def claim(self, *changes: Change, actor: str, runs: Runs, limit: int) -> list[Committed]:
        """Change chats that want a worker which runs these."""
        hints = self.broadcaster.hints
        claimed = await _shielded(self.store.claim(_Plan(changes, self.limits_of, actor), runs=runs, limit=limit))
        for committed in claimed:
            self._announce(committed, hints=hints)
        return claimed

    async def _announced(
        self, chat_id: str, commit: Awaitable[Committed], on_commit: Callable[[Committed], object] | None = None
    ) -> Committed:
        latest, hints = self.broadcaster.latest.of(chat_id), self.broadcaster.hints  # see `Broadcaster.deliver`
        committed = await _shielded(commit)
        if on_commit is not None and committed.decisions:
            on_commit(committed)
        self._announce(committed, latest, hints=hints)
        return committed

    def _announce(self, committed: Committed, latest: Latest | None = None, *, hints: int) -> None:
        if committed.decisions:
            self.broadcaster.deliver(committed, latest, hints=hints)
            _log_all(committed)
            self.observers.transitioned(committed.decisions)
            if self.publisher is not None:
                self.publisher.committed(committed)


def _log_all(committed: Committed) -> None:
    """Log each transition; one that reports trouble as a warning, which shows even without any logging set up."""
    listens = logger.listens()
    for decision in committed.decisions:
        declined = decision.trigger is t.CompactionFailed and decision.error is None
        troubled = decision.trigger in _TROUBLE and not declined
        if troubled or listens:
            level = logging.WARNING if troubled else logging.INFO
            fields = {**about(decision.facts), "source": decision.source, "actor": decision.actor}
            logger.log(
                level, decision.trigger.name, **fields, **(_trouble(decision) if troubled else _figures(decision))
            )


def _figures(decision: Decision) -> dict[str, Any]:
    """Return what a compaction has left: counts, and tokens before and after."""
    for event in decision.events:
        if isinstance(event, CompactionEvent) and event.phase in ("finished", "declined"):
            figures = {name: getattr(event, name) for name in _COMPACTION_FIGURES}
            return {name: figure for name, figure in figures.items() if figure is not None}
    return {}


def _trouble(decision: Decision) -> dict[str, str]:
    """Return the kind and text of the error, and the worker that had it."""
    if decision.trigger is t.LeaseExpired:
        return {"kind": "lease_expired", "error": "the worker that held the chat did not renew its lease"}
    kind, _, worker = decision.actor.partition(":")
    fields = {"worker": worker} if kind == "worker" and decision.facts.lease is None else {}
    error = decision.error
    return fields if error is None else fields | {"kind": error.kind, "error": error.detail or error.message}


async def _shielded(work: Awaitable[Outcome]) -> Outcome:
    with anyio.CancelScope(shield=True):
        outcome = await work
    return outcome  # noqa: RET504 - inside the block mypy sees no return: a scope may swallow exceptions
