"""Reads of many chats, their figures and workers, as both stores do them. What is unreadable of one hides no other."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from turnwise.persistence.fleet import Fleet, HeldChat, LedgerPage, Oldest, SeenWorker, StateCount, WorkerReport
from turnwise.persistence.list_filter import ListFilter
from turnwise.persistence.protocol import Committed, Runs
from turnwise.persistence.reading import Overdue, Waiting
from turnwise.persistence.rows import PARSE_ERRORS, PROFILES, USAGE, Body
from turnwise.persistence.shares import AtWork, Candidate, Counts, Lane, Shares
from turnwise.persistence.sql.database import Row, SQLDatabase
from turnwise.persistence.stored_chat import PartialRead, facts_or_rest
from turnwise.states.errors import ChatUnreadable
from turnwise.states.facts import Facts, Profile
from turnwise.states.names import OPEN_STATUSES, Answerer, ChatState
from turnwise.states.writes import RecordUsage

_NUMBER: Final = (
    "(SELECT number FROM (SELECT id, number FROM chats UNION ALL SELECT id, number FROM tombstones) AS known"
    " WHERE id = :after)"
)
_TEXTS: Final = 20
"""The most texts that a database looks for."""
_CREATED: Final = len('{"created_at":"') + 1
_SECOND: Final = len("2026-01-01T00:00:00")
_LAST: Final = "9223372036854775807"


async def chats(  # noqa: PLR0913 - the store's protocol
    db: SQLDatabase,
    /,
    *,
    state: ChatState | None,
    limit: int,
    after: str | None,
    awaiting: Answerer | None = None,
    archived: bool | None = None,
    wanted: ListFilter | None = None,
    **fields: Any,
) -> list[Facts | PartialRead]:
    filters = {**fields, "state": state and state.value}
    values = {name: value for name, value in filters.items() if value is not None}
    where = db.within([*values], _LAST if after is None else _NUMBER)
    awaits = "" if awaiting is None else f"NOT archived AND awaits IN ('{awaiting}', 'both') AND "
    if after is not None:
        values["after"] = after
    flag = "" if archived is None else "archived AND " if archived else "NOT archived AND "
    texts = {} if wanted is None else _conditions(db, wanted)
    profiles = " AND ".join(("SELECT 1 FROM profiles WHERE chat = number", *texts))
    like = f"EXISTS ({profiles}) AND " if texts else ""
    values |= {name: value for given in texts.values() for name, value in given.items()}
    rest = f"WHERE {awaits}{flag}{like}{where} LIMIT :limit"
    return [facts_or_rest(one) for one in await db.stored(rest, limit=limit, **values)]


def _conditions(db: SQLDatabase, wanted: ListFilter) -> dict[str, dict[str, str]]:
    """Return conditions on the bodies of profiles, each with its parameters: all that are wanted meet them."""
    like = "ILIKE" if db.dialect == "postgres" else "LIKE"
    conditions = {
        f"strpos(body, :text_{chr(97 + place)}) > 0": {f"text_{chr(97 + place)}": text}
        for place, text in enumerate(wanted.texts[:_TEXTS])
    }
    if wanted.words is not None:
        pattern = re.sub("[!%_]", r"!\g<0>", wanted.words)
        conditions[f"body {like} :words ESCAPE '!'"] = {"words": f"%{pattern}%"}
    if wanted.earliest is not None:
        conditions[f"substr(body, {_CREATED}, {_SECOND}) >= :earliest"] = {"earliest": wanted.earliest}
    if wanted.latest is not None:
        conditions[f"substr(body, {_CREATED}, {_SECOND}) <= :latest"] = {"latest": wanted.latest}
    return conditions


async def chat_ids(db: SQLDatabase, *, after: int, limit: int) -> list[tuple[int, str]]:
    return [(number, str(id_)) for number, id_ in await db.fetch("chat_ids", after=after, limit=limit)]


async def waiting_since(db: SQLDatabase) -> Waiting:
    waiting: dict[str, datetime] = {}
    for agent, since in await db.fetch("waiting"):
        time = db.time_or_none(since)
        if time is not None and isinstance(agent, str):
            waiting[agent] = time
    return Waiting(waiting, await db.now() if db.remote else None)


async def at_work(db: SQLDatabase) -> list[AtWork]:
    return [AtWork(*row) for row in _with_keys(await db.fetch("at_work"))]


async def claim_fairly(
    db: SQLDatabase,
    take: Callable[[Sequence[Candidate]], Awaitable[list[Committed]]],
    shares: Shares,
    runs: Runs,
    limit: int,
) -> list[Committed]:
    """Claim up to `limit` chats in turn: `take` claims those of the candidates that are still free."""
    claimed: list[Committed] = []
    seen, counts = set[int](), Counts(shares.caps, await at_work(db) if shares.caps else ())
    while len(claimed) < limit:
        picked = await _next_in_turn(db, shares, runs, counts, limit=limit - len(claimed), seen=seen)
        if not picked:
            break
        made = await take(picked)
        taken = {committed.facts.chat_id for committed in made}
        for one in picked:
            if one.id not in taken:
                counts.add(one.fair_key, one.lane, -1)
        claimed += made
    return claimed


async def _next_in_turn(
    db: SQLDatabase, shares: Shares, runs: Runs, counts: Counts, *, limit: int, seen: set[int]
) -> list[Candidate]:
    """Return chats that wait for what a worker runs, those whose turn it is, and note them as seen.

    Each costs a few steps along an index, however many wait: of the keys that come next, the chats that wait longest.
    """
    # More keys than chats to claim: `start` is read first, but its turn may come last; other keys may hold only chats
    # that were seen.
    start, depth = shares.key, limit + len(seen) + 1
    found: dict[int, Candidate] = {}
    for lane in [Lane(*row) for row in await db.fetch("lanes")]:
        if lane.agent in runs and counts.lane_is_open(lane):
            values = {**lane._asdict(), "tools": [*runs[lane.agent]], "full": counts.full_keys, "depth": depth}
            for first in dict.fromkeys((start, "")):  # to the last key, and on from the first one
                rows = _with_keys(await db.fetch("waiting_in_lane", start=first, **values))
                for key, since, number, id_, version in rows:
                    found[number] = Candidate(key, since, number, id_, version, lane)
                if len({key for key, *_ in rows}) == depth:
                    break
    picked = shares.pick((one for one in found.values() if one.number not in seen), counts, limit)
    seen.update(one.number for one in picked)
    return picked


def _with_keys(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that begin with a key. A garbled one is no text, cannot be compared, and harms only its chat."""
    return [row for row in rows if isinstance(row[0], str)]


