"""Changes to chats that are decided inside a transaction, which the group commit begins and commits.

So are claims, repairs and erasures, and a change that has met another process's. All others are decided before.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.audit.record import WriteRecord
from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.commit import CachedChat, Held, erasing
from turnwise.persistence.erasure import erases, wipe
from turnwise.persistence.imported_rows import standing_of
from turnwise.persistence.integrity.passed_over import PassedOver
from turnwise.persistence.integrity.repair import repair_of
from turnwise.persistence.protocol import Committed, Permission, Plan, Runs
from turnwise.persistence.rows import micros_in, micros_of, numbered
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.sqlite import queries, raw_rows
from turnwise.persistence.sqlite.chat_rows import rows_of_chat
from turnwise.persistence.sqlite.connection import REFUSED
from turnwise.persistence.sqlite.event_rows import rows_of
from turnwise.persistence.sqlite.held_files import let_all_go, let_others_go, take_over
from turnwise.persistence.sqlite.import_rows import insert_imported
from turnwise.persistence.sqlite.tombstones import insert_tombstone, missing, stored_tombstone
from turnwise.persistence.sqlite.write_rows import insert_events, prepared, update
from turnwise.persistence.stored_chat import is_count, is_hash, rest_of
from turnwise.persistence.tombstone import Tombstone, tombstone_of
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatUnreadable, StaleLease
from turnwise.states.events import Event, PartEvent
from turnwise.states.names import ChatState

_SQL: Final = statements_of(__name__)


class Transactions:
    """Changes chats and caches where they stand. Its methods belong to the connection's own thread."""

    def __init__(self, now: Callable[[], datetime], cache: ChatCache) -> None:
        self._now = now
        self._cache = cache
        self._passed_over = PassedOver()

    def change(self, connection: sqlite3.Connection, chat_id: str, plan: Plan, shown: Sequence[PartEvent]) -> Committed:
        """Change a chat, as `ChatStore.change` promises."""
        standing = self._standing(connection, chat_id)
        decisions = tuple(plan(standing.facts, standing.at))
        with raw_rows.blaming(connection, chat_id):
            return self._store(connection, standing, decisions, shown)

    def repair(self, connection: sqlite3.Connection, chat_id: str, plan: Plan) -> Committed:
        """Repair a chat, as `ChatStore.repair` promises."""
        at = self._now()
        repair = repair_of(chat_id, raw_rows.rows_of(connection, chat_id), at)
        decisions = tuple(plan(repair.facts, at))
        if decisions:
            raw_rows.store_repair(connection, repair, at)
        return self._store(connection, CachedChat(repair.facts, repair.head, at), decisions, ())

    def claim(self, connection: sqlite3.Connection, plan: Plan, runs: Runs, limit: int) -> list[Committed]:
        """Claim chats, as `ChatStore.claim` promises."""
        claimed: list[Committed] = []
        after: Sequence[int] = (0, 0)
        while len(claimed) < limit:
            page = _claimable(connection, runs, after, limit - len(claimed))
            if not page:
                break
            for since, number, chat_id, version in page:
                after = since, number
                committed = self._claim_one(connection, chat_id, version, plan)
                if committed is not None and committed.decisions:
                    claimed.append(committed)
        return claimed

    def _claim_one(self, connection: sqlite3.Connection, chat_id: str, version: object, plan: Plan) -> Committed | None:
        if self._passed_over.skips(chat_id, version):
            return None
        connection.execute("SAVEPOINT claim")
        try:
            committed = self.change(connection, chat_id, plan, ())
        except Exception as error:
            if not connection.in_transaction:  # SQLite has rolled back the whole transaction, other claims included
                raise
            connection.execute("ROLLBACK TO claim")
            self._passed_over.note("claim_refused", chat_id, error, version=version)
            committed = None
        else:
            self._passed_over.forget(chat_id)
        connection.execute("RELEASE claim")
        return committed

    def append_events(
        self,
        connection: sqlite3.Connection,
        chat_id: str,
        token: int,
        state: ChatState,
        shown: Sequence[Event],
        *,
        worker: str | None = None,
    ) -> tuple[Event, ...]:
        """Store events of a running job, as `ChatStore.append_events` promises."""
        row = connection.execute(_SQL["held"], (chat_id,)).fetchone()
        if row is None:
            raise missing(connection, chat_id)
        found_state, event_seq, found_token, found_worker = row
        if not Held(token, worker, state).is_so(found_token, found_worker, found_state):
            raise StaleLease(chat_id, token, found_token)
        if not is_count(event_seq):
            raise _no_count("chats.event_seq", chat_id)
        if not shown:
            return ()
        events = numbered(shown, chat_id=chat_id, after=event_seq, at=self._now())
        insert_events(rows_of(events), connection)
        connection.execute("UPDATE chats SET event_seq = ? WHERE id = ?", (events[-1].seq, chat_id))
        self._cache.move(chat_id, events[-1].seq)
        return events

    def import_chat(self, connection: sqlite3.Connection, chat: WholeChat, plan: Plan) -> Committed:
        """Take a chat in, as `ChatStore.import_chat` promises."""
        standing = standing_of(chat, self._now())
        decisions = tuple(plan(standing.facts, standing.at))
        if not decisions:
            return Committed(standing.facts, standing.facts, (), (), standing.at)
        commit = prepared(standing, decisions, (), restated=insert_imported(connection, chat))
        take_over(connection, chat.chat_id, chat.blobs, at=micros_of(standing.at))
        update(commit, connection)
        self._cache.put(commit.after)
        return commit.committed

    def delete(self, connection: sqlite3.Connection, chat_id: str, permit: Permission, actor: str) -> Tombstone:
        """Delete a chat, as `ChatStore.delete` promises."""
        tombstone = stored_tombstone(connection, chat_id)
        if tombstone is not None:
            return tombstone
        row, at = connection.execute("SELECT head FROM chats WHERE id = ?", (chat_id,)).fetchone(), self._now()
        if row is None:
            raise missing(connection, chat_id)
        rest = rest_of(chat_id, lambda: queries.stored(connection, chat_id), without=REFUSED)
        permit(rest, at)
        (records,) = connection.execute("SELECT count(*) FROM audit WHERE chat_id = ?", (chat_id,)).fetchone()
        tombstone = tombstone_of(rest, at=at, actor=actor, records=records, head=row[0])
        insert_tombstone(connection, tombstone)
        let_all_go(connection, chat_id)
        for table in raw_rows.tables_of(connection):
            connection.execute(f"DELETE FROM {table} WHERE chat_id = ?", (chat_id,))  # noqa: S608 - a name of our own
        connection.execute("DELETE FROM chats WHERE id = ?", (chat_id,))
        self._cache.forget(chat_id)
        return tombstone

    def renew(self, connection: sqlite3.Connection, worker: str, seconds: float) -> Mapping[str, int]:
        """Prolong a worker's leases; cut short every lease that became too long because the clock was set back."""
        now, lasts = micros_of(self._now()), micros_in(timedelta(seconds=seconds))
        connection.execute("UPDATE leases SET expires = :now + lasts WHERE expires > :now + lasts", {"now": now})
        sql = "UPDATE leases SET expires = ?, lasts = ? WHERE worker = ? RETURNING chat_id, token"
        return dict(connection.execute(sql, (now + lasts, lasts, worker)).fetchall())

    def _standing(self, connection: sqlite3.Connection, chat_id: str) -> CachedChat:
        row = connection.execute(_SQL["standing"], (chat_id,)).fetchone()
        if row is None:
            raise missing(connection, chat_id)
        version, state, event_seq, head, token, body = row
        if not is_count(event_seq):
            raise _no_count("chats.event_seq", chat_id)
        if not is_hash(head):
            raise ChatUnreadable("chats.head", "the hash of an audit record belongs here", chat_id=chat_id)
        cached = self._cache.get(chat_id)
        if cached is not None and (cached.head, *cached.mark) == (head, version, state, token, body):
            facts = cached.facts.with_last_seq(event_seq)
        else:
            facts = queries.facts(connection, chat_id)
        return CachedChat(facts, head, self._now(), body)

    def _store(
        self,
        connection: sqlite3.Connection,
        standing: CachedChat,
        decisions: tuple[Decision, ...],
        shown: Sequence[PartEvent],
    ) -> Committed:
        if not decisions:
            return Committed(standing.facts, standing.facts, (), (), standing.at)
        restated = _wipe(connection, standing.facts.chat_id, decisions)
        commit = prepared(standing, decisions, shown, restated=restated)
        update(commit, connection)
        if erasing(decisions):
            self._cache.forget(commit.chat_id)
        else:
            self._cache.put(commit.after)
        return commit.committed


