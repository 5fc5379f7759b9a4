"""Which workers live: a worker's session holds an advisory lock, which the server drops when the process dies."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection
from time import monotonic
from typing import Final

import anyio
import asyncpg

from turnwise.persistence.postgres.database import SQL
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.timeouts import RETRY_S
from turnwise.states.errors import StoreError

GRACE: Final = 1.0
"""Seconds without a session after which a worker counts as dead: a cut connection is made again sooner than that."""
SETTLED: Final = RETRY_S
"""Seconds in which no worker is taken for dead, after the server started or a session of this process began or ended.

The same outage may have cut off the others, and their tries to connect may take that long.
"""

_LOCK: Final = "SELECT pg_advisory_lock_shared(hashtextextended(current_schema() || ' ' || $1, 0))"


class Liveness:
    """Shows other processes that the workers of this one live, and finds which of theirs have died."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._workers: list[str] = []
        self._missed: dict[str, float] = {}
        """Workers without a session: when each was first missed, by the monotonic clock."""
        self._judges_from = math.inf

    def attend(self, worker: str) -> None:
        """Count sessions that begin from now on as the worker's, too."""
        self._workers.append(worker)

    async def began(self, connection: asyncpg.Connection) -> None:
        """Take the locks of this process's workers in a new session: others see them as long as it lasts.

        The locks are shared: an exclusive one would wait for a lost session that the server has not noticed yet.
        """
        for worker in self._workers:
            await connection.fetchval(_LOCK, worker)
            await connection.execute(SQL["attend"], worker)
        self.judge_later()

    def judge_later(self) -> None:
        """Judge no worker for a while: this process had no session of its own, and the others may have none yet."""
        self._judges_from = monotonic() + SETTLED
        self._missed.clear()

    async def leave(self) -> None:
        """Remove the workers' names: they have stopped, and must not be taken for dead."""
        workers, self._workers = self._workers, []
        if workers:
            with anyio.move_on_after(GRACE), contextlib.suppress(StoreError):
                await self._pool.run(lambda db: db.execute("DELETE FROM workers WHERE worker = ANY ($1)", workers))

    async def gone(self, workers: Collection[str]) -> frozenset[str]:
        """Return those of the workers that had a session once and have had none for `GRACE` seconds."""
        now = monotonic()
        if not workers or now < self._judges_from:
            return frozenset()
        rows = await self._pool.run(lambda db: db.fetch(SQL["gone"], sorted(workers), SETTLED))
        self._missed = {row["worker"]: self._missed.get(row["worker"], now) for row in rows}
        return frozenset(worker for worker, since in self._missed.items() if now - since >= GRACE)
