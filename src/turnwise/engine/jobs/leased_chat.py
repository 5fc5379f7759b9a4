"""A leased chat: a worker's data about a chat while it holds the lease. Loaded once, updated by the holder."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

import anyio.lowlevel

from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.agents.deps import HeldDeps
from turnwise.engine.isolation.clock import sleep
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.prompt.context import StoredHistory, View
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.logger import logger
from turnwise.persistence.protocol import Committed
from turnwise.states.calls import ToolCall
from turnwise.states.decide import job_of
from turnwise.states.errors import IllegalTransition, StaleLease, StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts, Limits
from turnwise.states.names import CallStatus, ChatState, Job
from turnwise.states.triggers import Trigger
from turnwise.states.writes import PutCall

T = TypeVar("T")

RECENT_S: Final = 0.02
"""Seconds after a commit in which a tool may start without another look at the store."""
NEWS_S: Final = 1.0
"""Seconds from a request to the store for which its answer counts: an older one may be outdated."""
AGAIN_AFTER: Final = 1.0
"""Seconds between retries while the store is away."""
_MOST_QUESTIONS: Final = 5
_NO_TOKEN: Final = 0
"""The token of no lease: tokens count from 1."""


class ConcurrentTransition(Exception):
    """Another transition came first, so the chat no longer needs what the job was about to do."""


def went_back(known: Facts, found: Facts) -> bool:
    """Whether a store has lost commits of a chat since the `known` facts, in a failover or by a restored backup."""
    taken_back = found.version == known.version and found.updated_at != known.updated_at
    return taken_back or found.version < known.version


class LastCommit(NamedTuple):
    """When the holder of a chat last committed something."""

    at: datetime
    """By the database's clock."""
    ended: float
    """By the monotonic clock."""


