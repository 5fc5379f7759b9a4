"""Changes to chats in SQLite, in transactions that the group commit begins and commits.

Most are decided before the transaction, on where this process knows the chats to stand: the statement proves that a
chat stands there still, or writes nothing, so that the lock on the file is held for SQL only. Claims, repairs and
erasures are decided inside, and so is a change that has met another process's.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.chat_cache import ChatCache, SkippedChats
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
    erasing,
)
from turnwise.persistence.event_rows import rows_of
from turnwise.persistence.protocol import Committed, Permission, Plan, Runs
from turnwise.persistence.rows import micros_in, micros_of, numbered
from turnwise.persistence.shares import Candidate, Shares
from turnwise.persistence.sql import raw_rows
from turnwise.persistence.sql.budgets import funds_of, store_funds
from turnwise.persistence.sql.lists import claim_fairly
from turnwise.persistence.sql.reads import ChatReads
from turnwise.persistence.sql.tombstones import missing
from turnwise.persistence.sqlite.database import SQL, SQLiteDatabase, run_sync
from turnwise.persistence.sqlite.write_rows import (
    BudgetFound,
    contradiction,
    insert,
    insert_events_if_unchanged,
    update,
)
from turnwise.persistence.stored_chat import is_count, is_hash
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.errors import ChatExists, ChatUnreadable, StaleLease
from turnwise.states.events import Event, PartEvent

Submit = Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]
"""Does a piece of work inside a transaction and returns its result once that is committed."""


class OptimisticCommits:
    """Commits what was decided on the cached standings of chats. Only one task at a time may change a chat."""

    def __init__(self, now: Callable[[], datetime], cache: ChatCache, submit: Submit) -> None:
        self._now = now
        self._cache = cache
        self._submit = submit

    async def create(
        self, chat_id: str, plan: Plan, parent: tuple[str, int] | None = None, *, unchanged: bool = False
    ) -> Committed:
        at = self._now()
        blank = blank_chat(chat_id, at)
        decisions = tuple(plan(blank.facts, at))
        if not decisions:
            return blank.without_decisions
        commit = commit_of(blank, decisions, ())

        def store(connection: sqlite3.Connection) -> Commit:
            insert(commit, parent, SQLiteDatabase(connection, self._now), unchanged=unchanged)
            return commit

        def store_on_budgets(connection: sqlite3.Connection) -> Commit:
            db = SQLiteDatabase(connection, self._now)
            funds = run_sync(funds_of(db, decisions[-1].facts, at))
            funded = commit_of(blank, decisions_on(blank, plan, funds), (), funds=funds)
            insert(funded, parent, db, unchanged=unchanged)
            return funded

        stored: Commit
        try:
            stored = await self._submit(store)
        except BudgetFound:
            stored = await self._submit(store_on_budgets)
        self._cache.put(stored.after)
        return stored.committed

    async def change(self, chat_id: str, plan: Plan, shown: Sequence[PartEvent]) -> Committed | None:
        """Change a chat without reading it; return `None` if it has to be read after all."""
        cached = self._cache.get(chat_id)
        if cached is None or cached.budgeted:
            return None
        commit = commit_on_cached(cached, plan, shown, self._now())
        if commit is None or not await self._submit(partial(update, commit, if_unchanged=True)):
            return None
        self._cache.put(commit.after)
        return commit.committed

    async def append_events(
        self, chat_id: str, held: RequiredLease, shown: Sequence[Event]
    ) -> tuple[Event, ...] | None:
        """Store events of a running job; return `None` if the chat has to be read after all."""
        cached = self._cache.get(chat_id)
        if cached is None or not shown:
            return None
        before = cached.facts.last_seq
        events = numbered(shown, chat_id=chat_id, after=before, at=self._now())
        rows = rows_of(events)
        if not await self._submit(partial(insert_events_if_unchanged, chat_id, rows, before, held)):
            return None
        self._cache.move(chat_id, events[-1].seq)
        return events


class SQLiteTransactions:
    """Changes chats and caches where they stand. Its methods belong to the connection's own thread."""

    def __init__(self, now: Callable[[], datetime], cache: ChatCache) -> None:
        self._now = now
        self._cache = cache
        self._skipped = SkippedChats()

    def change(self, connection: sqlite3.Connection, chat_id: str, plan: Plan, shown: Sequence[PartEvent]) -> Committed:
        db = self._database(connection)
        current = self._current(db, chat_id)
        funds = run_sync(funds_of(db, current.facts, current.at)) if current.budgeted else None
        decided = decide(current, plan, funds)

        async def store() -> Committed:
            return self._store(db, decided, shown)

        return run_sync(raw_rows.read_or_blame(db, chat_id, store))

    def repair(self, connection: sqlite3.Connection, chat_id: str, plan: Plan) -> Committed:
        db = self._database(connection)
        return self._store(db, run_sync(raw_rows.repaired(db, chat_id, plan)))

    def claim(self, connection: sqlite3.Connection, plan: Plan, runs: Runs, limit: int) -> list[Committed]:
        claimed: list[Committed] = []
        after: Sequence[int] = (0, 0)
        while len(claimed) < limit:
            page = _claimable(connection, runs, after, limit - len(claimed))
            if not page:
                break
            for since, number, chat_id, version in page:
                after = since, number
                committed = self._claim_one(connection, chat_id, version, plan)
                if committed is not None:
                    claimed.append(committed)
        return claimed

    def claim_fairly(
        self, connection: sqlite3.Connection, plan: Plan, runs: Runs, limit: int, shares: Shares
    ) -> list[Committed]:
        async def take(picked: Sequence[Candidate]) -> list[Committed]:
            made = (self._claim_one(connection, one.id, one.version, plan) for one in picked)
            return [committed for committed in made if committed is not None]

        claimed, db = self.claim(connection, plan, {}, limit), self._database(connection)
        return claimed + run_sync(claim_fairly(db, take, shares, runs, limit - len(claimed)))

    def _claim_one(self, connection: sqlite3.Connection, chat_id: str, version: object, plan: Plan) -> Committed | None:
        if self._skipped.skips(chat_id, version):
            return None
        connection.execute("SAVEPOINT claim")
        try:
            committed = self.change(connection, chat_id, plan, ())
        except Exception as error:
            if not connection.in_transaction:  # SQLite has rolled back the whole transaction, other claims included
                raise
            connection.execute("ROLLBACK TO claim")
            self._skipped.note("claim_refused", chat_id, error, version=version)
            committed = None
        else:
            self._skipped.forget(chat_id)
        connection.execute("RELEASE claim")
        return committed if committed is not None and committed.decisions else None

    def append_events(
        self, connection: sqlite3.Connection, chat_id: str, held: RequiredLease, shown: Sequence[Event]
    ) -> tuple[Event, ...]:
        row = connection.execute(SQL["held"], (chat_id,)).fetchone()
        if row is None:
            raise run_sync(missing(self._database(connection), chat_id))
        found_state, event_seq, found_token, found_worker = row
        if not held.is_so(found_token, found_worker, found_state):
            raise StaleLease(chat_id, held.token, found_token)
        if not is_count(event_seq):
            raise _no_count("chats.event_seq", chat_id)
        if not shown:
            return ()
        events = numbered(shown, chat_id=chat_id, after=event_seq, at=self._now())
        insert_events_if_unchanged(chat_id, rows_of(events), event_seq, held, connection)
        self._cache.move(chat_id, events[-1].seq)
        return events

    def import_chat(self, connection: sqlite3.Connection, chat: WholeChat, plan: Plan) -> Committed:
        db = self._database(connection)
        try:
            decided = run_sync(raw_rows.imported(db, chat, plan, raw_rows.tables_in))
        except sqlite3.IntegrityError as error:
            raise (
                ChatExists(chat.chat_id) if "chats.id" in str(error) else contradiction(chat.chat_id, error)
            ) from error
        return self._store(db, decided)

    def delete(self, connection: sqlite3.Connection, chat_id: str, permit: Permission, actor: str) -> Tombstone:
        tombstone = run_sync(raw_rows.delete(self._database(connection), chat_id, permit, actor))
        self._cache.forget(chat_id)
        return tombstone

    def renew(self, connection: sqlite3.Connection, worker: str, seconds: float) -> Mapping[str, int]:
        """Prolong a worker's leases; cut short every lease that became too long because the clock was set back."""
        now, lasts = micros_of(self._now()), micros_in(timedelta(seconds=seconds))
        connection.execute(SQL["cut_short"], {"now": now})
        return dict(connection.execute(SQL["renew"], (now + lasts, lasts, worker)).fetchall())

    def _database(self, connection: sqlite3.Connection) -> SQLiteDatabase:
        return SQLiteDatabase(connection, self._now)

    def _current(self, db: SQLiteDatabase, chat_id: str) -> CachedChat:
        row = db.connection.execute(SQL["current"], (chat_id,)).fetchone()
        if row is None:
            raise run_sync(missing(db, chat_id))
        version, state, event_seq, head, token, body, budgeted = row
        if not is_count(event_seq):
            raise _no_count("chats.event_seq", chat_id)
        if not is_hash(head):
            raise ChatUnreadable("chats.head", "the hash of an audit record belongs here", chat_id=chat_id)
        cached = self._cache.get(chat_id)
        if cached is not None and (cached.head, *cached.mark) == (head, version, state, token, body):
            facts = cached.facts.with_last_seq(event_seq)
        else:
            facts = run_sync(ChatReads(db, chat_id).facts())
        return CachedChat(facts, head, self._now(), body, bool(budgeted))

    def _store(self, db: SQLiteDatabase, decided: Decided, shown: Sequence[PartEvent] = ()) -> Committed:
        current, decisions, funds = decided
        if not decisions:
            return current.without_decisions
        restated = run_sync(raw_rows.wipe_all(db, current.facts.chat_id, decisions))
        commit = commit_of(current, decisions, shown, restated=restated, funds=funds)
        update(commit, db.connection)
        run_sync(store_funds(db, commit.funds))
        if erasing(decisions):
            self._cache.forget(commit.chat_id)
        else:
            self._cache.put(commit.after)
        return commit.committed


def _claimable(
    connection: sqlite3.Connection, runs: Runs, after: Sequence[int], limit: int
) -> list[tuple[int, int, str, object]]:
    """Return the chats that want a worker which runs these, longest waiting first: when, number, id, version."""
    rows = connection.execute(SQL["unsettled"], (*after, limit)).fetchall()
    for agent, tools in runs.items():
        rows += connection.execute(SQL["pending"], (agent, *after, json.dumps([*tools]), limit))
    return sorted(rows, key=_as_sqlite_sorts)[:limit]


def _as_sqlite_sorts(row: tuple[Any, int, str, object]) -> tuple[int, Any, int]:
    """Return a sort key that orders chats as SQLite does: a time that is garbled may be text, or bytes."""
    since, number, *_ = row
    return (isinstance(since, str) + 2 * isinstance(since, bytes), since, number)


def _no_count(column: str, chat_id: str) -> ChatUnreadable:
    return ChatUnreadable(column, "a count belongs here", chat_id=chat_id)
