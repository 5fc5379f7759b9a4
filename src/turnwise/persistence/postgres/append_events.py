"""Stores the events of running jobs in PostgreSQL, those of many chats in one statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import asyncpg
import msgspec

from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.commit import RequiredLease
from turnwise.persistence.event_rows import rows_of
from turnwise.persistence.postgres.database import SQL, DatabaseClock, PostgresDatabase
from turnwise.persistence.postgres.group_commit import NoResponse, StatementBatches
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.write_rows import event_rows
from turnwise.persistence.rows import numbered
from turnwise.persistence.sql.tombstones import missing
from turnwise.states.errors import ChatUnreadable, StaleLease
from turnwise.states.events import Event
from turnwise.states.values.digests import canonical_row

_HELD: Final = "SELECT id, state, token, worker, event_seq, clock_timestamp() AS at FROM chats WHERE id = ANY ($1)"
_TABLE_OF: Final = "SELECT relname FROM pg_class WHERE oid = pg_partition_root(to_regclass(quote_ident($1)))"
LOCK: Final = "SELECT FROM chats WHERE id = $1 FOR UPDATE"


class _JobRows(NamedTuple):
    """Events of one job as rows, by the parameters of the statement `append_events`."""

    job: dict[str, Any]
    events: list[dict[str, Any]]
    partial_events: list[dict[str, Any]]


class _JobEvents(msgspec.Struct, frozen=True):
    """Events that a running job wants to show."""

    chat_id: str
    held: RequiredLease
    events: Sequence[Event]
    sent: list[int] = msgspec.field(default_factory=list)
    """For each try that got no answer: the number of the chat's last event before it."""

    def stored(self, after: int, at: datetime) -> tuple[Event, ...]:
        """Return the events with chat, time, and numbers from `after` + 1 on."""
        return numbered(self.events, chat_id=self.chat_id, after=after, at=at)

    def entry(self, after: int, at: datetime) -> tuple[_JobRows, tuple[Event, ...]]:
        """Return the rows that store the events after the number `after`, and the events as they are stored."""
        events = self.stored(after, at)
        job: dict[str, Any] = {"chat_id": self.chat_id, "state": self.held.state.value, "found_event_seq": after}
        job |= {"token": self.held.token, "worker": self.held.worker}
        job |= {"event_seq": after + len(events), "at": at.isoformat()}
        return _JobRows(job, *event_rows(self.chat_id, rows_of(events))), events


async def contradiction(connection: asyncpg.Connection, chat_id: str, error: asyncpg.PostgresError) -> ChatUnreadable:
    """Return the error for a chat whose next row the server refuses: it exists already, or cannot be stored at all."""
    place, problem = "chats", f"what is stored contradicts the next row ({str(error).splitlines()[0]})"
    if error.table_name:
        table = await table_of(connection, error)
        place = f"{table}.{str(error.constraint_name).replace(error.table_name, table, 1)}"
    return ChatUnreadable(place, problem, chat_id=chat_id)


async def table_of(connection: asyncpg.Connection, error: asyncpg.PostgresError) -> str:
    """Return the table whose row the server refused, where it names a partition. No transaction may be open."""
    return str(await connection.fetchval(_TABLE_OF, error.table_name) or error.table_name)


