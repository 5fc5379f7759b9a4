"""Changes chats: decides, writes and audits in one transaction, then publishes. All changes come this way."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from turnwise.engine.checkpoints.publisher import Publisher
from turnwise.engine.isolation.tasks import run_shielded
from turnwise.engine.observers.observer import Observers
from turnwise.engine.subscriptions.broadcast import Broadcaster, Latest
from turnwise.logger import about, logger
from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.protocol import ChatStore, Committed, Permission, Plan, Runs
from turnwise.persistence.shares import Shares
from turnwise.persistence.tombstone import Tombstone
from turnwise.states import triggers as t
from turnwise.states.budgets import CallEstimator, Funds
from turnwise.states.decide import Decision, decide
from turnwise.states.draft import Draft
from turnwise.states.events import CompactionEvent, PartEvent
from turnwise.states.facts import Facts, Limits
from turnwise.states.machine import accepts
from turnwise.states.triggers import TransitionContext, Trigger

_TROUBLE: Final = (t.Failed, t.AttemptDiscarded, t.FallbackStarted, t.CompactionFailed, t.LeaseExpired, t.Repaired)
_COMPACTION_FIGURES: Final = ("step", "folded", "carried", "messages_after", "context_tokens", "tokens_after")


LimitsOf = Callable[[Facts], Limits]
"""Returns the limits of a chat."""


EstimatorOf = Callable[[Facts, datetime], CallEstimator]
"""Returns the estimator of a chat's next model call, at that time."""


class UnitOfWork:
    """Decisions to be committed together, each made on the facts before it, with its own audit record and version."""

    __slots__ = ("_at", "_estimator_of", "_limits_of", "decisions", "facts", "stopped")

    def __init__(
        self,
        facts: Facts,
        at: TransitionContext,
        limits_of: LimitsOf | None = None,
        estimator_of: EstimatorOf | None = None,
    ) -> None:
        self.facts = facts
        """The facts after the last decision."""
        self.decisions: list[Decision] = []
        self.stopped = False
        """Whether the changes that follow are skipped."""
        self._at = at
        self._limits_of = limits_of
        self._estimator_of = estimator_of

    @property
    def now(self) -> datetime:
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
        """Whether the table has a row for the trigger as the chat stands now."""
        return accepts(Draft(self.facts, trigger, self._at))

    def fire(self, trigger: Trigger, *, actor: str | None = None, reason: str | None = None) -> Facts:
        """Decide the next trigger and return the facts after it. Without `actor` it is the unit's own.

        Raises:
            TurnwiseError: the trigger is refused; nothing of the unit is committed.
        """
        at = self._at
        if actor is not None or reason is not None:
            at = replace(at, actor=actor or at.actor, reason=reason)
        if at.funds is not None and self._estimator_of is not None:
            at = replace(at, funds=replace(at.funds, estimator=self._estimator_of(self.facts, at.now)))
        decision = decide(self.facts, trigger, at)
        self.decisions.append(decision)
        if self._limits_of is not None and decision.facts.profile is not self.facts.profile:
            self._at = replace(self._at, limits=self._limits_of(decision.facts))
        if at.funds is not None:
            self._at = replace(self._at, funds=at.funds.after(self.facts.chat_id, decision.writes))
        self.facts = decision.facts
        return decision.facts


Change = Trigger | Callable[[UnitOfWork], object]
"""A change of a chat: one trigger, or a function that fires some on a unit.

The function is pure: a store may run it in another thread, and again after a conflict.
"""


class _Plan(msgspec.Struct, frozen=True):
    """Changes as one plan for the store, with a salt for the digests of their decisions."""

    changes: Sequence[Change]
    limits_of: LimitsOf
    estimator_of: EstimatorOf
    actor: str
    salt: str = msgspec.field(default_factory=partial(secrets.token_hex, 16))

    def __call__(self, facts: Facts, now: datetime, funds: Funds | None = None) -> Sequence[Decision]:
        at = TransitionContext(now=now, limits=self.limits_of(facts), salt=self.salt, actor=self.actor, funds=funds)
        unit = UnitOfWork(facts, at, self.limits_of, self.estimator_of)
        for change in self.changes:
            if unit.stopped:
                break
            if isinstance(change, Trigger):
                unit.fire(change)
            else:
                change(unit)
        return unit.decisions


