"""Lists the workers of a store, from what they report and what they hold."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from turnwise.engine.config.results import WorkerInfo
from turnwise.engine.worker.identity import is_dead, place_of
from turnwise.persistence.fleet import HeldChat, SeenWorker
from turnwise.persistence.protocol import ChatStore

_HELD: Final = 10_000
_LATE: Final = 3
"""After how many leases without a report a worker counts as dead: its loop, or the store, may be slow."""


async def list_workers(store: ChatStore) -> list[WorkerInfo]:
    """Return the workers that have reported, and those that hold chats without."""
    fleet = await store.fleet(limit=_HELD)
    held: dict[str, list[HeldChat]] = {}
    for chat in fleet.held:
        held.setdefault(chat.worker, []).append(chat)
    seen = {worker.name: worker for worker in fleet.workers}
    names = sorted(seen.keys() | held.keys())
    gone = await store.gone(names)
    alive = {name for name in seen.keys() - gone if _reports(seen[name], fleet.at) and not is_dead(name)}
    return [_worker(name, seen.get(name), held.get(name, []), is_alive=name in alive) for name in names]


def _reports(worker: SeenWorker, at: datetime) -> bool:
    return at - worker.seen_at <= timedelta(seconds=_LATE * worker.report.lease)


def _worker(name: str, seen: SeenWorker | None, chats: list[HeldChat], *, is_alive: bool) -> WorkerInfo:
    host, pid = place_of(name)
    return WorkerInfo(
        name=name,
        host=host,
        pid=pid,
        is_alive=is_alive,
        started_at=None if seen is None else seen.report.started_at,
        seen_at=None if seen is None else seen.seen_at,
        agents={} if seen is None else seen.report.agents,
        max_running=None if seen is None else seen.report.max_running,
        chats=chats,
    )
