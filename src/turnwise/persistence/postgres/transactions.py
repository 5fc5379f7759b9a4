"""The transactions that change chats in PostgreSQL.

A change reads the chat, lets the plan decide, and writes with one statement. The statement compares the chat with what
was read and does nothing if it differs, so no lock is held while Python runs. A change that loses this race too often
locks the row first; so does every claim.

A chat under a lease is not even read: the plan decides on the cached chat, and the statement makes the same
comparison. These commits, new chats, and the events of running jobs share statements with those of other chats.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import asyncpg

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.chat_cache import SkippedChats
from turnwise.persistence.commit import (
    CachedChat,
    Commit,
    Decided,
    RequiredLease,
    blank_chat,
    commit_of,
    commit_on_cached,
    decide,
    decisions_on,
)
from turnwise.persistence.postgres.append_events import LOCK, EventAppender, contradiction
from turnwise.persistence.postgres.commits import Commits, SerializationConflict, find_stored
from turnwise.persistence.postgres.database import SQL, DatabaseClock, current_rows, stored_in
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.session import BEFORE_ALL
from turnwise.persistence.postgres.timeouts import RENEW_S
from turnwise.persistence.postgres.write_rows import imported_tables
from turnwise.persistence.protocol import Committed, Permission, Plan, Runs
from turnwise.persistence.shares import Candidate, Shares
from turnwise.persistence.sql import raw_rows
from turnwise.persistence.sql.budgets import funds_of
from turnwise.persistence.sql.lists import claim_fairly
from turnwise.persistence.sql.store import SQLStore
from turnwise.persistence.sql.tombstones import check_not_deleted, check_parent, missing
from turnwise.persistence.stored_chat import facts_of, is_count, is_hash
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.errors import ChatUnreadable, TurnwiseError
from turnwise.states.events import Event, PartEvent
from turnwise.states.names import ChatState

_OPTIMISTIC_ATTEMPTS: Final = 3
"""The tries of a change without a lock, before it takes one."""

_ROW_ERRORS: Final = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError, asyncpg.ProgramLimitExceededError)
"""Errors caused by one chat's rows; other commits in the same batch are valid."""

_StoreClaims = Callable[[asyncpg.Connection, list[Commit]], Awaitable[list[Commit]]]
_Take = Callable[[Sequence[str]], Awaitable[list[Committed]]]
"""Claims those of the chats that are still free."""


