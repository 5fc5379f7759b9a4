"""What is done to chats inside a SQLite transaction that someone else begins and commits."""

from __future__ import annotations

import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from turnwise.persistence import reading
from turnwise.persistence.audit import GENESIS, entry_of
from turnwise.persistence.event_rows import rows_of
from turnwise.persistence.perform import Place, perform
from turnwise.persistence.protocol import Committed, Plan
from turnwise.persistence.rows import blank_facts, micros_of, numbered, row_of
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatNotFound, StaleLease, StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState

_log = logging.getLogger("turnwise.persistence")

_STANDING: Final = """
SELECT version, state, event_seq, head, token FROM chats LEFT JOIN leases ON chat_id = id WHERE id = ?
"""
_CLAIMABLE: Final = """
SELECT id, since, number FROM chats
WHERE archived = 0 AND (state = 'pending' OR (state = 'interrupted' AND settled = 0))
AND (since, number) > (?, ?) AND NOT EXISTS (SELECT 1 FROM leases WHERE chat_id = id)
ORDER BY since, number LIMIT ?
"""
_CACHED_CHATS: Final = 1024


@dataclass(frozen=True, slots=True)
class _Standing:
    """A chat as a transaction finds it."""

    facts: Facts
    event_seq: int
    head: str
    """The hash of its last audit record."""


class Transactions:
    """Changes chats and remembers where they stand. Used by one thread only: the one that owns the connection."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._known: OrderedDict[str, Facts] = OrderedDict()

    def forget(self) -> None:
        """Forget every chat: what was remembered may not have been committed."""
        self._known.clear()

    def create(self, connection: sqlite3.Connection, chat_id: str, plan: Plan) -> Committed:
        """Create a chat."""
        at = self._now()
        standing = _Standing(blank_facts(chat_id, at), 0, GENESIS)
        decisions = tuple(plan(standing.facts, at))
        if decisions:
            _insert_chat(connection, standing, at)
        return self._store(connection, standing, decisions, (), at)

    def change(self, connection: sqlite3.Connection, chat_id: str, plan: Plan, shown: Sequence[PartEvent]) -> Committed:
        """Change a chat."""
        standing = self._standing(connection, chat_id)
        at = self._now()
        return self._store(connection, standing, tuple(plan(standing.facts, at)), shown, at)

    def claim(self, connection: sqlite3.Connection, plan: Plan, limit: int) -> list[Committed]:
        """Apply a plan to chats that want a worker."""
        claimed: list[Committed] = []
        since, number = -1, -1
        while len(claimed) < limit:
            found = connection.execute(_CLAIMABLE, (since, number, limit - len(claimed))).fetchall()
            if not found:
                break
            for chat_id, since, number in found:  # noqa: B007 - the next page begins after the last
                committed = self._claim_one(connection, chat_id, plan)
                if committed is not None and committed.decisions:
                    claimed.append(committed)
        return claimed

    def _claim_one(self, connection: sqlite3.Connection, chat_id: str, plan: Plan) -> Committed | None:
        connection.execute("SAVEPOINT claim")
        try:
            committed = self.change(connection, chat_id, plan, ())
        except Exception:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO claim")
            _log.exception("claim_refused chat_id=%s", chat_id)
            committed = None
        connection.execute("RELEASE claim")
        return committed

    def journal(
        self, connection: sqlite3.Connection, chat_id: str, token: int, state: ChatState, shown: Sequence[Event]
    ) -> tuple[Event, ...]:
        """Store events of a running job."""
        row = connection.execute(_STANDING, (chat_id,)).fetchone()
        if row is None:
            raise ChatNotFound(chat_id)
        _, found, event_seq, _, current = row
        if found != state or current != token:
            raise StaleLease(chat_id, token, current)
        events = numbered(shown, chat_id=chat_id, after=event_seq, at=self._now())
        _insert_events(connection, events)
        connection.execute("UPDATE chats SET event_seq = ? WHERE id = ?", (event_seq + len(events), chat_id))
        return events

    def renew(self, connection: sqlite3.Connection, worker: str, seconds: float) -> Mapping[str, int]:
        """Prolong the leases of a worker."""
        expires = micros_of(self._now() + timedelta(seconds=seconds))
        sql = "UPDATE leases SET expires = ? WHERE worker = ? RETURNING chat_id, token"
        return dict(connection.execute(sql, (expires, worker)).fetchall())

    def _standing(self, connection: sqlite3.Connection, chat_id: str) -> _Standing:
        row = connection.execute(_STANDING, (chat_id,)).fetchone()
        if row is None:
            raise ChatNotFound(chat_id)
        version, state, event_seq, head, token = row
        facts = self._known.get(chat_id)
        if facts is None or (version, state, token) != _mark_of(facts):
            facts = reading.facts(connection, chat_id)
        return _Standing(facts, event_seq, head)

    def _store(
        self,
        connection: sqlite3.Connection,
        standing: _Standing,
        decisions: tuple[Decision, ...],
        shown: Sequence[PartEvent],
        at: datetime,
    ) -> Committed:
        if not decisions:
            return Committed(standing.facts, (), (), at)
        chat_id, head = standing.facts.chat_id, standing.head
        told: list[Event] = [*shown]
        for decision in decisions:
            entry = entry_of(decision, prev=head, at=at)
            head = entry.hash
            perform(Place(connection, chat_id, entry.version, at), decision.writes)
            sql = "INSERT INTO audit (chat_id, version, hash, body) VALUES (?, ?, ?, ?)"
            connection.execute(sql, (chat_id, entry.version, bytes.fromhex(head), entry.body))
            told.extend(decision.events)
        events = numbered(told, chat_id=chat_id, after=standing.event_seq, at=at)
        _insert_events(connection, events)
        facts = decisions[-1].facts
        _update_chat(connection, _Standing(facts, standing.event_seq + len(events), head), at)
        self._remember(facts)
        return Committed(facts, decisions, events, at)

    def _remember(self, facts: Facts) -> None:
        self._known[facts.chat_id] = facts
        self._known.move_to_end(facts.chat_id)
        if len(self._known) > _CACHED_CHATS:
            self._known.popitem(last=False)


def _mark_of(facts: Facts) -> tuple[int, str, int | None]:
    return facts.version, facts.stored_state or facts.state, facts.lease.token if facts.lease else None


def _insert_chat(connection: sqlite3.Connection, blank: _Standing, at: datetime) -> None:
    row = row_of(blank.facts)
    try:
        connection.execute(
            "INSERT INTO chats (id, state, settled, archived, version, calls, facts, event_seq, head, since)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, blank.event_seq, blank.head, micros_of(at)),
        )
    except sqlite3.IntegrityError as error:
        raise StoreError(f"there is a chat {row.id!r} in this store already; nothing was written") from error


def _update_chat(connection: sqlite3.Connection, after: _Standing, at: datetime) -> None:
    row = row_of(after.facts)
    connection.execute(
        "UPDATE chats SET state = ?, settled = ?, archived = ?, version = ?, calls = ?, facts = ?, event_seq = ?,"
        " head = ?, since = ? WHERE id = ?",
        (*row[1:], after.event_seq, after.head, micros_of(after.facts.since or at), row.id),
    )


def _insert_events(connection: sqlite3.Connection, events: Sequence[Event]) -> None:
    connection.executemany(
        "INSERT INTO events (chat_id, seq, kind, at, step, attempt, position, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        rows_of(events),
    )
