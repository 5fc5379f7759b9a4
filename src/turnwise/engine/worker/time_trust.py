"""Trust in time: whether a clock, or the silence of other workers, may decide that something is over."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from turnwise.engine.transactions.runtime import Runtime
from turnwise.logger import logger

TRUSTED_AFTER: Final = 3600.0
"""Seconds after a step of a wall clock until it decides again what is old: what that costs cannot be undone."""


class TimeTrust:
    """Notices clocks that were set forward, and stores that were away: both make live workers look dead."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.now, self._passed = runtime.clock.now(), runtime.clock.monotonic()
        self._doubts_until = self._passed
        """Until then, by the monotonic clock, a lease that seems to have run out may belong to a live worker."""
        self._doubt_ends: float | None = None
        """When doubt about an outage is over at the latest, however often the store fails or is slow meanwhile."""
        self._distrusts_until = self._passed
        """Until then nothing is old or too late: a clock that was set forward by mistake may be set back."""
        self._store_time: tuple[datetime, float] | None = None
        """The time of the store's machine, if it is another one, and when it was asked for, by the monotonic clock."""

    @property
    def trusts_ages(self) -> bool:
        """Whether what seems old is old, as of the last look at the clocks."""
        return self._passed >= self._distrusts_until

    def trusts_leases(self) -> bool:
        """Return whether a lease that seems to have run out has, whoever holds it."""
        if self._passed < self._doubts_until:
            return False
        self._doubt_ends = None
        return True

    def trusts_the_time(self) -> bool:
        """Return whether a clock may decide what is old or too late: none was set forward within the last hour."""
        now, passed = self._runtime.clock.now(), self._runtime.clock.monotonic()
        stepped = (now - self.now).total_seconds() - (passed - self._passed)
        self.now, self._passed = now, passed
        self._doubt_after(stepped)
        return passed >= self._distrusts_until

    def compare(self, at: datetime | None, asked_at: float) -> None:
        """Note by how much more the clock of the store's machine has gone on than the monotonic one, at the least."""
        if at is not None and self._store_time is not None:
            before, asked_before = self._store_time
            self._doubt_after((at - before).total_seconds() - (self._runtime.clock.monotonic() - asked_before))
        self._store_time = None if at is None else (at, asked_at)

    def _doubt_after(self, stepped: float) -> None:
        """Doubt leases for as long as one lasts, and ages for an hour, if a clock was set forward."""
        settings, passed = self._runtime.settings, self._runtime.clock.monotonic()
        if stepped <= (settings.lease - settings.renew_every) / 2:
            return
        problem = "leases are given time to be renewed, and for an hour nothing is archived, deleted or closed by time"
        logger.warning("clock_stepped", seconds=round(stepped), problem=problem)
        self._doubts_until = max(self._doubts_until, passed + settings.lease)
        self._distrusts_until = passed + TRUSTED_AFTER

    def doubt_outage(self) -> None:
        """Doubt leases for as long as it takes to renew them: the store was away, and perhaps not only from here.

        A store that is always slow is doubted for a lease, and then taken at its word once.
        """
        now, settings = self._runtime.clock.monotonic(), self._runtime.settings
        if self._doubt_ends is None:
            self._doubt_ends = now + settings.lease + settings.renew_every
        self._doubts_until = max(self._doubts_until, min(now + settings.renew_every, self._doubt_ends))