class EventAppender:
    """Stores events without a transition. Calls `notify` with the id of every chat that got some."""

    def __init__(self, pool: Pool, *, clock: DatabaseClock, cache: ChatCache, notify: Callable[[str], None]) -> None:
        self._pool = pool
        self._clock = clock
        self._cache = cache
        self._notify = notify
        self._entries = StatementBatches(pool, self._store)
        self._holders = StatementBatches(pool, _holders, reads=True)

    async def close(self) -> None:
        await self._entries.close()
        await self._holders.close()

    async def add(self, chat_id: str, held: RequiredLease, events: Sequence[Event]) -> tuple[Event, ...]:
        job_events = _JobEvents(chat_id, held, events)
        if not events:
            if not await self._is_held(job_events):
                await self._pool.run(lambda connection: _held(connection, job_events, _HELD))
            return ()
        # One after another: the next events of the chat are numbered after these.
        async with self._cache.lock(chat_id):
            stored = await self._together(job_events)
            if stored is None:
                stored = await self._pool.write(partial(self._alone, job_events), lost=bool(job_events.sent))
            self._cache.move(chat_id, stored[-1].seq)
        self._notify(chat_id)
        return stored

    async def _is_held(self, job_events: _JobEvents) -> bool:
        """Whether the job still holds the chat, asked together with others; false also if that failed."""
        try:
            row = await self._holders.add(job_events.chat_id)
        except NoResponse:
            return False
        return row is not None and job_events.held.is_so(row["token"], row["worker"], row["state"])

    async def _together(self, job_events: _JobEvents) -> tuple[Event, ...] | None:
        """Store events in a batch, after the cached number; `None` if that failed, or it is unknown whether it did."""
        cached, at = self._cache.get(job_events.chat_id), self._clock.now()
        if cached is None or at is None:
            return None
        entry, stored = job_events.entry(cached.facts.last_seq, at)
        try:
            return stored if await self._entries.add(entry) else None
        except NoResponse as failure:
            if failure.lost:
                job_events.sent.append(cached.facts.last_seq)
            return None

    async def _alone(self, job_events: _JobEvents, connection: asyncpg.Connection) -> tuple[Event, ...]:
        """Store events in a transaction of their own, unless one of the unanswered tries has stored them."""
        try:
            async with connection.transaction():
                return await self._store_alone(job_events, connection)
        except asyncpg.UniqueViolationError as error:
            raise await contradiction(connection, job_events.chat_id, error) from error

    async def _store_alone(self, job_events: _JobEvents, connection: asyncpg.Connection) -> tuple[Event, ...]:
        if job_events.sent:
            # The lost session may still be running its statement, and holds the row's lock until that has ended.
            await connection.execute(LOCK, job_events.chat_id)
        # Each try was numbered after another event, and any of them may have been stored.
        for after in job_events.sent:
            first = rows_of(job_events.stored(after, datetime.now(UTC)))[0]
            at = await connection.fetchval(SQL["same_event"], job_events.chat_id, first.seq, first.kind, first.body)
            if at is not None:
                return job_events.stored(after, at)
        row = await _held(connection, job_events, f"{_HELD} FOR UPDATE")
        # Before it is stored: if the answer is lost the pool calls again, and must find this try among the others.
        job_events.sent.append(row["event_seq"])
        entry, stored = job_events.entry(row["event_seq"], self._clock.override or row["at"])
        await self._store(connection, [entry])
        return stored

    async def _store(self, connection: asyncpg.Connection, entries: Sequence[_JobRows]) -> list[bool]:
        """Store entries of different chats; return for each whether its chat still stood where it must."""
        events = canonical_row([row for entry in entries for row in entry.events]).decode()
        partial = canonical_row([row for entry in entries for row in entry.partial_events]).decode()
        jobs = canonical_row([entry.job for entry in entries]).decode()
        rows = await self._clock.timed(connection.fetch(SQL["append_events"], jobs, events, partial))
        stored = {row["id"] for row in rows}
        return [entry.job["chat_id"] in stored for entry in entries]


async def _holders(connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[asyncpg.Record | None]:
    rows = {row["id"]: row for row in await connection.fetch(_HELD, chat_ids)}
    return [rows.get(chat_id) for chat_id in chat_ids]


async def _held(connection: asyncpg.Connection, job_events: _JobEvents, question: str) -> asyncpg.Record:
    """Return the chat's row if the job still holds the chat.

    Raises:
        ChatNotFound: there is no such chat.
        StaleLease: the chat is in another state, or held under another token.
    """
    row, held = await connection.fetchrow(question, [job_events.chat_id]), job_events.held
    if row is None:
        raise await missing(PostgresDatabase(connection, None), job_events.chat_id)
    if not held.is_so(row["token"], row["worker"], row["state"]):
        raise StaleLease(job_events.chat_id, held.token, row["token"])
    return row
