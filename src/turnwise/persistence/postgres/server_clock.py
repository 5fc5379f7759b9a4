"""The database's clock, estimated between two statements that return its time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from turnwise.persistence.postgres.database import PostgresDatabase

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux has a monotonic clock that goes on while the machine sleeps, as the server's does."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def passed() -> float:
    """Return the seconds of this machine's monotonic clock: of the one that counts sleep, where there is such a one."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class DatabaseClock:
    """Estimates the database's time; in a test, returns what `now` returns.

    The server read its clock at some moment between question and answer. That bounds how far its clock is from this
    machine's monotonic one; each answer may narrow or move the bounds.

    Where the machine has no clock that counts its sleep, the first commit after one may have a time of before it.
    """

    def __init__(self, now: Callable[[], datetime] | None) -> None:
        self._now = now
        self._ahead: float | None = None
        """Seconds by which the database's clock is ahead of the monotonic one."""

    def observe(self, at: datetime, *, asked_at: float) -> None:
        """Use an answer: the server's clock said `at` some time after `asked_at`, in seconds of `passed`."""
        seconds = (at - _EPOCH).total_seconds()
        least, most = seconds - passed(), seconds - asked_at
        self._ahead = least if self._ahead is None else min(max(self._ahead, least), most)

    async def timed(self, answer: Awaitable[list[asyncpg.Record]]) -> list[asyncpg.Record]:
        """Return the rows of an answer, and use the time that each has in its column `at`."""
        asked_at = passed()
        rows = await answer
        for row in rows:
            self.observe(row["at"], asked_at=asked_at)
        return rows

    def now(self) -> datetime | None:
        """Return the time; `None` before the first answer."""
        if self._now is not None:
            return self._now()
        return None if self._ahead is None else _EPOCH + timedelta(seconds=passed() + self._ahead)

    def database(self, connection: asyncpg.Connection) -> PostgresDatabase:
        """Return a connection as a database with this clock."""
        return PostgresDatabase(connection, self._now)

    @property
    def handed_in(self) -> datetime | None:
        """The time of the test's clock; `None` without one."""
        return self._now() if self._now is not None else None
