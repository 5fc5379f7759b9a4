"""The leases of a worker: renewed in the background, and ended by its own clock if that fails too long."""

from __future__ import annotations

import asyncio
from typing import Final

import anyio
from msgspec.structs import replace

from turnwise.engine.isolation.clock import LATE_S, ROUNDING, Clock, SystemClock, sleep, wait_until
from turnwise.engine.isolation.error_texts import FailureLog
from turnwise.engine.isolation.user_code import is_the_engines
from turnwise.engine.jobs.leased_chat import NEWS_S
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.runner import Runner
from turnwise.engine.worker.running_chats import RunningChats
from turnwise.engine.worker.sweep import Sweeper
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.states.errors import StoreError
from turnwise.states.triggers import Released

AGAIN_S: Final = 0.5
"""Seconds between a failed renewal and the next."""
WAKE_S: Final = 5.0
"""Seconds in which a process that was suspended may renew its leases before it counts them as lost."""


class TickFailures:
    """Logs the failures of a worker's ticks and background tasks."""

    def __init__(self) -> None:
        self._log = FailureLog()
        self.succeeded = self._log.succeeded

    def failed(self, part: str, error: BaseException) -> None:
        """Log that a part failed: once, until it succeeds or fails differently, and once if all parts fail alike."""
        if not self._log.is_new_anywhere(part, error):
            return
        if isinstance(error, StoreError):
            logger.warning("tick_failed", problem=described(error))
        else:
            logger.exception("tick_failed", error=error)


class Leases:
    """Renews the leases of one worker. Its clock is the machine's, even where a test advances the engine's."""

    def __init__(
        self,
        runtime: Runtime,
        chats: RunningChats,
        sweeper: Sweeper,
        failures: TickFailures,
        own_clock: Clock | None = None,
    ) -> None:
        self._runtime = runtime
        self._chats = chats
        self._slots = chats.slots
        self._sweeper = sweeper
        self._failures = failures
        self._own_clock = own_clock or SystemClock()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Renew the leases, and end those that could not be renewed in time."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_expired)
            while True:
                began_at = self._runtime.clock.monotonic()
                pause = self._runtime.settings.renew_every if await self._try_to_renew() else AGAIN_S
                await wait_until(self._wake, self._runtime.clock, began_at + pause)
                self._wake = asyncio.Event()

    async def _try_to_renew(self) -> bool:
        try:
            renewed = await self._renew()
        except BaseException as error:
            if is_the_engines(error):
                raise
            self._sweeper.trust.doubt_outage()
            self._failures.failed("renew", error)
            return False
        self._failures.succeeded("renew")
        return renewed

    async def _renew(self) -> bool:
        """Renew all leases; return whether all of those held here are renewed."""
        clock, runners = self._own_clock, self._slots.runners
        asked_at = clock.monotonic()
        held = await self._runtime.store.renew(self._runtime.worker_id, self._runtime.settings.lease)
        if clock.monotonic() - asked_at > NEWS_S:
            self._sweeper.trust.doubt_outage()
        not_run = {chat_id for chat_id in held if chat_id not in runners and not self._slots.awaits(chat_id)}
        left_out = False
        for chat_id, runner in [*runners.items()]:
            if held.get(chat_id) == runner.leased.token:
                runner.leased.renewed_at = asked_at
                continue
            seen = await self._chats.look(runner)
            if not seen and chat_id not in held:
                runner.observe(replace(runner.leased.facts, lease=None))
            left_out |= not runner.leased.lost and runner.leased.renewed_at < asked_at
        for chat_id in not_run:  # their runners gave up while the store was out of reach
            await self._sweeper.change(chat_id, Released(token=held[chat_id]))
        return not left_out

    async def _end_expired(self) -> None:
        """End each lease that another worker may have taken meanwhile.

        A process that was suspended first tries to renew: most likely no worker has taken its chats.
        """
        clock = self._own_clock
        while True:
            due = min(map(self._expiry, self._slots.runners.values()), default=self._expiry(None))
            if not await self._is_on_time(due):
                self._wake.set()
                if not await self._is_on_time(clock.monotonic() + WAKE_S):
                    continue
            for runner in [*self._slots.runners.values()]:
                if self._expiry(runner) <= clock.monotonic() + ROUNDING and not runner.leased.ended:
                    runner.run_out()

    async def _is_on_time(self, due: float) -> bool:
        """Wait until a time; return whether it is not much later by then."""
        await sleep(self._own_clock, due - self._own_clock.monotonic())
        return self._own_clock.monotonic() <= due + LATE_S

    def _expiry(self, runner: Runner | None) -> float:
        """Return the expiry of a lease by this machine's clock: after it other workers claim the chat."""
        settings, now = self._runtime.settings, self._own_clock.monotonic()
        renewed_at = now if runner is None or runner.leased.ended else runner.leased.renewed_at
        return renewed_at + settings.lease + settings.poll_interval
