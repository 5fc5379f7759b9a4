"""Leases of a worker: renewed during other waits, and ended by its own clock if renewal fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from support.runtimes import runtime_of
from support.stores import Delegate, stored_at
from turnwise import Settings, StoreError
from turnwise.engine.worker.leases import AGAIN_S, Leases
from turnwise.engine.worker.slots import Slots
from turnwise.testing import ManualClock

SETTINGS = Settings(lease=30, renew_every=10, poll_interval=1)


class Renewing(Delegate):
    """A store that holds a chat, and renews as the test decides."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.away = False
        self.locked = False
        self.asked = 0

    async def renew(self, worker: str, seconds: float) -> Mapping[str, int]:
        assert (worker, seconds) == ("w", SETTINGS.lease)
        self.asked += 1
        if self.away:
            raise StoreError("away", passing=True)
        return {} if self.locked else {"chat": 1}


class Held(SimpleNamespace):
    """The lease part of a chat's runner."""

    def run_out(self) -> None:
        self.leased.ended = True


@asynccontextmanager
async def renewing(database: Path) -> AsyncIterator[tuple[Renewing, ManualClock, Any, list[str]]]:
    """Renew the lease of one chat, by a clock that the test moves."""
    clock, log = ManualClock(), list[str]()
    store, slots = Renewing(stored_at(database, clock)), Slots(1)
    leased = SimpleNamespace(token=1, renewed_at=0.0, ended=False, lost=False)
    slots.runners["chat"] = cast("Any", Held(leased=leased))

    async def look(_runner: object) -> bool:
        return True

    leases = Leases(
        runtime_of(store, clock, settings=SETTINGS, worker_id="w"),
        cast("Any", SimpleNamespace(slots=slots, look=look)),
        cast("Any", SimpleNamespace(trust=SimpleNamespace(doubt_outage=lambda: log.append("out of reach")))),
        cast("Any", SimpleNamespace(failed=lambda *_: log.append("failed"), succeeded=lambda _: log.append("renewed"))),
        clock,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leases.run)
        await anyio.wait_all_tasks_blocked()
        yield store, clock, leased, log
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("seconds", "ends"), [(20, False), (30, False), (31, True)])
async def test_lease_ends_by_its_own_clock(database: Path, seconds: float, *, ends: bool) -> None:
    """Once other workers may claim the chat; an outage is over when a renewal succeeds."""
    async with renewing(database) as (store, clock, leased, log):
        store.away = True
        for _ in range(int(seconds / AGAIN_S)):
            await clock.advance(AGAIN_S)
        assert leased.ended is ends
        assert {*log[1:]} == {"failed", "out of reach"}
        store.away = False
        await clock.advance(AGAIN_S)
        assert (log[-1], leased.ended) == ("renewed", ends)


async def test_process_that_stood_still_renews_first(database: Path) -> None:
    async with renewing(database) as (store, clock, leased, _):
        await clock.advance(600)
        assert (leased.renewed_at, leased.ended) == (600, False)
        store.away = True
        await clock.advance(600)
        assert not leased.ended
        await clock.advance(5)
        assert leased.ended


async def test_locked_chat_is_renewed_soon(database: Path) -> None:
    """A client that was disconnected may still lock its row."""
    async with renewing(database) as (store, clock, leased, _):
        store.locked = True
        await clock.advance(10)
        assert (store.asked, leased.renewed_at) == (2, 0)
        store.locked = False
        await clock.advance(AGAIN_S)
        assert (store.asked, leased.renewed_at) == (3, 10.5)
        await clock.advance(9)
        assert store.asked == 3