class LeasedChat:
    """One chat in the hands of one worker, under one lease."""

    configuration: Configuration
    """How the chat's last model call was made, or how its tools run: a change counts from the next call on."""

    def __init__(
        self,
        runtime: Runtime,
        facts: Facts,
        token: int,
        *,
        job: Job | None = None,
        view: View | None = None,
        asked_at: float = 0.0,
    ) -> None:
        self.runtime = runtime
        self.facts = facts
        self.token = token
        self.job = job
        """The running job. It changes the chat only while the chat is in the job's state."""
        self.view = view
        """The model's view; `None` if it has to be read."""
        self.asked_at = asked_at
        """When the last commit began, by the monotonic clock."""
        self.renewed_at = time.monotonic() - (runtime.clock.monotonic() - asked_at)
        """When the store was asked to grant or renew the lease, by the machine's monotonic clock."""
        self.started_calls: set[str] = set()
        """Calls that this holder started."""
        self.history = StoredHistory(runtime.store, facts.chat_id)
        """The messages outside the model's view."""
        self.deps = HeldDeps(runtime.deps, runtime.tasks.user_calls, runtime.clock)
        self.committed: Facts | None = None
        """The facts after this holder's last commit."""
        self.stop_calls: Callable[[], object] | None = None
        """Stops the calls that run."""
        self.is_firing = False
        """Whether the job waits for a change of its own to be stored."""
        self.ended = False
        """Whether the holder ends its lease: the store has lost commits, or the lease has run out."""
        self.is_committing = False
        """Whether a commit of this holder is in flight: reads meanwhile may show its own change."""
        self.last_commit: LastCommit | None = None
        self._started_attempt: HeldAttempt | None = None
        """The attempt that this holder began last."""
        self.configure()

    def configure(self) -> None:
        """Update the configuration: by the chat's profile, or for open calls by that of the agent that made them."""
        facts = self.facts
        profile = facts.profile_of_calls if facts.calls.needs else facts.profile
        self.configuration = self.runtime.agents.asking(facts, profile)

    @property
    def chat_id(self) -> str:
        return self.facts.chat_id

    @property
    def holds(self) -> bool:
        """Whether the chat is held under this lease, as far as is known."""
        lease = self.facts.lease
        return lease is not None and (lease.worker, lease.token) == (self.runtime.worker_id, self.token)

    @property
    def lost(self) -> bool:
        return self.ended or not self.holds

    @property
    def attempt(self) -> HeldAttempt | None:
        """The current attempt; `None` if this holder did not start it."""
        started = self._started_attempt
        return started if started is not None and started.is_of(self.facts.step) else None

    def give_up(self) -> None:
        """Count the lease as lost: the worker that claims the chat next goes on with it."""
        self.token = _NO_TOKEN

    async def current_view(self) -> View:
        """Return the model's view; read it from the store only if necessary.

        Raises:
            ConcurrentTransition: another worker holds the chat, or its messages have changed.
        """
        if self.view is None or self.view.history_version != self.facts.history_version:
            known = self.facts
            view = View(await self.runtime.store.prompt(self.chat_id), known.history_version)
            facts = await self.runtime.store.facts(self.chat_id)
            # A worker that was frozen may have lost the chat: then these messages are not those of its step.
            is_same = facts.lease == known.lease and facts.history_version == known.history_version
            if not is_same or went_back(known, facts):
                self.observe(facts, known=known)
                raise ConcurrentTransition
            self.view = view
        return self.view

    async def fire(self, change: Change, *, shown: Sequence[PartEvent] = ()) -> Facts:
        """Make a change, and fire the triggers that follow, in one transaction under this lease.

        If a commit of others has cancelled the job meanwhile, the cancellation is raised here. While the store is away,
        the change is retried, so that no reply and no result is lost.

        Raises:
            ConcurrentTransition: the chat has left the job's state, or another worker holds it. Nothing was written,
                unless the answer took so long that others came after it.
        """
        before, self.is_firing = self.facts, True
        try:
            committed = await self.retry_while_unavailable(partial(self._commit, change, shown), version=before.version)
        except (StaleLease, IllegalTransition) as error:
            await self.look()
            if self.facts.version == before.version and not self.lost:
                raise
            raise ConcurrentTransition from error
        finally:
            self.is_firing = False
        if not committed.decisions:
            self.observe(committed.before, known=before)
            raise ConcurrentTransition
        await anyio.lowlevel.checkpoint_if_cancelled()
        if job_of(self.facts) is self.job:
            if self.ended:
                raise ConcurrentTransition
            if self.holds:
                await self.ask_again()
        return self.facts

    def as_it_stands(self, call: ToolCall) -> ToolCall:
        """Return a call as it is stored now: its arguments may have been erased."""
        return self.facts.calls.get(call.call_id) or call

    def go_on(self, trigger: Trigger, unit: UnitOfWork) -> None:
        """Fire a trigger that begins or judges a step, if this worker has the chat's present agent."""
        if self.runtime.agents.can_run(unit.facts):
            unit.fire(trigger)

    async def retry_while_unavailable(self, work: Callable[[], Awaitable[T]], *, version: int | None = None) -> T:
        """Return the result of `work`; repeat it while the store is away. Subscribers get the error each time.

        For a commit, `version` is the chat's version before it: it shows whether a commit without an answer was stored.
        """
        doubt: StoreError | None = None
        while True:
            try:
                if doubt is not None and (await self.runtime.store.facts(self.chat_id)).version != version:
                    raise doubt
                return await work()
            except StoreError as error:
                if error is doubt or not error.passing or (error.written != "no" and version is None):
                    raise
                doubt = error if error.written != "no" else doubt
                self.runtime.writer.broadcaster.fail(self.chat_id, error)
            await sleep(self.runtime.clock, AGAIN_AFTER)

    async def _commit(self, change: Change, shown: Sequence[PartEvent]) -> Committed:
        self.is_committing, begun_at = True, self.runtime.clock.monotonic()
        try:
            committed = await self.runtime.writer.commit(
                self.chat_id,
                partial(self._stop_if_moved, self.facts),
                change,
                partial(self.runtime.fire_next_triggers, claim=True, deps_agent=self.deps.open_for),
                actor=self.runtime.actor,
                shown=shown,
                on_commit=self.take,
                limits_of=self._limits_of,
            )
        finally:
            self.is_committing = False
        self.asked_at = begun_at
        return committed

    def _limits_of(self, facts: Facts) -> Limits:
        """Return the limits of the chat's agent, or those of the present configuration without it."""
        agents = self.runtime.agents
        return agents.limits(facts) if facts.profile.agent in agents else self.configuration.limits

    def _stop_if_moved(self, known: Facts, unit: UnitOfWork) -> None:
        if job_of(unit.facts) is not self.job or went_back(known, unit.facts):
            unit.stopped = True

    async def assert_tools_may_start(self) -> None:
        """Check that the chat still executes tools here: ask the store, unless the last commit is very recent.

        The store is always asked while this process changes the chat: it may be about to interrupt it. An interrupt
        that another process commits after this check is not seen; this gap remains.

        Raises:
            ConcurrentTransition: the chat is in another state, or another worker holds it.
        """
        recent = 0.0 if self.runtime.writer.is_changing(self.chat_id) else RECENT_S
        await self.ask_again(after=recent, state=ChatState.executing_tools)

    async def ask_again(self, *, after: float = NEWS_S, state: ChatState | None = None) -> None:
        """Check that the chat is held here in a state, by default the present one.

        The store is asked if its last answer is older than `after` seconds, and again if the answer took longer than
        `NEWS_S`, up to `_MOST_QUESTIONS` times.

        Raises:
            ConcurrentTransition: the chat is in another state, or another worker holds it.
        """
        clock, state, asked_at = self.runtime.clock, state or self.facts.state, self.asked_at
        for _ in range(_MOST_QUESTIONS):
            if clock.monotonic() - asked_at < after:
                break
            asked_at, after = clock.monotonic(), NEWS_S
            try:
                await self.retry_while_unavailable(partial(self._append_events, self.token, state, ()))
            except StaleLease:
                self.runtime.writer.broadcaster.publish_facts(await self.look())
                raise ConcurrentTransition from None
        if self.lost or self.facts.state is not state:
            raise ConcurrentTransition

    async def look(self) -> Facts:
        known = self.facts
        facts = await self.runtime.store.facts(self.chat_id)
        self.observe(facts, known=known)
        return facts

    async def _append_events(self, token: int, state: ChatState, events: Sequence[Event]) -> tuple[Event, ...]:
        return await self.runtime.store.append_events(self.chat_id, token, state, events, worker=self.runtime.worker_id)

    async def show(self, state: ChatState, events: Sequence[Event], *, token: int | None = None) -> None:
        """Store events of the running job, then show them. `token` is that of their lease, by default the present one.

        Raises:
            ConcurrentTransition: the job is over, or the lease is lost. Nothing was shown.
        """
        broadcaster = self.runtime.writer.broadcaster
        latest = broadcaster.latest.of(self.chat_id)
        try:
            stored = await self._append_events(self.token if token is None else token, state, events)
        except StaleLease as error:
            await self.look()
            raise ConcurrentTransition from error
        broadcaster.show(self.chat_id, stored, latest)

    def take(self, committed: Committed) -> None:
        """Update everything after a commit of this holder, before it is published."""
        # The runner is notified next: it cancels the job unless it knows the commit as this holder's.
        self.committed, self.is_committing = committed.facts, False
        if self.view is not None and self.view.history_version != committed.before.history_version:
            self.view = None  # others have changed messages in between
        self.observe(committed.facts)
        self.last_commit = LastCommit(committed.at, self.runtime.clock.monotonic())
        for decision in committed.decisions:
            after = decision.facts
            if after.lease is not None and after.lease.worker == self.runtime.worker_id:
                self.token = after.lease.token
            if decision.begins_attempt:
                self._started_attempt = HeldAttempt(step=after.step.number, attempt=after.step.attempt)
            if decision.ended is not None:
                self.runtime.system_prompts.forget(self.chat_id)
            for write in decision.writes:
                if isinstance(write, PutCall) and write.call.status is CallStatus.started:
                    self.started_calls.add(write.call.call_id)
                elif self.view is not None:
                    self.view = self.view.after(write, after.history_version)

    def observe(self, facts: Facts, *, known: Facts | None = None) -> None:
        """Update the facts after any commit, unless they are older.

        If they were read after later facts were `known` to be stored, the store has lost commits: the lease ends, and
        the next worker goes on from the stored facts.
        """
        if known is not None and went_back(known, facts) and not self.ended:
            self.ended = True
            self.facts, self.view = facts, None
            self.runtime.writer.broadcaster.rewind(facts)
            problem = "a failover or a restored backup has taken commits back; the lease ends"
            logger.warning("store_went_back", known=known.version, found=facts.version, problem=problem)
        elif facts.version >= self.facts.version:
            self.facts = facts

    def has_committed(self, facts: Facts) -> bool:
        """Whether the facts are those of this holder's last commit, apart from later events."""
        return self.committed is not None and facts == self.committed.with_last_seq(facts.last_seq)
