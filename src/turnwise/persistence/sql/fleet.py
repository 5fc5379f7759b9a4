"""Figures of all chats, and the workers of a store, as both stores read and write them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from turnwise.persistence.fleet import Fleet, HeldChat, LedgerPage, Oldest, SeenWorker, StateCount, WorkerReport
from turnwise.persistence.rows import PARSE_ERRORS, USAGE, Body
from turnwise.persistence.sql.database import SQLDatabase
from turnwise.states.errors import ChatUnreadable
from turnwise.states.writes import RecordUsage

_REPORTS: Final = Body[WorkerReport]("worker_reports.body", WorkerReport)
_FORGET_AFTER: Final = timedelta(days=1)
"""Reports of workers that were not seen for so long are deleted."""


async def count_states(db: SQLDatabase, *, owner: str | None = None) -> dict[str, StateCount]:
    rows = await (db.fetch("chats_by_state") if owner is None else db.fetch("chats_by_state_of", owner=owner))
    return {str(state): StateCount(number - archived, archived) for state, number, archived in rows}


async def oldest(db: SQLDatabase) -> Oldest:
    actions = [(whose, since) for whose, since in await db.fetch("oldest_actions") if since is not None]
    work = await db.fetch("oldest_work")
    return Oldest(_times(db, actions), _times(db, work), await db.now() if db.remote else None)


async def report_worker(db: SQLDatabase, worker: str, report: WorkerReport, /) -> None:
    now = await db.now()
    await db.execute("forget_workers", worker="", until=now - _FORGET_AFTER)
    await db.execute("report_worker", worker=worker, body=_REPORTS.dump(report), now=now)


async def forget_worker(db: SQLDatabase, worker: str, /) -> None:
    await db.execute("forget_workers", worker=worker, until=await db.now() - _FORGET_AFTER)


async def fleet(db: SQLDatabase, *, limit: int) -> Fleet:
    workers: list[SeenWorker] = []
    for name, body, seen in await db.fetch("worker_reports"):
        try:
            workers.append(SeenWorker(name, _REPORTS.load(body, ""), db.time_in(seen)))
        except (ChatUnreadable, *PARSE_ERRORS):
            continue
    held = [
        HeldChat(
            chat_id=chat_id, worker=str(worker), state=state, agent=agent, owner=owner, since=db.time_or_none(since)
        )
        for chat_id, worker, state, agent, owner, since in await db.fetch("held_chats", limit=limit)
    ]
    return Fleet(workers, held, await db.now())


async def usage_page(db: SQLDatabase, *, after: tuple[int, int, int], owner: str | None, limit: int) -> LedgerPage:
    chat, version, number = after
    rows = await db.fetch("usage_page", chat=chat, version=version, number=number, owner=owner, limit=limit)
    entries: list[tuple[str | None, RecordUsage]] = []
    for *_, whose, body in rows:
        try:
            entries.append((whose, USAGE.load(body, "")))
        except (ChatUnreadable, *PARSE_ERRORS):
            continue
    follows = tuple(rows[-1][:3]) if len(rows) == limit else None
    return LedgerPage(entries, follows)


def _times(db: SQLDatabase, rows: Any) -> dict[str, datetime]:
    read = {str(name): db.time_or_none(since) for name, since in rows}
    return {name: since for name, since in read.items() if since is not None}
