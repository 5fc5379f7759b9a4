"""A leased chat: what a worker keeps of a chat while it holds the lease. Loaded once, kept current by the holder."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import anyio.lowlevel

from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.agents.deps import HeldDeps
from turnwise.engine.apply import Chain, Change
from turnwise.engine.clock import sleep
from turnwise.engine.prompt.context import View
from turnwise.engine.results import Chat, chat_of
from turnwise.engine.runtime import Runtime
from turnwise.engine.spending import Spending
from turnwise.persistence.protocol import Committed
from turnwise.providers.reply_builder import ReplyBuilder
from turnwise.states.arguments import Origin
from turnwise.states.decide import Decision, job_of
from turnwise.states.errors import IllegalTransition, ModelError, StaleLease, StoreError
from turnwise.states.events import ErrorInfo, Event, PartEvent
from turnwise.states.facts import MOST_LOST, Facts
from turnwise.states.messages import Message
from turnwise.states.names import Audience, ChatState, Job, Trigger
from turnwise.states.triggers import AttemptDiscarded, AttemptStarted
from turnwise.states.unicode import well_formed
from turnwise.states.usage import Usage
from turnwise.states.writes import PutCall

T = TypeVar("T")

A_MOMENT: Final = 0.02
"""Seconds for which a tool may start on the result of the last commit without another look at the store."""
AGAIN_AFTER: Final = 1.0
"""Seconds after which a store that was away is asked again."""
_NO_TOKEN: Final = 0
"""The token of no lease: tokens count from 1."""


class ChatMoved(Exception):
    """Someone else moved the chat, so that it no longer needs what the job was about to do."""


@dataclass(slots=True)
class LeasedChat:
    """One chat in the hands of one worker, under one lease."""

    runtime: Runtime
    facts: Facts
    token: int
    turn_ended: Callable[[Decision], object] = field(kw_only=True)
    """Learns of each turn that a commit of this holder ended."""
    stop_helper: Callable[[str], Awaitable[None]] = field(kw_only=True)
    """Interrupts the helper of that id."""
    configuration: Configuration = field(init=False)
    """How the chat's last model call was made, or how its tools run: a change counts from the next call on."""
    deps: HeldDeps = field(init=False)
    job: Job | None = None
    """The running job. It changes the chat only while the chat is in the job's state."""
    begun_attempt: tuple[int, int] | None = None
    """Step and attempt that this holder started."""
    heard: ReplyBuilder | None = None
    """The reply, so far, of the attempt that this holder started last."""
    spending: Spending | None = None
    """What that attempt has used so far, if it makes a summary."""
    origin: Origin | None = None
    """The model of that attempt, with digests of its parameters and tools."""
    begun_calls: set[str] = field(default_factory=set)
    """Calls that this holder started."""
    view: View | None = None
    """What the model sees; `None` if it has to be read."""
    committed: Facts | None = None
    """The facts after this holder's last commit."""
    is_committing: bool = False
    """Whether a commit of this holder is under way: what is read meanwhile may be its own doing."""
    _inherited: frozenset[str] | None = None
    _commit_begun_at: float = 0.0
    """When the last commit was begun, by the monotonic clock."""
    _committed_at: datetime | None = None
    """The database's time of the last commit."""
    _committed_after: float = 0.0
    """The same moment by the monotonic clock."""
    _folded: tuple[View, list[Message]] | None = None
    """A view, and the turn's messages before its boundary, which are read once per view."""

    def __post_init__(self) -> None:
        self.deps = HeldDeps(self.runtime.deps, self.runtime.tasks.user_calls)
        self.configure()

    def configure(self) -> None:
        """Run the chat from now on as its profile says, but open calls as that of the agent which asked for them."""
        facts = self.facts
        profile = facts.profile_of_calls if facts.calls.needs else facts.profile
        self.configuration = self.runtime.agents.configuration(profile)

    async def system(self) -> str | None:
        """Return the chat's system prompt: its own, or its agent's, which is made once per turn if a function makes it.

        Raises:
            Exception: what the agent's function raised.
        """
        own, prompt = self.facts.profile.system, self.configuration.system
        if own is not None:
            return own
        if prompt is None or isinstance(prompt, str):
            return prompt
        made_for = (self.facts.turn.number, self.configuration.agent)
        made = self.runtime.prompts.get(self.chat_id)
        if made is None or made[0] != made_for:
            chat, calls = chat_of(self.facts), self.runtime.tasks.user_calls
            made = made_for, await calls.run(lambda: _prompt_of(prompt, chat), "system", chat_id=self.chat_id)
            self.runtime.keep_prompt(self.chat_id, made)
        return made[1]

    @property
    def chat_id(self) -> str:
        """The chat."""
        return self.facts.chat_id

    @property
    def lost(self) -> bool:
        """Whether the lease is gone."""
        return self.facts.lease is None or self.facts.lease.token != self.token

    def give_up(self) -> None:
        """Count the lease as lost: whoever claims the chat next goes on with it."""
        self.token = _NO_TOKEN

    async def current_view(self) -> View:
        """Return what the model sees; read it from the store only if necessary.

        Raises:
            ChatMoved: another worker holds the chat, or its messages have changed.
        """
        if self.view is None or self.view.history_version != self.facts.history_version:
            version = self.facts.history_version
            view = View(await self.runtime.store.prompt(self.chat_id), version)
            facts = await self.runtime.store.facts(self.chat_id)
            # A worker that was frozen may have lost the chat: then these messages are not those of its step.
            if facts.lease is None or facts.lease.token != self.token or facts.history_version != version:
                self.observe(facts)
                raise ChatMoved
            self.view = view
        return self.view

    async def messages_of_turn(self) -> list[Message]:
        """Return the messages of the current turn that are not cut, folded ones included."""
        turn, boundary, view = self.facts.turn, self.facts.history.boundary, await self.current_view()
        if self._folded is None or self._folded[0] is not view:
            reaches_back = boundary > turn.after
            history = await self.runtime.store.history(self.chat_id, after=turn.after) if reaches_back else []
            self._folded = view, [message for message in history if message.position < boundary]
        later = (
            message
            for message in view.messages
            if message.position > boundary and message.audience is Audience.everyone
        )
        return [message for message in (*self._folded[1], *later) if message.turn == turn.number]

    async def begin_attempt(self) -> None:
        """Start the next attempt, once it may start, unless this holder has started it."""
        await self.wait_for_retry()
        self.configure()
        if not self.attempt_is_begun or not self.facts.step.attempt_open:
            await self.fire(AttemptStarted(token=self.token))

    def refuse_endless_attempts(self) -> None:
        """Make sure that attempts may go on.

        Raises:
            ModelError: `MOST_LOST` of them were lost with their workers: the reply itself may be what ends these.
        """
        lost = self.facts.step.lost
        if lost >= MOST_LOST:
            message = f"{lost} attempts of this step were lost with the workers that ran them; it is not tried again"
            raise ModelError("server_error", retryable=False, message=message)

    @property
    def attempt_is_begun(self) -> bool:
        """Whether this holder has started the current attempt."""
        return self.begun_attempt == (self.facts.step.number, self.facts.step.attempt)

    async def try_again(
        self, error: ErrorInfo, retry_after: float | None, *, usage: Usage | None, opened: bool = False
    ) -> None:
        """Discard the attempt; the next one may start after the policy's delay, or the provider's if that is longer."""
        delay = self.configuration.settings.retry.delay(self.facts.step.failures + 1, retry_after)
        discarded = AttemptDiscarded(token=self.token, error=error, delay=delay, usage=usage, opened=opened)
        await self.fire(lambda chain: chain.fire(replace(discarded, retry_at=chain.now + timedelta(seconds=delay))))

    async def wait_for_retry(self) -> None:
        """Wait until the next attempt may start."""
        step = self.facts.step
        if step.retry_at is not None and self._committed_at is not None:
            # Both times are the database's, whose clock may have been set: `retry_delay` bounds the wait.
            left = min((step.retry_at - self._committed_at).total_seconds(), step.retry_delay)
            await sleep(self.runtime.clock, left - (self.runtime.clock.monotonic() - self._committed_after))

    async def knows_call(self, call_id: str) -> bool:
        """Return whether the chat has ever had a call of that id."""
        if (await self.current_view()).has_call(call_id):
            return True
        history = self.facts.history
        everything_is_in_view = history.foldable == history.length
        if everything_is_in_view:
            return False
        return call_id in await self._inherited_calls() or bool(await self.runtime.store.calls(self.chat_id, [call_id]))

    async def _inherited_calls(self) -> frozenset[str]:
        """Return the ids of calls that the chat began with: they are in its history, but not in its `calls`."""
        if self._inherited is None:
            profile = self.facts.profile
            began_with_some = profile.forked_from is not None or profile.imported
            history = await self.runtime.store.history(self.chat_id) if began_with_some else []
            self._inherited = frozenset(call.call_id for message in history for call in message.calls)
        return self._inherited

    async def fire(self, change: Change, *, shown: Sequence[PartEvent] = ()) -> Facts:
        """Make a change, and fire the triggers that are known to follow, in one transaction under this lease.

        If a commit of others has cancelled the job meanwhile, the cancellation is raised here. A store that is away is
        waited for: what a model has said or a tool has done is not lost.

        Raises:
            ChatMoved: the chat has left the job's state, or another worker holds it. Nothing was written.
        """
        before = self.facts
        try:
            committed = await self.outlast(lambda: self._commit(change, shown), version=before.version)
        except (StaleLease, IllegalTransition) as error:
            self.observe(await self.runtime.store.facts(self.chat_id))
            if self.facts.version == before.version and not self.lost:
                raise
            raise ChatMoved from error
        if not committed.decisions:
            self.observe(committed.before)
            raise ChatMoved
        if self.view is not None and self.view.history_version != committed.before.history_version:
            self.view = None  # others have changed messages in between
        self.take(committed)
        await anyio.lowlevel.checkpoint_if_cancelled()
        return self.facts

    async def outlast(self, work: Callable[[], Awaitable[T]], *, version: int | None = None) -> T:
        """Return what `work` returns; do it again for as long as the store is away. Followers get the error each time.

        Args:
            work: asks the store for something, once.
            version: of the chat before it, if the work is a commit: it tells whether one without an answer was stored.

        Raises:
            StoreError: the store refuses; or `work` may have been done although no answer came.
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
                self.runtime.applier.broadcaster.fail(self.chat_id, error)
            await sleep(self.runtime.clock, AGAIN_AFTER)

    async def _commit(self, change: Change, shown: Sequence[PartEvent]) -> Committed:
        self.is_committing, self._commit_begun_at = True, self.runtime.clock.monotonic()
        try:
            return await self.runtime.applier.change(
                self.chat_id,
                self._stop_if_moved,
                change,
                partial(self.runtime.begin, claims=True),
                actor=self.runtime.actor,
                shown=shown,
                on_commit=self._note,
            )
        finally:
            self.is_committing = False

    def _stop_if_moved(self, chain: Chain) -> None:
        if job_of(chain.facts) is not self.job:
            chain.stopped = True

    def _note(self, committed: Committed) -> None:
        # The runner is among those who are told next: it cancels the job unless it knows the commit as this holder's.
        self.committed, self.is_committing = committed.facts, False

    async def assert_tools_may_start(self) -> None:
        """Make sure that the chat still executes tools here: ask the store, unless the last commit is very recent.

        An interrupt that another process commits after this check is not seen; this gap remains.

        Raises:
            ChatMoved: the chat is in another state, or another worker holds it.
        """
        if self.runtime.clock.monotonic() - self._commit_begun_at >= A_MOMENT:
            try:
                store, state = self.runtime.store, ChatState.executing_tools
                await self.outlast(lambda: store.journal(self.chat_id, self.token, state, ()))
            except StaleLease:
                facts = await self.runtime.store.facts(self.chat_id)
                self.runtime.applier.broadcaster.tell(facts)
                self.observe(facts)
                raise ChatMoved from None
        if self.lost or self.facts.state is not ChatState.executing_tools:
            raise ChatMoved

    async def show(self, state: ChatState, events: Sequence[Event]) -> None:
        """Store events of the running job, then show them.

        Raises:
            ChatMoved: the job is over, or the lease is lost. Nothing was shown.
        """
        broadcaster = self.runtime.applier.broadcaster
        latest = broadcaster.latest.of(self.chat_id)
        try:
            stored = await self.runtime.store.journal(self.chat_id, self.token, state, events)
        except StaleLease as error:
            self.observe(await self.runtime.store.facts(self.chat_id))
            raise ChatMoved from error
        broadcaster.show(self.chat_id, stored, latest)

    def take(self, committed: Committed) -> None:
        """Update everything after a commit of this holder."""
        self.observe(committed.facts)
        self._committed_at, self._committed_after = committed.at, self.runtime.clock.monotonic()
        for decision in committed.decisions:
            after = decision.facts
            if after.lease is not None and after.lease.worker == self.runtime.worker_id:
                self.token = after.lease.token
            if decision.trigger is Trigger.attempt_started:
                self.begun_attempt, self.heard = (after.step.number, after.step.attempt), None
                self.origin = self.spending = None
            if decision.ended is not None:
                self.runtime.prompts.pop(self.chat_id, None)
                self.turn_ended(decision)
            for write in decision.writes:
                if isinstance(write, PutCall) and decision.trigger is Trigger.call_started:
                    self.begun_calls.add(write.call.call_id)
                elif self.view is not None:
                    self.view = self.view.after(write, after.history_version)

    def observe(self, facts: Facts) -> None:
        """Update the facts after anybody's commit."""
        if facts.version >= self.facts.version:
            self.facts = facts

    def has_committed(self, facts: Facts) -> bool:
        """Return whether this holder's last commit left the facts so, whatever was shown since."""
        return self.committed is not None and facts == self.committed.with_last_seq(facts.last_seq)


async def _prompt_of(make: Callable[[Chat], str | Awaitable[str]], chat: Chat) -> str:
    result = make(chat)
    text = await result if inspect.isawaitable(result) else result
    if not isinstance(text, str):
        raise TypeError(f"the agent's system prompt has to be text; the function returned {type(text).__name__}")
    return well_formed(text)