class PostgresTransactions(SQLStore):
    """Changes chats and updates the cache. Calls `notify` with the id of every changed chat."""

    def __init__(self, pool: Pool, *, now: Callable[[], datetime] | None, notify: Callable[[str], None]) -> None:
        super().__init__()
        self._pool = pool
        self._clock = DatabaseClock(now)
        self._commits = Commits(pool, clock=self._clock, cache=self._cache, notify=notify)
        self._skipped = SkippedChats()
        self._notify = notify
        self._appender = EventAppender(pool, clock=self._clock, cache=self._cache, notify=notify)

    async def _settle(self) -> None:
        """Wait until all that was accepted is stored."""
        await self._commits.close()
        await self._appender.close()

    async def create(
        self, chat_id: str, plan: Plan, *, parent: tuple[str, int] | None = None, unchanged: bool = False
    ) -> Committed:
        async def work(connection: asyncpg.Connection, unconfirmed: list[Commit]) -> list[Committed]:
            db = self._clock.database(connection)
            at = await db.now()
            blank = blank_chat(chat_id, at)
            decisions = tuple(plan(blank.facts, at))
            if not decisions:
                return [blank.without_decisions]

            async def store(decided: Decided) -> list[Committed]:
                if parent is not None:
                    await check_parent(db, *parent, unchanged=unchanged)
                await db.execute("blank", chat_id=chat_id, since=at, head=GENESIS)
                # Not before: a deletion under way holds the id up until it has committed.
                await check_not_deleted(db, chat_id)
                return [await self._commits.commit(connection, decided, unconfirmed)]

            try:
                async with connection.transaction():
                    return await store(Decided(blank, decisions, None))
            except SerializationConflict:  # a new chat conflicts only if its owner has a budget
                async with connection.transaction():
                    funds = await funds_of(db, decisions[-1].facts, at)
                    return await store(decide(blank, plan, funds))

        async with self._cache.lock(chat_id):
            unconfirmed: list[Commit] = []
            created = None if parent is not None else await self._create_batched(chat_id, plan, unconfirmed)
            return created or (await self._commits.run(chat_id, work, unconfirmed))[0]

    async def _create_batched(self, chat_id: str, plan: Plan, unconfirmed: list[Commit]) -> Committed | None:
        """Create a chat together with others; return `None` if it must be created alone."""
        at = self._clock.now()
        if at is None:
            return None
        blank = blank_chat(chat_id, at)
        decisions = tuple(plan(blank.facts, at))
        if not decisions:
            return blank.without_decisions
        return await self._commits.add(self._commits.creations, commit_of(blank, decisions, ()), unconfirmed)

    async def change(self, chat_id: str, plan: Plan, *, shown: Sequence[PartEvent] = ()) -> Committed:
        async def attempt(connection: asyncpg.Connection, unconfirmed: list[Commit]) -> list[Committed]:
            current = await self._current(connection, chat_id)
            if not current.budgeted:
                return [await self._commits.commit(connection, decide(current, plan, None), unconfirmed, shown)]
            async with connection.transaction():
                funds = await funds_of(self._clock.database(connection), current.facts, current.at)
                return [await self._commits.commit(connection, decide(current, plan, funds), unconfirmed, shown)]

        async def work(connection: asyncpg.Connection, unconfirmed: list[Commit]) -> list[Committed]:
            for _ in range(_OPTIMISTIC_ATTEMPTS):
                try:
                    return await attempt(connection, unconfirmed)
                except SerializationConflict:
                    # Perhaps by our own earlier try, whose answer was lost.
                    if stored := await find_stored(connection, unconfirmed):
                        return stored
            async with connection.transaction():
                await connection.execute(LOCK, chat_id)
                return await attempt(connection, unconfirmed)

        async with self._cache.lock(chat_id):
            unconfirmed: list[Commit] = []
            return (
                await self._change_cached(chat_id, plan, shown, unconfirmed)
                or (await self._commits.run(chat_id, work, unconfirmed))[0]
            )

    async def _change_cached(
        self, chat_id: str, plan: Plan, shown: Sequence[PartEvent], unconfirmed: list[Commit]
    ) -> Committed | None:
        """Change a leased chat without reading it; return `None` if it must be read."""
        cached, at = self._cache.get(chat_id), self._clock.now()
        # Without a lease any process may have changed the chat since: the commit would lose the race, and be made anew.
        if cached is None or cached.facts.lease is None or cached.budgeted or at is None:
            return None
        commit = commit_on_cached(cached, plan, shown, at)
        return None if commit is None else await self._commits.add(self._commits.batches, commit, unconfirmed)

    async def repair(self, chat_id: str, plan: Plan) -> Committed:
        async def work(connection: asyncpg.Connection, unconfirmed: list[Commit]) -> list[Committed]:
            async with connection.transaction():
                # First: the rows of all tables are read one after another, and must be those of one moment.
                await connection.execute(LOCK, chat_id)
                decided = await raw_rows.repaired(self._clock.database(connection), chat_id, plan)
                return [await self._commits.commit(connection, decided, unconfirmed)]

        async with self._cache.lock(chat_id):
            return (await self._commits.run(chat_id, work))[0]

    async def import_chat(self, chat: WholeChat, plan: Plan) -> Committed:
        async def work(connection: asyncpg.Connection, unconfirmed: list[Commit]) -> list[Committed]:
            async with connection.transaction():
                decided = await raw_rows.imported(self._clock.database(connection), chat, plan, imported_tables)
                return [await self._commits.commit(connection, decided, unconfirmed)]

        async with self._cache.lock(chat.chat_id):
            return (await self._commits.run(chat.chat_id, work))[0]

    async def delete(self, chat_id: str, permit: Permission, *, actor: str) -> Tombstone:
        async def work(connection: asyncpg.Connection) -> Tombstone:
            async with connection.transaction():
                return await raw_rows.delete(self._clock.database(connection), chat_id, permit, actor)

        async with self._cache.lock(chat_id):
            tombstone = await self._pool.write(work)
            self._cache.forget(chat_id)  # evict: deleted content must not stay in memory
        self._notify(chat_id)
        return tombstone

    async def claim(self, plan: Plan, *, runs: Runs, limit: int, shares: Shares | None = None) -> list[Committed]:
        async def claims(
            connection: asyncpg.Connection, unconfirmed: list[Commit], store: _StoreClaims
        ) -> list[Committed]:
            async def take(chat_ids: Sequence[str]) -> list[Committed]:
                # The locks hold until the claims are committed: what is found to be free here stays so.
                locked = dict(await connection.fetch(SQL["locked"], chat_ids))
                free = [(chat_id, locked[chat_id]) for chat_id in chat_ids if chat_id in locked]
                due = {chat_id: version for chat_id, version in free if not self._skipped.skips(chat_id, version)}
                budgeted: list[CachedChat] = []
                made = await store(connection, await self._claims(connection, due, plan, budgeted))
                for current in budgeted:
                    made += await self._claim_on_budgets(connection, current, plan)
                unconfirmed.extend(made)
                return [commit.committed for commit in made]

            async with connection.transaction():
                if shares is None:
                    return await _claim_pages(connection, take, runs, limit)
                if shares.caps:
                    await connection.execute(SQL["one_claim"])
                claimed, db = await _claim_pages(connection, take, {}, limit), self._clock.database(connection)

                def take_picked(picked: Sequence[Candidate]) -> Awaitable[list[Committed]]:
                    return take([one.id for one in picked])

                return claimed + await claim_fairly(db, take_picked, shares, runs, limit - len(claimed))

        async def work(connection: asyncpg.Connection, unconfirmed: list[Commit]) -> list[Committed]:
            before = len(unconfirmed)
            try:
                return await claims(connection, unconfirmed, self._store_batch)
            except _ROW_ERRORS:
                # One chat broke the statement that they share: store each alone, so that the others are claimed.
                del unconfirmed[before:]
                return await claims(connection, unconfirmed, self._store_individually)

        return await self._commits.run("", work)

    async def _claims(
        self, connection: asyncpg.Connection, locked: Mapping[str, int], plan: Plan, budgeted: list[CachedChat]
    ) -> list[Commit]:
        """Return the commits that a plan decides on for chats, at these versions, whose rows are locked.

        Those that spend budgets are added to `budgeted` instead.
        """
        made: list[Commit] = []
        rows = {row["id"]: row for row in await self._rows(connection, [*locked])} if locked else {}
        for chat_id, version in locked.items():
            try:
                current = self._to_cached(rows[chat_id])
                if current.budgeted:
                    budgeted.append(current)
                    continue
                decisions = tuple(plan(current.facts, current.at))
                if decisions:
                    made.append(commit_of(current, decisions, ()))
            except Exception as error:  # noqa: BLE001 - a fault of one chat must not reach the others
                self._skipped.note("claim_refused", chat_id, error, version=version)
            else:
                self._skipped.forget(chat_id)
        return made

    async def _claim_on_budgets(self, connection: asyncpg.Connection, current: CachedChat, plan: Plan) -> list[Commit]:
        """Claim a chat that spends budgets: alone, for the one before it may have spent the same."""
        # Claims that lock the budgets of several owners, each in its own order, could deadlock.
        await connection.execute(SQL["one_claim"])
        try:
            async with connection.transaction():
                funds = await funds_of(self._clock.database(connection), current.facts, current.at)
                decisions = decisions_on(current, plan, funds)
                if not decisions:
                    return []
                commit = commit_of(current, decisions, (), funds=funds)
                await self._commits.store(connection, [commit])
        except (TurnwiseError, *_ROW_ERRORS) as error:
            self._skipped.note("claim_refused", current.facts.chat_id, error, version=current.facts.version)
            return []
        self._skipped.forget(current.facts.chat_id)
        return [commit]

    async def _store_batch(self, connection: asyncpg.Connection, made: list[Commit]) -> list[Commit]:
        if made:
            await self._commits.store(connection, made)
        return made

    async def _store_individually(self, connection: asyncpg.Connection, made: list[Commit]) -> list[Commit]:
        """Store each claim alone; return the stored ones."""
        stored: list[Commit] = []
        for commit in made:
            try:
                async with connection.transaction():
                    await self._commits.store(connection, [commit])
            except _ROW_ERRORS as error:
                unreadable = await contradiction(connection, commit.chat_id, error)
                version = commit.committed.before.version
                self._skipped.note("claim_refused", commit.chat_id, unreadable, version=version)
            else:
                stored.append(commit)
        return stored

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event], *, worker: str | None = None
    ) -> tuple[Event, ...]:
        return await self._appender.add(chat_id, RequiredLease(token, worker, state), shown)

    async def renew(self, worker: str, seconds: float) -> Mapping[str, int]:
        given = (self._clock.override, seconds, worker)
        renewing = self._pool.write(lambda db: db.fetch(SQL["renew"], *given, timeout=RENEW_S))
        rows = await self._clock.timed(renewing)
        return {row["id"]: row["token"] for row in rows}

    async def _current(self, connection: asyncpg.Connection, chat_id: str) -> CachedChat:
        rows = await self._rows(connection, [chat_id])
        if not rows:
            raise await missing(self._clock.database(connection), chat_id)
        return self._to_cached(rows[0])

    async def _rows(self, connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[asyncpg.Record]:
        return await self._clock.timed(current_rows(connection, chat_ids))

    def _to_cached(self, row: asyncpg.Record) -> CachedChat:
        if not is_hash(row["head"]):
            raise ChatUnreadable("chats.head", "the hash of an audit record belongs here", chat_id=row["id"])
        cached = self._cache.get(row["id"])
        # Only events were appended: reuse the parsed facts.
        mark = (row["head"], row["version"], row["state"], row["token"], row["facts"])
        if cached is not None and (cached.head, *cached.mark) == mark and is_count(row["event_seq"]):
            facts = cached.facts.with_last_seq(row["event_seq"])
        else:
            facts = facts_of(stored_in(row))
        return CachedChat(facts, row["head"], self._clock.override or row["at"], row["facts"], row["budgeted"])


async def _claim_pages(connection: asyncpg.Connection, take: _Take, runs: Runs, limit: int) -> list[Committed]:
    """Claim chats, longest waiting first."""
    claimed: list[Committed] = []
    page: tuple[datetime | str, int] = (BEFORE_ALL, 0)
    having = ([*runs], [" ".join(tools) for tools in runs.values()])
    while len(claimed) < limit:
        claimable = await connection.fetch(SQL["claimable"], *having, *page, limit - len(claimed))
        if not claimable:
            break
        # Chats that another has locked, or that are refused, stay claimable: the next page begins after them.
        page = (claimable[-1]["since"], claimable[-1]["number"])
        claimed += await take([row["id"] for row in claimable])
    return claimed
