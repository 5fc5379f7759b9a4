"""Workers: their reports in the background, to the store and to observers, and the list made of these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from time import perf_counter
from typing import Final

import anyio

from turnwise.engine.config.results import WorkerInfo
from turnwise.engine.isolation.error_texts import FailureLog
from turnwise.engine.observers.observer import ChatFigures
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.identity import is_dead, place_of
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.persistence.fleet import HeldChat, SeenWorker, WorkerReport
from turnwise.persistence.protocol import ChatStore

MEASURE_EVERY_S: Final = 15.0
"""Seconds, at least, between two counts of all chats."""
SHARE: Final = 100
"""Counting takes at most one part in so many of the time: very many chats are counted less often."""
FORGET_S: Final = 2.0
"""Seconds in which a worker that stops may delete its report."""


class Reporter:
    """Reports of one worker. Each is made in the background: no chat waits for it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._started_at = runtime.clock.now()
        self._report_at = self._measure_at = runtime.clock.monotonic()
        self._is_running = False
        self._failures = FailureLog()

    def tick(self) -> None:
        now = self._runtime.clock.monotonic()
        if not self._is_running and now >= min(self._report_at, self._measure_at):
            self._is_running = True
            self._runtime.tasks.start_soon(self._make_due, now)

    async def stop(self) -> None:
        with anyio.move_on_after(FORGET_S):
            await self._try("forget", self._forget)

    async def _make_due(self, now: float) -> None:
        try:
            if now >= self._report_at:
                self._report_at = now + self._runtime.settings.lease
                await self._try("report", self._report)
            if now >= self._measure_at:
                self._measure_at = now + MEASURE_EVERY_S
                if self._runtime.observers.every:
                    await self._try("measure", self._measure)
        finally:
            self._is_running = False

    async def _try(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - chats go on without
            if self._failures.is_new(part, error):
                logger.warning("worker_report_failed", part=part, problem=described(error))
        else:
            self._failures.succeeded(part)

    async def _report(self) -> None:
        runtime = self._runtime
        if runtime.stopping:
            return
        report = WorkerReport(
            started_at=self._started_at,
            agents={agent: tuple(sorted(tools)) for agent, tools in runtime.agents.runs.items()},
            max_running=runtime.settings.max_running,
            lease=runtime.settings.lease,
        )
        await runtime.store.report_worker(runtime.worker_id, report)

    async def _forget(self) -> None:
        await self._runtime.store.forget_worker(self._runtime.worker_id)

    async def _measure(self) -> None:
        began = perf_counter()
        store = self._runtime.store
        states, oldest = await store.count_states(), await store.oldest()
        at = oldest.at or self._runtime.clock.now()
        self._measure_at = max(self._measure_at, self._runtime.clock.monotonic() + SHARE * (perf_counter() - began))
        figures = ChatFigures(
            states={state: count.open for state, count in states.items()},
            archived=sum(count.archived for count in states.values()),
            oldest_actions=_ages(oldest.actions, at),
            oldest_work=_ages(oldest.work, at),
        )
        self._runtime.observers.measured(figures)


def _ages(since: Mapping[str, datetime], at: datetime) -> dict[str, float]:
    return {name: max((at - began).total_seconds(), 0.0) for name, began in since.items()}


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
