"""The database's clock as it is known here, between two statements that tell the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DatabaseClock:
    """Tells what the database's clock says, as far as its answers bound it; or, in a test, what `now` returns.

    A statement that tells the time was done between question and answer: that bounds how far the database's clock is
    from this machine's monotonic one, and each answer may narrow or move the bounds.
    """

    def __init__(self, now: Callable[[], datetime] | None) -> None:
        self._now = now
        self._ahead: float | None = None
        """Seconds by which the database's clock is ahead of the monotonic one."""

    def heard(self, at: datetime, *, asked: float) -> None:
        """Take in that the clock said `at`, in the answer to what was asked at that time of `time.monotonic()`."""
        seconds = (at - _EPOCH).total_seconds()
        least, most = seconds - time.monotonic(), seconds - asked
        self._ahead = least if self._ahead is None else min(max(self._ahead, least), most)

    def now(self) -> datetime | None:
        """Return the time; `None` before any was heard."""
        if self._now is not None:
            return self._now()
        return None if self._ahead is None else _EPOCH + timedelta(seconds=time.monotonic() + self._ahead)

    @property
    def handed_in(self) -> datetime | None:
        """The time of the clock that takes the database's place; `None` where none does."""
        return self._now() if self._now is not None else None