def _claimable(
    connection: sqlite3.Connection, runs: Runs, after: Sequence[int], limit: int
) -> list[tuple[int, int, str, object]]:
    """Return the chats that want a worker which runs these, longest waiting first: when, number, id, version."""
    rows = connection.execute(_SQL["unsettled"], (*after, limit)).fetchall()
    for agent, tools in runs.items():
        rows += connection.execute(_SQL["pending"], (agent, *after, json.dumps([*tools]), limit))
    return sorted(rows, key=_as_sqlite_sorts)[:limit]


def _as_sqlite_sorts(row: tuple[Any, int, str, object]) -> tuple[int, Any, int]:
    """Return what orders chats as SQLite does: a time that is garbled may be text, or bytes."""
    since, number, *_ = row
    return (isinstance(since, str) + 2 * isinstance(since, bytes), since, number)


def _no_count(column: str, chat_id: str) -> ChatUnreadable:
    return ChatUnreadable(column, "a count belongs here", chat_id=chat_id)


def _wipe(connection: sqlite3.Connection, chat_id: str, decisions: Sequence[Decision]) -> list[WriteRecord]:
    """Blank the rows that hold what the decisions erase; return the digests stated anew."""
    restated: list[WriteRecord] = []
    for decision in decisions:
        if not erases(decision.writes):
            continue
        wiped = wipe(rows_of_chat(connection, chat_id), decision)
        for change in wiped.changes:
            put = ", ".join(f"{column} = ?" for column in change.values)
            where = " AND ".join(f"{column} = ?" for column in ("chat_id", *change.key))
            does = f"UPDATE {change.table} SET {put}" if put else f"DELETE FROM {change.table}"  # noqa: S608 - names of our own
            connection.execute(f"{does} WHERE {where}", (*change.values.values(), chat_id, *change.key.values()))
        let_others_go(connection, chat_id, wiped.blobs)
        restated += wiped.row_digests
    return restated
