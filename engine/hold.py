"""A hold: what a worker has in hand while it holds a chat. Loaded once per lease, kept current by the holder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio.lowlevel
from anyio.abc import TaskGroup

from turnwise.engine.apply import Applier, Chain, Script
from turnwise.engine.clock import Clock
from turnwise.engine.errands import Errands
from turnwise.engine.hooks import Hooks
from turnwise.engine.observation import Observers
from turnwise.engine.settings import Settings
from turnwise.engine.toolbox import Toolbox
from turnwise.engine.view import View
from turnwise.persistence.protocol import ChatStore, Committed
from turnwise.providers.joining import ReplyBuilder
from turnwise.providers.protocol import Model
from turnwise.states.decide import job_of
from turnwise.states.effects import PutCall
from turnwise.states.errors import IllegalTransition, StaleLease
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState, Job, Trigger


class Moved(Exception):
    """Someone else moved the chat: what the job wanted to do is not what the chat needs any more."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """What every job of an engine works with."""

    applier: Applier
    model: Model
    toolbox: Toolbox
    settings: Settings
    clock: Clock
    worker_id: str
    tasks: TaskGroup
    """Where work runs that must not hold a job up: the storing of parts, a tool that ignores its cancellation."""
    hooks: Hooks
    errands: Errands = field(default_factory=Errands)
    """What a timer wants done there."""
    stopping: bool = False
    """Whether the worker is about to stop, and takes on nothing more."""

    @property
    def store(self) -> ChatStore:
        """The store."""
        return self.applier.store

    @property
    def observers(self) -> Observers:
        """Who watches."""
        return self.applier.observers

    def begin(self, chain: Chain, *, claims: bool) -> None:
        """Fire what is known to come next, so that it shares the commit.

        A chat that waits for a worker is claimed if `claims`; the first trigger of the job is fired.
        """
        while claims and not self.stopping and chain.facts.state is ChatState.pending:
            chain.fire(Trigger.claimed, worker=self.worker_id)
        facts = chain.facts
        if facts.lease is None or facts.lease.worker != self.worker_id or not chain.entered:
            return
        token = facts.lease.token
        if facts.state is ChatState.compacting or (facts.state is ChatState.streaming and facts.step.retry_at is None):
            chain.fire(Trigger.attempt_started, token=token)
        elif facts.state is ChatState.executing_tools:
            for call in self.toolbox.first_calls(facts):
                chain.fire(Trigger.call_started, token=token, call_id=call.call_id)


@dataclass(slots=True)
class Hold:
    """One chat in the hands of one worker, under one lease."""

    desk: Desk
    facts: Facts
    token: int
    job: Job | None = None
    """The job that runs. It changes the chat only while the chat is where this job belongs."""
    begun_attempt: tuple[int, int] | None = None
    """Step and attempt that this holder started."""
    heard: ReplyBuilder | None = None
    """What came of the attempt that this holder started last."""
    begun_calls: set[str] = field(default_factory=set)
    """Calls that this holder started."""
    view: View | None = None
    """What the model sees, if it is in hand."""
    decided: Facts | None = None
    """Where this holder itself has last decided to bring the chat."""
    _inherited: frozenset[str] | None = None

    @property
    def chat_id(self) -> str:
        """The chat."""
        return self.facts.chat_id

    @property
    def lost(self) -> bool:
        """Whether the lease is gone."""
        return self.facts.lease is None or self.facts.lease.token != self.token

    async def current_view(self) -> View:
        """Return what the model sees, read from the store only when it is not in hand."""
        if self.view is None or self.view.history_version != self.facts.history_version:
            version = self.facts.history_version
            self.view = View(await self.desk.store.prompt(self.chat_id), version)
        return self.view

    async def knows_call(self, call_id: str) -> bool:
        """Return whether the chat has ever had a call of that id."""
        if (await self.current_view()).has_call(call_id):
            return True
        history = self.facts.history
        everything_is_in_view = history.foldable == history.length
        if everything_is_in_view:
            return False
        return call_id in await self._inherited_calls() or bool(await self.desk.store.calls(self.chat_id, [call_id]))

    async def _inherited_calls(self) -> frozenset[str]:
        """Return the ids of the calls that a fork has taken over: they are in its history, and were never its own."""
        if self._inherited is None:
            is_fork = self.facts.profile.forked_from is not None
            history = await self.desk.store.history(self.chat_id) if is_fork else []
            self._inherited = frozenset(call.call_id for message in history for call in message.calls)
        return self._inherited

    async def fire(self, script: Script, *, shown: Sequence[PartEvent] = ()) -> Facts:
        """Run `script`, and what is known to follow, in one transaction under this lease.

        What others committed meanwhile has cancelled the job: it then goes no further than this.

        Raises:
            Moved: the chat is not any more where the job believed it to be. Nothing was written.
        """
        known = found = self.facts

        def whole(chain: Chain) -> None:
            nonlocal found
            found = chain.facts
            if job_of(found) is self.job:
                script(chain)
                self.desk.begin(chain, claims=True)
                self.decided = chain.facts

        try:
            committed = await self.desk.applier.change(
                self.chat_id, whole, actor=f"worker:{self.desk.worker_id}", shown=shown
            )
        except (StaleLease, IllegalTransition) as error:
            await anyio.lowlevel.checkpoint_if_cancelled()
            self.facts = await self.desk.store.facts(self.chat_id)
            if self.facts.version == known.version:
                raise
            raise Moved from error
        if not committed.decisions:
            self.observe(found)
            raise Moved
        if self.view is not None and self.view.history_version != found.history_version:
            self.view = None  # someone else has changed messages meanwhile
        self.take(committed)
        await anyio.lowlevel.checkpoint_if_cancelled()
        return self.facts

    async def show(self, state: ChatState, events: Sequence[Event]) -> None:
        """Store events of the running job, then show them.

        Raises:
            Moved: the job is over, or the lease is lost. Nothing was shown.
        """
        try:
            stored = await self.desk.store.journal(self.chat_id, self.token, state, events)
        except StaleLease as error:
            self.facts = await self.desk.store.facts(self.chat_id)
            raise Moved from error
        self.desk.applier.hub.show(self.chat_id, stored)

    def take(self, committed: Committed) -> None:
        """Take in what this holder committed."""
        self.observe(committed.facts)
        for decision in committed.decisions:
            after = decision.facts
            if after.lease is not None and after.lease.worker == self.desk.worker_id:
                self.token = after.lease.token
            if decision.trigger is Trigger.attempt_started:
                self.begun_attempt, self.heard = (after.step.number, after.step.attempt), None
            for write in decision.writes:
                if isinstance(write, PutCall) and decision.trigger is Trigger.call_started:
                    self.begun_calls.add(write.call.call_id)
                elif self.view is not None:
                    self.view = self.view.after(write, after.history_version)

    def observe(self, facts: Facts) -> None:
        """Take in what someone committed."""
        if facts.version >= self.facts.version:
            self.facts = facts

    @property
    def attempt_is_begun(self) -> bool:
        """Whether this holder has started the current attempt."""
        return self.begun_attempt == (self.facts.step.number, self.facts.step.attempt)
