"""Who waits for whom on a PostgreSQL server, for tests that hold somebody up."""

from __future__ import annotations

import anyio
import asyncpg


async def blocked(beside: asyncpg.Connection) -> None:
    """Return when somebody waits for this connection.

    Inside a transaction `pg_stat_activity` shows only who was connected when it was first read; `pg_locks` is current.
    """
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    with anyio.fail_after(60):
        while not await beside.fetchval(waiting):
            await anyio.lowlevel.checkpoint()


async def somebody_waits(beside: asyncpg.Connection) -> None:
    """Return when somebody waits for anybody else on the server."""
    with anyio.fail_after(60):
        while not await beside.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await anyio.lowlevel.checkpoint()
