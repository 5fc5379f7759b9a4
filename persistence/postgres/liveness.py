"""Who lives: a worker's session holds an advisory lock, which the server takes back the moment its process dies."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from functools import partial
from time import monotonic
from typing import Final

import anyio
import asyncpg

from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.write_rows import statement
from turnwise.states.errors import StoreError

GRACE: Final = 1.0
"""Seconds for which a session must be gone: a connection that was cut is made again within that time."""
SETTLED: Final = 5.0
"""Seconds after a start of the server, or a loss of this process's own session, in which nobody is judged."""

_LOCK: Final = "SELECT pg_advisory_lock_shared(hashtextextended(current_schema() || ' ' || $1, 0))"
_ATTEND: Final = statement("attend", ("worker",))
_GONE: Final = statement("gone", ("workers", "settled"))


class Liveness:
    """Lets others see that the workers of this process live, and sees who of theirs has died."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._workers: list[str] = []
        self._missed: dict[str, float] = {}
        """Workers without a session, and since when."""
        self._judges_from = 0.0

    def attend(self, worker: str) -> None:
        """Let sessions that begin from now on be the worker's."""
        self._workers.append(worker)

    async def began(self, connection: asyncpg.Connection) -> None:
        """Take in that a session has begun: for as long as it lasts, others see that the workers of this process live.

        The lock is shared, or a session that the server has not yet seen the end of would keep out the next one.
        """
        for worker in self._workers:
            await connection.fetchval(_LOCK, worker)
            await connection.execute(_ATTEND, worker)

    def ended(self) -> None:
        """Take in that this process's own session was lost: those of others may have been, too."""
        self._judges_from = monotonic() + SETTLED
        self._missed.clear()

    async def leave(self) -> None:
        """Take the names of the workers away: they have not died, they have stopped."""
        workers, self._workers = self._workers, []
        if workers:
            with anyio.move_on_after(GRACE), contextlib.suppress(StoreError):
                await self._pool.run(lambda on: on.execute("DELETE FROM workers WHERE worker = ANY ($1)", workers))

    async def gone(self, workers: Collection[str]) -> frozenset[str]:
        """Return those of the workers that had a session and have been without one for a while."""
        now = monotonic()
        if not workers or now < self._judges_from:
            return frozenset()
        rows = await self._pool.run(partial(_fetch, sorted(workers)))
        self._missed = {row["worker"]: self._missed.get(row["worker"], now) for row in rows}
        return frozenset(worker for worker, since in self._missed.items() if now - since >= GRACE)


async def _fetch(workers: list[str], connection: asyncpg.Connection) -> list[asyncpg.Record]:
    found: list[asyncpg.Record] = await connection.fetch(_GONE, workers, SETTLED)
    return found