class Adoption(Protocol):
    """Slots of a worker for the chats that a commit in flight may give to it."""

    def begin(self, unit: UnitOfWork) -> None:
        """Fire the next triggers, with a claim if there is a free slot."""

    def adopt(self, committed: Committed) -> None:
        """Run the chat, if the commit gave it to the worker."""


class LocalWorker(Protocol):
    """The worker of this process: it registers with the writer once."""

    def reserve(self, chat_id: str | None, number: int) -> AbstractContextManager[Adoption]:
        """Reserve slots for a commit in flight that may bring this chat, or any."""

    def turn_ended(self, decision: Decision) -> None:
        """Handle the end of a turn in a commit of this process."""


class ChatWriter:
    """Applies the changes of a chat in one transaction, one after another, and publishes them.

    A caller's cancellation takes effect only afterwards, so that subscribers always learn of a commit.
    """

    def __init__(
        self,
        store: ChatStore,
        broadcaster: Broadcaster,
        limits_of: LimitsOf,
        observers: Observers | None = None,
        publisher: Publisher | None = None,
        *,
        estimator_of: EstimatorOf = lambda _facts, _now: CallEstimator(),
    ) -> None:
        self.store = store
        self.broadcaster = broadcaster
        self.observers = observers or Observers()
        self._limits_of = limits_of
        self._estimator_of = estimator_of
        self._publisher = publisher
        self._worker: LocalWorker | None = None
        self._changing: Counter[str] = Counter()
        """The number of changes of each chat in flight in this process, besides its holder's."""

    def register(self, worker: LocalWorker) -> None:
        """Have a worker run the chats that want one after a change."""
        self._worker = worker

    async def change(self, chat_id: str, *changes: Change, actor: str) -> Committed:
        """Change a chat, and run it in this process if it then wants a worker and there is room."""
        if self._worker is None:
            return await self.commit(chat_id, *changes, actor=actor)
        return await run_shielded(self._change_and_adopt(self._worker, chat_id, changes, actor, self.store.change))

    async def commit(
        self,
        chat_id: str,
        *changes: Change,
        actor: str,
        shown: Sequence[PartEvent] = (),
        on_commit: Callable[[Committed], object] | None = None,
        limits_of: LimitsOf | None = None,
    ) -> Committed:
        """Change a chat without running it here: its holder does, or no worker has to. `on_commit` comes first.

        `limits_of` stands for the writer's.
        """
        work = partial(self.store.change, chat_id, self._plan(changes, actor, limits_of), shown=shown)
        return await run_shielded(self._commit(chat_id, work, on_commit))

    async def create(
        self,
        chat_id: str,
        *changes: Change,
        actor: str,
        parent: tuple[str, int] | None = None,
        unchanged: bool = False,
    ) -> Committed:
        """Create a chat; `parent`, `unchanged` and their errors are those of `ChatStore.create`."""
        plan = self._plan(changes, actor)
        work = partial(self.store.create, chat_id, plan, parent=parent, unchanged=unchanged)
        return await run_shielded(self._commit(chat_id, work))

    async def create_and_adopt(self, chat_id: str, *changes: Change, actor: str) -> Committed:
        """Create a chat, and run it in this process if it then wants a worker and there is room."""
        if self._worker is None:
            return await self.create(chat_id, *changes, actor=actor)
        return await run_shielded(self._change_and_adopt(self._worker, chat_id, changes, actor, self.store.create))

    async def import_chat(self, chat: WholeChat, change: Change, *, actor: str) -> Committed:
        work = partial(self.store.import_chat, chat, self._plan((change,), actor))
        return await run_shielded(self._commit(chat.chat_id, work))

    async def repair(self, chat_id: str, change: Change, *, actor: str) -> Committed:
        work = partial(self.store.repair, chat_id, self._plan((change,), actor))
        return await run_shielded(self._commit(chat_id, work))

    async def delete(self, chat_id: str, permit: Permission, *, actor: str) -> Tombstone:
        """Delete a chat if that is permitted, then have this process forget it."""
        return await run_shielded(self._delete(chat_id, permit, actor))

    async def claim(
        self, *changes: Change, actor: str, runs: Runs, limit: int, shares: Shares | None = None
    ) -> list[Committed]:
        """Change chats that want a worker which runs these, and run those that it then holds."""
        claim = partial(self.store.claim, runs=runs, limit=limit)
        if shares is not None:
            claim = partial(claim, shares=shares)
        return await run_shielded(self._claim(changes, actor, limit, claim))

    def _plan(self, changes: Sequence[Change], actor: str, limits_of: LimitsOf | None = None) -> _Plan:
        return _Plan(changes, limits_of or self._limits_of, self._estimator_of, actor)

    async def _change_and_adopt(
        self,
        worker: LocalWorker,
        chat_id: str,
        changes: Sequence[Change],
        actor: str,
        work: Callable[[str, Plan], Awaitable[Committed]],
    ) -> Committed:
        # The commit may give the chat to the worker. Until it is adopted its place is taken: no claim fills it, a
        # worker that stops waits for it, and no lease is released for want of a runner.
        with worker.reserve(chat_id, 1) as adoption:
            self._changing[chat_id] += 1
            try:
                plan = self._plan((*changes, adoption.begin), actor)
                committed = await self._commit(chat_id, partial(work, chat_id, plan))
                adoption.adopt(committed)
            finally:
                self._changing[chat_id] -= 1
                if not self._changing[chat_id]:
                    del self._changing[chat_id]
        return committed

    def is_changing(self, chat_id: str) -> bool:
        """Whether a change of a chat is under way in this process that is not its holder's."""
        return chat_id in self._changing

    async def _claim(
        self, changes: Sequence[Change], actor: str, limit: int, claim: Callable[[Plan], Awaitable[list[Committed]]]
    ) -> list[Committed]:
        notifications = self.broadcaster.notifications
        with nullcontext() if self._worker is None else self._worker.reserve(None, limit) as adoption:
            changes = changes if adoption is None else (*changes, adoption.begin)
            claimed = await claim(self._plan(changes, actor))
            for committed in claimed:
                self._publish(committed, notifications=notifications)
                if adoption is not None:
                    adoption.adopt(committed)
        return claimed

    async def _delete(self, chat_id: str, permit: Permission, actor: str) -> Tombstone:
        left = await self.store.delete(chat_id, permit, actor=actor)
        logger.info("deleted", chat_id=chat_id, actor=left.actor, records=left.records)
        self.broadcaster.forget(chat_id)
        if self._publisher is not None:
            self._publisher.note(chat_id)
        return left

    async def _commit(
        self,
        chat_id: str,
        work: Callable[[], Awaitable[Committed]],
        on_commit: Callable[[Committed], object] | None = None,
    ) -> Committed:
        broadcaster = self.broadcaster
        latest, notifications = broadcaster.latest.of(chat_id), broadcaster.notifications  # see `Broadcaster.publish`
        committed = await work()
        if on_commit is not None and committed.decisions:
            on_commit(committed)
        self._publish(committed, latest, notifications=notifications)
        return committed

    def _publish(self, committed: Committed, latest: Latest | None = None, *, notifications: int) -> None:
        if not committed.decisions:
            return
        self.broadcaster.publish(committed, latest, notifications=notifications)
        _log_all(committed)
        self.observers.transitioned(committed.decisions)
        if self._publisher is not None:
            self._publisher.committed(committed)
        if self._worker is not None:
            for decision in committed.decisions:
                if decision.ended is not None:
                    self._worker.turn_ended(decision)


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
    """Return the figures of a compaction: counts, and tokens before and after."""
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