async def awaiting_subagents(db: SQLDatabase, *, after: str, limit: int) -> list[str]:
    return await db.fetch_column("awaiting_subagents", after=after, limit=limit)


async def ids(db: SQLDatabase, *, prefix: str, limit: int, owner: str | None = None) -> list[str]:
    return await db.fetch_column("ids_of_prefix", prefix=prefix, limit=limit, owner=owner)


async def holders(db: SQLDatabase) -> frozenset[str]:
    return frozenset(worker for worker in await db.fetch_column("holders") if isinstance(worker, str))


async def overdue(db: SQLDatabase, *, limit: int) -> Overdue:
    now = await db.now()
    leases = await db.fetch("expired_leases", now=now, limit=limit)
    deadlines = await db.fetch_column("deadlines", now=now, limit=limit, open_statuses=sorted(OPEN_STATUSES))
    return Overdue(
        leases=tuple((chat_id, token) for chat_id, token, *_ in leases),
        deadlines=tuple(deadlines),
        to_wake=tuple(await db.fetch_column("to_wake", now=now, limit=limit)),
        strays=tuple(await db.fetch_column("strays", states=[*ChatState], limit=limit)),
        at=now if db.remote else None,
    )


async def rested(db: SQLDatabase, *, archived: bool, seconds: float, limit: int) -> list[str]:
    until = await db.now() - timedelta(seconds=seconds)
    return await db.fetch_column("rested", archived=archived, until=until, limit=limit)


async def forks(db: SQLDatabase, parent: str, /) -> list[str]:
    """Return the forks of a chat and the forks of those, and whose profile cannot be read: it may be one, too."""
    return [chat_id for chat_id, profile in await _naming(db, parent) if profile is None or _is_fork(parent, profile)]


async def children(db: SQLDatabase, parent: str, /) -> list[str]:
    named = [(chat_id, profile) for chat_id, profile in await _naming(db, parent) if profile is not None]
    return [chat_id for chat_id, one in named if one.parent == parent and one.forked_from is None]


async def _naming(db: SQLDatabase, parent: str) -> list[tuple[str, Profile | None]]:
    """Return the chats whose profiles may name another as parent or ancestor; `None` for one that cannot be read."""
    # This text is in the body of every such profile, and in few others.
    rows = await db.fetch("naming", text=json.dumps(parent, ensure_ascii=False))
    return [(chat_id, _read_profile(chat_id, body)) for chat_id, body in rows]


def _read_profile(chat_id: str, body: str) -> Profile | None:
    try:
        return PROFILES.load(body, chat_id)
    except ChatUnreadable:
        return None


def _is_fork(parent: str, profile: Profile) -> bool:
    return profile.forked_from is not None and parent in (profile.parent, *profile.ancestors)


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
