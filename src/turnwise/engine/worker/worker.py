"""The worker: claims chats, renews their leases, expires leases and deadlines, and prunes old parts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial

import anyio
from msgspec.structs import replace

from turnwise.engine.isolation.clock import ROUNDING, SystemClock, wait_until
from turnwise.engine.isolation.tasks import finish
from turnwise.engine.isolation.user_code import is_the_engines
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.prompt.context import View
from turnwise.engine.subagents.subagents import Subagents
from turnwise.engine.transactions.chat_writer import Change
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.leases import Leases
from turnwise.engine.worker.runner import Runner
from turnwise.engine.worker.slots import Reserved, Slots
from turnwise.engine.worker.sweep import Sweeper
from turnwise.engine.worker.titles import Titles
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.persistence.protocol import Committed
from turnwise.states import triggers as t
from turnwise.states.decide import job_of
from turnwise.states.errors import StoreError
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Claimed

CLAIMS_PER_TICK = 10
PRUNE_LIMIT = 200
"""The most parts to delete in one transaction, and chats to check for them."""
PRUNE_PAUSE = 0.1
"""Seconds between two such transactions while there is more to delete."""
PRUNE_ROUNDS = 24
"""How often all chats are checked within the time for which parts are kept."""
FILES_PAUSE = 60.0
"""Seconds, at least, between two looks for files that nobody refers to: they are made with a sweep."""
LET_GO_S = 4.0
"""Seconds in which a worker that stops lets its chats go."""
VIEWS_KEPT = 200
"""Chats at rest whose history a worker keeps in memory, the latest ones."""

NEVER = float("inf")


class Worker:
    """Runs up to `max_running` chats of a store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._places = Slots(self._settings.max_running)
        self._views: OrderedDict[str, tuple[int, View]] = OrderedDict()
        """With the version of the chat that each was kept at: another commit of that version shows that it is void."""
        self._wake = asyncio.Event()
        self._backlog = True
        self._doing: str
        """The part of the tick that is running."""
        self._troubles: dict[str, str] = {}
        """The problem of each part that failed the last time."""
        self._look_at = runtime.clock.monotonic()
        """When to look again for subagents that nobody waits for, and for chats that were deleted."""
        self._sweep_at = runtime.clock.monotonic()
        self._prune_at = runtime.clock.monotonic() if self._settings.keep_parts is not None else NEVER
        self._pruned_after = ""
        self._files_at = runtime.clock.monotonic() + FILES_PAUSE
        self._titles = Titles(runtime)
        self._subagents = Subagents(runtime, self.act)
        self._sweeper = Sweeper(runtime, self.act, runs_here=self._runs_here)
        self._leases = Leases(
            runtime,
            self._places,
            own_clock=SystemClock(),
            look=self._look,
            release=self._sweeper.change,
            failed=partial(self._tell_or_forget, "renew"),
            out_of_reach=self._sweeper.doubt_outage,
        )

    # What the engine asks of it

    async def act(self, chat_id: str, *changes: Change, actor: str) -> Committed:
        """Change a chat in one transaction, and run it here if it then wants a worker.

        A caller's cancellation takes effect only afterwards: subscribers are told, and the chat is run.
        """
        return await finish(self._act(chat_id, changes, actor))

    async def _act(self, chat_id: str, changes: Sequence[Change], actor: str) -> Committed:
        # The commit may give the chat to this worker. Until it is adopted its place is taken: no claim fills it, `stop`
        # waits for it, and `Leases` does not release its lease for want of a runner.
        with self._places.reserve(min(1, self._room()), chat_id) as reserved:
            begin = partial(self._runtime.begin, claims=reserved.places > 0)
            asked_at = self._runtime.clock.monotonic()
            committed = await self._runtime.writer.change(chat_id, *changes, begin, actor=actor)
            self._adopt(committed, reserved, asked_at)
        return committed

    def attempt_of(self, chat_id: str) -> HeldAttempt | None:
        """Return the attempt that this worker runs for a chat; `None` if it runs none."""
        runner = self._places.runners.get(chat_id)
        return None if runner is None else runner.leased.attempt

    def observe(self, facts: Facts) -> None:
        """Take note of what this process committed."""
        if self._views.get(facts.chat_id, (0,))[0] >= facts.version:
            del self._views[facts.chat_id]
        self._places.hear(facts.chat_id, facts.version)
        runner = self._places.runners.get(facts.chat_id)
        if runner is not None:
            runner.observe(facts)
        if facts.state is ChatState.pending or (facts.lease is None and not facts.settled):
            self.wake()
        self._subagents.observe(facts)

    def forget(self, chat_id: str) -> None:
        """Forget a chat that was deleted; if it runs here, let nothing more be done."""
        self._views.pop(chat_id, None)
        self._runtime.system_prompts.forget(chat_id)
        runner = self._places.runners.get(chat_id)
        if runner is not None:
            runner.observe(replace(runner.leased.facts, lease=None))

    def wake(self) -> None:
        """Look for chats that want a worker now, without waiting for the next poll."""
        self._backlog = True
        self._wake.set()

    async def hint(self, chat_id: str | None) -> None:
        """Take a hint that another process may have changed this chat, or some chat."""
        self._places.hear(chat_id)
        if chat_id is not None:
            self._views.pop(chat_id, None)
        for each in [*self._places.runners] if chat_id is None else [chat_id]:
            runner = self._places.runners.get(each)
            if runner is not None:
                await self._look(each, runner)
        self.wake()

    # Its life

    async def run(self) -> None:
        """Renew leases for ever; beside that sweep, claim and prune when due, and wait for notices in between."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._leases.run)
            await self._tick_for_ever()

    async def _tick_for_ever(self) -> None:
        while True:
            try:
                await self._tick()
            except BaseException as error:
                if is_the_engines(error):
                    raise
                self._sweeper.doubt_outage()
                self._tell(self._doing, error)  # if the worker ended, so would all its chats
                self._backlog = self._backlog and isinstance(error, StoreError)
            if not (self._backlog and self._room() > 0):
                await wait_until(self._wake, self._runtime.clock, min(self._look_at, self._sweep_at, self._prune_at))
            self._wake = asyncio.Event()

    async def stop(self) -> None:
        """Claim nothing more, give running jobs and titles their grace, then let their chats go."""
        self._runtime.stopping = True
        with anyio.move_on_after(self._settings.shutdown_grace):
            await self._all_done(let_go=False)
            await self._titles.done()
            await self._subagents.done()
        self._runtime.store.end_calls_within(LET_GO_S)  # of a database that is out of reach no chat is let go
        await self._all_done(let_go=True)

    async def _all_done(self, *, let_go: bool) -> None:
        """Wait for the runners, and for commits under way: they may still bring a claimed chat."""
        while self._places.taken:
            if let_go:
                for runner in self._places.runners.values():
                    runner.let_go()
            await self._places.one_left()

    async def _run(self, runner: Runner, reserved: Reserved) -> None:
        try:
            if reserved.has_heard_more(runner.leased.facts):  # it may be interrupted by now
                with suppress(StoreError):  # the job will ask it, too
                    await self._look(runner.leased.chat_id, runner)
            await runner.run()
        finally:
            if self._places.leave(runner):
                self._runtime.observers.running(len(self._places.runners))
                self._keep_view(runner.leased)
            if self._backlog:
                self._wake.set()

    async def _tick(self) -> None:
        now = self._runtime.clock.monotonic() + ROUNDING
        if now >= self._look_at:
            self._look_at = now + self._settings.renew_every
            for runner in [*self._places.runners.values()]:
                self._stop_if_unwanted(runner)
            await self._do("stop unwanted subagents", self._subagents.stop_unwanted())
            known = [*dict.fromkeys((*self._views, *self._runtime.system_prompts))]
            await self._do("forget deleted chats", self._forget_deleted(known))
        if now >= self._sweep_at:
            self._sweep_at = now + self._settings.poll_interval
            await self._do("sweep", self._sweep())
            if now >= self._files_at and self._sweeper.trusts_the_time():
                self._files_at = NEVER
                self._runtime.tasks.start_soon(self._sweep_files, now + FILES_PAUSE)
            self._backlog = True
        if self._backlog:
            await self._do("claim", self._claim())
        if now >= self._prune_at:
            await self._do("prune", self._prune(now))

    async def _do(self, part: str, work: Awaitable[None]) -> None:
        self._doing = part
        await work
        self._troubles.pop(part, None)

    async def _sweep_files(self, again_at: float) -> None:
        """Look for files that nobody refers to. No tick waits for that: where they are may be slow, or away."""
        try:
            await self._runtime.files.sweep()
        except Exception as error:  # noqa: BLE001 - the next look may find it back
            self._tell("files", error)
        else:
            self._troubles.pop("files", None)
        finally:
            self._files_at = again_at

    def _tell_or_forget(self, part: str, error: BaseException | None) -> None:
        if error is None:
            self._troubles.pop(part, None)
        else:
            self._tell(part, error)

    def _tell(self, part: str, error: BaseException) -> None:
        """Log that a part of a tick, or what runs beside it, failed: once, until it succeeds or fails differently."""
        problem = described(error)
        is_repeated = problem in self._troubles.values()  # a store that is out of reach fails them all
        self._troubles[part] = problem
        if not is_repeated and isinstance(error, StoreError):
            logger.warning("tick_failed", problem=problem)
        elif not is_repeated:
            logger.exception("tick_failed", error=error)

    async def _sweep(self) -> None:
        """Sweep, and again in the next tick while there is more."""
        if await self._sweeper.sweep():
            self._sweep_at = self._runtime.clock.monotonic()
        await self._subagents.sweep()
        if self._runtime.observers.every:
            waiting = await self._runtime.store.waiting_since()
            at = waiting.at or self._runtime.clock.now()
            self._runtime.observers.waiting(
                {agent: max((at - began).total_seconds(), 0.0) for agent, began in waiting.since.items()}
            )

    async def _look(self, chat_id: str, runner: Runner) -> bool:
        """Show a runner where its chat stands; return whether that could be read."""
        known = runner.leased.facts
        facts = await self._sweeper.facts(chat_id)
        if facts is not None:
            runner.observe(facts, known=known)
        else:
            await self._forget_deleted([chat_id])
        return facts is not None

    async def _forget_deleted(self, chat_ids: Sequence[str]) -> None:
        """Forget those of the chats that another process may have deleted."""
        for chat_id in await self._runtime.store.deleted(chat_ids):
            self.forget(chat_id)

    async def _claim(self) -> None:
        limit = min(CLAIMS_PER_TICK, self._room())
        if limit < 1:
            return
        self._backlog = False
        take, begin = Claimed(worker=self._runtime.worker_id), partial(self._runtime.begin, claims=True)
        runs, actor = self._runtime.agents.runs, self._runtime.actor
        with self._places.reserve(limit) as reserved:
            asked_at = self._runtime.clock.monotonic()
            claimed = await self._runtime.writer.claim(take, begin, actor=actor, runs=runs, limit=limit)
            for committed in claimed:
                self._adopt(committed, reserved, asked_at)
        self._backlog = self._backlog or len(claimed) == limit

    def _runs_here(self, chat_id: str, token: int) -> bool:
        """Return whether this worker itself runs the chat under the token."""
        runner = self._places.runners.get(chat_id)
        return runner is not None and runner.leased.token == token

    async def _prune(self, now: float) -> None:
        """Delete a few old parts; a round over all chats is done bit by bit."""
        if not self._sweeper.trusts_the_time():
            self._prune_at = now + self._settings.poll_interval
            return
        keep = self._settings.keep_parts or 0
        self._prune_at = now + PRUNE_PAUSE
        pruned = await self._runtime.store.prune(keep=keep, after=self._pruned_after, limit=PRUNE_LIMIT)
        self._pruned_after = pruned.after or ""
        if pruned.after is None:
            self._prune_at = now + max(keep / PRUNE_ROUNDS, self._settings.poll_interval)

    def _adopt(self, committed: Committed, reserved: Reserved, asked_at: float) -> None:
        """Run a chat that a transaction, begun at `asked_at`, gave to this worker, unless its turn ended with it."""
        before, facts = committed.before, committed.facts
        if facts.lease is None or facts.lease.worker != self._runtime.worker_id or job_of(facts) is None:
            for decision in committed.decisions:
                if decision.trigger is t.Claimed and decision.ended is not None:
                    self._titles.turn_ended(decision)
            return
        if facts.lease == before.lease:
            return  # another worker holds the lease and runs the chat
        leased = LeasedChat(
            self._runtime,
            before,
            facts.lease.token,
            view=self._view_of(before),
            turn_ended=self._titles.turn_ended,
            stop_subagent=self._subagents.stop,
            asked_at=asked_at,
        )
        leased.take(committed)
        if (other := self._places.runners.get(facts.chat_id)) is not None:
            other.end()
        runner = Runner(leased)
        self._places.runners[facts.chat_id] = runner
        self._runtime.observers.running(len(self._places.runners))
        self._runtime.tasks.start_soon(self._run, runner, reserved)
        self._stop_if_unwanted(runner)

    def _stop_if_unwanted(self, runner: Runner) -> None:
        """Stop a subagent for which nobody waits any more."""
        if runner.leased.facts.profile.parent_call is not None:
            self._runtime.tasks.start_soon(self._subagents.stop_if_unwanted, runner.leased.facts)

    def _view_of(self, facts: Facts) -> View | None:
        if facts.history.length == 0:
            return View([], facts.history_version)
        _, view = self._views.pop(facts.chat_id, (0, None))
        return view if view is not None and view.history_version == facts.history_version else None

    def _keep_view(self, leased: LeasedChat) -> None:
        """Keep the view of a chat at rest: its next turn is likely to run here, too."""
        if leased.view is not None and not leased.ended:
            self._views[leased.chat_id] = leased.facts.version, leased.view
            if len(self._views) > VIEWS_KEPT:
                self._views.popitem(last=False)

    def _room(self) -> int:
        """Return how many more chats may run here: none once the worker is about to stop."""
        return 0 if self._runtime.stopping else self._places.free
