"""The worker: claims chats, renews their leases, expires leases and deadlines, and prunes old parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

import anyio

from turnwise.engine.config.results import budget_of
from turnwise.engine.isolation.clock import ROUNDING, wait_until
from turnwise.engine.isolation.user_code import is_the_engines
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.leases import Leases, TickFailures
from turnwise.engine.worker.reporter import Reporter
from turnwise.engine.worker.running_chats import RunningChats
from turnwise.engine.worker.slots import Slots
from turnwise.engine.worker.sweep import Sweeper
from turnwise.states.errors import StoreError
from turnwise.states.triggers import Claimed

CLAIMS_PER_TICK: Final = 10
MEASURED_BUDGETS: Final = 1000
PRUNE_LIMIT: Final = 200
"""The most parts to delete in one transaction, and chats to check for them."""
PRUNE_PAUSE: Final = 0.1
"""Seconds between two such transactions while there is more to delete."""
PRUNE_ROUNDS: Final = 24
"""Rounds over all chats within the time for which parts are stored."""
FILES_PAUSE: Final = 60.0
"""Seconds, at least, between two searches for unreferenced files: they are made with a sweep."""
LET_GO_S: Final = 4.0
"""Seconds in which a worker that stops releases its chats."""

NEVER: Final = float("inf")


class Worker:
    """Runs up to `max_running` chats of a store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._slots = Slots(self._settings.max_running)
        self._sweeper = Sweeper(runtime, self._slots)
        self.chats = RunningChats(runtime, self._slots, self._sweeper)
        self._failures = TickFailures()
        self._reporter = Reporter(runtime)
        self._leases = Leases(runtime, self.chats, self._sweeper, self._failures)
        self._part: str
        """The part of the tick that is running."""
        self._look_at = runtime.clock.monotonic()
        """When to look again for unwanted subagents, and for chats that were deleted."""
        self._sweep_at = runtime.clock.monotonic()
        self._prune_at = runtime.clock.monotonic() if self._settings.keep_parts is not None else NEVER
        self._pruned_after = ""
        self._files_at = runtime.clock.monotonic() + FILES_PAUSE
        runtime.writer.register(self.chats)

    # What the engine asks of it

    def attempt_of(self, chat_id: str) -> HeldAttempt | None:
        """Return the attempt that this worker runs for a chat; `None` if it runs none."""
        runner = self._slots.runners.get(chat_id)
        return None if runner is None else runner.leased.attempt

    # Its life

    async def run(self) -> None:
        """Renew leases; beside that sweep, claim and prune when due, and wait for notifications in between."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._leases.run)
            await self._tick_for_ever()

    async def _tick_for_ever(self) -> None:
        chats = self.chats
        while True:
            try:
                await self._tick()
            except BaseException as error:
                if is_the_engines(error):
                    raise
                self._sweeper.trust.doubt_outage()
                self._failures.failed(self._part, error)  # if the worker ended, so would all its chats
                self._runtime.chats_wait &= isinstance(error, StoreError)
            if not (self._runtime.chats_wait and chats.room > 0):
                await wait_until(chats.wake, self._runtime.clock, min(self._look_at, self._sweep_at, self._prune_at))
            chats.wake = asyncio.Event()

    async def stop(self) -> None:
        """Claim nothing more, give running jobs and titles their grace, then release their chats."""
        self._runtime.stopping = True
        with anyio.move_on_after(self._settings.shutdown_grace):
            await self._all_done(let_go=False)
            await self.chats.titles.done()
            await self.chats.subagents.done()
        self._runtime.store.end_calls_within(LET_GO_S)  # the database may be out of reach
        await self._all_done(let_go=True)
        await self._reporter.stop()

    async def _all_done(self, *, let_go: bool) -> None:
        """Wait for the runners, and for commits in flight, which may still bring a claimed chat."""
        while self._slots.in_use:
            if let_go:
                for runner in self._slots.runners.values():
                    runner.let_go()
            await self._slots.one_left()

    async def _tick(self) -> None:
        now = self._runtime.clock.monotonic() + ROUNDING
        if now >= self._look_at:
            self._look_at = now + self._settings.renew_every
            self.chats.stop_unwanted()
            await self._do("stop unwanted subagents", self.chats.subagents.stop_unwanted())
            await self._do("forget deleted chats", self.chats.forget_deleted())
        if now >= self._sweep_at:
            self._sweep_at = now + self._settings.poll_interval
            await self._do("sweep", self._sweep())
            if now >= self._files_at and self._sweeper.trust.trusts_the_time():
                self._files_at = NEVER
                self._runtime.tasks.start_soon(self._sweep_files, now + FILES_PAUSE)
            self._runtime.chats_wait = True
        if self._runtime.chats_wait:
            await self._do("claim", self._claim())
        if now >= self._prune_at:
            await self._do("prune", self._prune(now))

    async def _do(self, part: str, work: Awaitable[None]) -> None:
        self._part = part
        await work
        self._failures.succeeded(part)

    async def _sweep_files(self, again_at: float) -> None:
        """Look for unreferenced files. No tick waits for the file store, which may be slow or away."""
        try:
            await self._runtime.files.sweep()
        except Exception as error:  # noqa: BLE001 - the next look may find it back
            self._failures.failed("files", error)
        else:
            self._failures.succeeded("files")
        finally:
            self._files_at = again_at

    async def _sweep(self) -> None:
        """Sweep, and again in the next tick while there is more."""
        if await self._sweeper.sweep():
            self._sweep_at = self._runtime.clock.monotonic()
        await self.chats.subagents.sweep()
        self._reporter.tick()
        if self._runtime.observers.every:
            waiting = await self._runtime.store.waiting_since()
            at = waiting.at or self._runtime.clock.now()
            self._runtime.observers.waiting(
                {agent: max((at - began).total_seconds(), 0.0) for agent, began in waiting.since.items()}
            )
            stored = await self._runtime.store.budgets(keys=None, limit=MEASURED_BUDGETS)
            self._runtime.observers.budgets([budget_of(one) for one in stored])

    async def _claim(self) -> None:
        runtime, limit = self._runtime, min(CLAIMS_PER_TICK, self.chats.room)
        if limit < 1:
            return
        runtime.chats_wait = False
        claimed = await runtime.writer.claim(
            Claimed(worker=runtime.worker_id),
            actor=runtime.actor,
            runs=runtime.agents.runs,
            limit=limit,
            shares=runtime.shares,
        )
        runtime.chats_wait |= len(claimed) == limit

    async def _prune(self, now: float) -> None:
        """Delete a few old parts; a round over all chats is done bit by bit."""
        if not self._sweeper.trust.trusts_the_time():
            self._prune_at = now + self._settings.poll_interval
            return
        keep = self._settings.keep_parts or 0
        self._prune_at = now + PRUNE_PAUSE
        pruned = await self._runtime.store.prune(keep=keep, after=self._pruned_after, limit=PRUNE_LIMIT)
        self._pruned_after = pruned.after or ""
        if pruned.after is None:
            self._prune_at = now + max(keep / PRUNE_ROUNDS, self._settings.poll_interval)
