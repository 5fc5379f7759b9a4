"""The chats that a worker runs, and the slots that it reserves for commits in flight."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from msgspec.structs import replace

from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.prompt.context import View
from turnwise.engine.subagents.subagents import Subagents
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.runner import Runner
from turnwise.engine.worker.slots import Reservation, Slots
from turnwise.engine.worker.sweep import Sweeper
from turnwise.engine.worker.titles import Titles
from turnwise.persistence.protocol import Committed
from turnwise.states.decide import Decision, job_of
from turnwise.states.errors import StoreError
from turnwise.states.facts import Facts
from turnwise.states.names import LEASED, ChatState

_MOST_VIEWS: Final = 200
"""Chats at rest whose history a worker holds in memory, the latest ones."""


class RunningChats:
    """Adopts chats, runs them, and passes changes on to their runners."""

    def __init__(self, runtime: Runtime, slots: Slots, sweeper: Sweeper) -> None:
        self._runtime = runtime
        self.slots = slots
        self._sweeper = sweeper
        self._views: OrderedDict[str, tuple[int, View]] = OrderedDict()
        """With the version of the chat at which each was stored: another commit of that version voids it."""
        self.titles = Titles(runtime)
        self.subagents = Subagents(runtime)
        self.wake = asyncio.Event()
        """Set when the worker has something to do before the next tick is due."""

    @property
    def room(self) -> int:
        """How many more chats may run here: none once the worker is about to stop."""
        return 0 if self._runtime.stopping else self.slots.free

    def look_for_chats(self) -> None:
        """Look for chats that want a worker now, without waiting for the next poll."""
        self._runtime.chats_wait = True
        self.wake.set()

    # What the writer asks for

    @contextmanager
    def reserve(self, chat_id: str | None, number: int) -> Iterator[ReservedSlots]:
        """Reserve slots for a commit in flight that may bring this chat, or any."""
        with self.slots.reserve(min(number, self.room), chat_id) as reservation:
            yield ReservedSlots(self, reservation, self._runtime)

    def turn_ended(self, decision: Decision) -> None:
        """Give the chat a title, if it wants one."""
        self.titles.turn_ended(decision)

    # What the broadcaster passes on

    def observe(self, facts: Facts) -> None:
        if self._views.get(facts.chat_id, (0,))[0] >= facts.version:
            del self._views[facts.chat_id]
        self.slots.note_change(facts.chat_id, facts.version)
        runner = self.slots.runners.get(facts.chat_id)
        if runner is not None:
            runner.observe(facts)
        shares, wants_worker = self._runtime.shares, facts.lease is None and not facts.settled
        if shares is not None:
            wants_worker |= bool(shares.caps) and facts.state not in LEASED  # another chat may begin
        if facts.state is ChatState.pending or wants_worker:
            self.look_for_chats()
        self.subagents.observe(facts)

    def forget(self, chat_id: str) -> None:
        """Forget a deleted chat; if it runs here, end its lease."""
        self._views.pop(chat_id, None)
        self._runtime.system_prompts.forget(chat_id)
        runner = self.slots.runners.get(chat_id)
        if runner is not None:
            runner.observe(replace(runner.leased.facts, lease=None))

    async def changed_elsewhere(self, chat_id: str | None) -> None:
        """Read a chat, or all, after another process may have changed it."""
        self.slots.note_change(chat_id)
        if chat_id is not None:
            self._views.pop(chat_id, None)
        for each in [*self.slots.runners] if chat_id is None else [chat_id]:
            runner = self.slots.runners.get(each)
            if runner is not None:
                await self.look(runner)
        self.look_for_chats()

    async def look(self, runner: Runner) -> bool:
        """Read a runner's chat; return whether it could be read."""
        chat_id, known = runner.leased.chat_id, runner.leased.facts
        facts = await self._sweeper.facts(chat_id)
        if facts is not None:
            runner.observe(facts, known=known)
        else:
            await self._forget_deleted([chat_id])
        return facts is not None

    async def forget_deleted(self) -> None:
        """Forget chats that another process has deleted."""
        await self._forget_deleted([*dict.fromkeys((*self._views, *self._runtime.system_prompts))])

    async def _forget_deleted(self, chat_ids: Sequence[str]) -> None:
        for chat_id in await self._runtime.store.deleted(chat_ids):
            self.forget(chat_id)

    def stop_unwanted(self) -> None:
        """Stop subagents that run here and that no chat waits for any more."""
        for runner in [*self.slots.runners.values()]:
            self._stop_if_unwanted(runner)

    def _stop_if_unwanted(self, runner: Runner) -> None:
        if runner.leased.facts.profile.parent_call is not None:
            self._runtime.tasks.start_soon(self.subagents.stop_if_unwanted, runner.leased.facts)

    # Running a chat

    def run(self, leased: LeasedChat, reservation: Reservation) -> None:
        """Run a chat; a runner that has it under an older lease ends."""
        if (other := self.slots.runners.get(leased.chat_id)) is not None:
            other.end()
        runner = Runner(leased)
        self.slots.runners[leased.chat_id] = runner
        self._runtime.observers.running(len(self.slots.runners))
        self._runtime.tasks.start_soon(self._run, runner, reservation)
        self._stop_if_unwanted(runner)

    async def _run(self, runner: Runner, reservation: Reservation) -> None:
        try:
            if reservation.has_newer(runner.leased.facts):  # it may be interrupted by now
                with suppress(StoreError):  # the job will ask it, too
                    await self.look(runner)
            await runner.run()
        finally:
            if self.slots.leave(runner):
                self._runtime.observers.running(len(self.slots.runners))
                self._store_view(runner.leased)
            if self._runtime.chats_wait:
                self.wake.set()

    def view_of(self, facts: Facts) -> View | None:
        """Return the model's view of a chat, if it is cached."""
        if facts.history.length == 0:
            return View([], facts.history_version)
        _, view = self._views.pop(facts.chat_id, (0, None))
        return view if view is not None and view.history_version == facts.history_version else None

    def _store_view(self, leased: LeasedChat) -> None:
        """Cache the view of a chat at rest: its next turn is likely to run here, too."""
        if leased.view is not None and not leased.ended:
            self._views[leased.chat_id] = leased.facts.version, leased.view
            if len(self._views) > _MOST_VIEWS:
                self._views.popitem(last=False)


class ReservedSlots:
    """Slots for the chats that a commit in flight may give to this worker."""

    __slots__ = ("_asked_at", "_chats", "_reservation", "_runtime")

    def __init__(self, chats: RunningChats, reservation: Reservation, runtime: Runtime) -> None:
        self._chats = chats
        self._reservation = reservation
        self._runtime = runtime
        self._asked_at = runtime.clock.monotonic()

    def begin(self, unit: UnitOfWork) -> None:
        """Fire the next triggers, with a claim if there is a free slot."""
        self._runtime.fire_next_triggers(unit, claim=self._reservation.number > 0)

    def adopt(self, committed: Committed) -> None:
        """Run the chat, if the commit gave it to this worker, unless its turn ended with it."""
        before, facts = committed.before, committed.facts
        if facts.lease is None or facts.lease.worker != self._runtime.worker_id or job_of(facts) is None:
            return
        if facts.lease == before.lease:
            return  # another worker holds the lease and runs the chat
        view = self._chats.view_of(before)
        leased = LeasedChat(self._runtime, before, facts.lease.token, view=view, asked_at=self._asked_at)
        leased.take(committed)
        self._chats.run(leased, self._reservation)
