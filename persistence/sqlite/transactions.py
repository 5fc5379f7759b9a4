"""Changes to chats in SQLite, each inside a transaction that the group commit begins and commits."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from turnwise.persistence.audit.asides import aside_of
from turnwise.persistence.audit.record import GENESIS, WriteRecord, entry_of
from turnwise.persistence.audit.row_digests import bond_of_events, bond_of_facts, fields_bound, salt_of_facts
from turnwise.persistence.erasure import erases, wipe
from turnwise.persistence.event_rows import EventRow, rows_of
from turnwise.persistence.passed_over import Refusals
from turnwise.persistence.protocol import Committed, Plan
from turnwise.persistence.repair.repair import repair_of
from turnwise.persistence.rows import blank_facts, micros_in, micros_of, numbered, row_of
from turnwise.persistence.sqlite import queries, raw_rows
from turnwise.persistence.sqlite.chat_rows import rows_of_chat
from turnwise.persistence.sqlite.write_rows import Place, perform
from turnwise.persistence.stored_chat import is_count, is_hash
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatNotFound, ChatUnreadable, StaleLease, StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState

_STANDING: Final = """
SELECT version, state, event_seq, head, token, facts FROM chats LEFT JOIN leases ON chat_id = id WHERE id = ?
"""
_CLAIMABLE: Final = """
SELECT id, since, number FROM chats
WHERE archived = 0 AND (state = 'pending' OR (state = 'interrupted' AND settled = 0))
AND (since, number) > (?, ?) AND NOT EXISTS (SELECT 1 FROM leases WHERE chat_id = id)
ORDER BY since, number LIMIT ?
"""
_UPDATE_CHAT: Final = """
UPDATE chats SET state = ?, settled = ?, archived = ?, version = ?, calls = ?, facts = ?, event_seq = ?,
    head = ?, since = ?, salt = ? WHERE id = ?
"""
_CACHED_CHATS: Final = 1024


@dataclass(frozen=True, slots=True)
class _Standing:
    """A chat as a transaction read it."""

    facts: Facts
    head: str
    """The hash of its last audit record."""


class _Cached(NamedTuple):
    """A chat as this process left it."""

    facts: Facts
    mark: tuple[int, str, int | None, str]
    """The columns that tell whether the chat still stands there: version, state, token, and the facts' body."""


class Transactions:
    """Changes chats and caches where they stand. Only the connection's own thread may use it."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._refusals = Refusals()

    def forget(self) -> None:
        """Empty the cache, after a rollback: what it holds may never have been committed."""
        self._cache.clear()

    def create(self, connection: sqlite3.Connection, chat_id: str, plan: Plan) -> Committed:
        """Create a chat, as `ChatStore.create` promises."""
        at = self._now()
        standing = _Standing(blank_facts(chat_id, at), GENESIS)
        decisions = tuple(plan(standing.facts, at))
        if decisions:
            _insert_chat(connection, standing, at)
        return self._store(connection, standing, decisions, (), at)

    def change(self, connection: sqlite3.Connection, chat_id: str, plan: Plan, shown: Sequence[PartEvent]) -> Committed:
        """Change a chat, as `ChatStore.change` promises."""
        standing = self._standing(connection, chat_id)
        at = self._now()
        decisions = tuple(plan(standing.facts, at))
        try:
            with raw_rows.blaming(connection, chat_id):
                return self._store(connection, standing, decisions, shown, at)
        except sqlite3.IntegrityError as error:
            raise contradiction(chat_id, error) from error

    def repair(self, connection: sqlite3.Connection, chat_id: str, plan: Plan) -> Committed:
        """Repair a chat, as `ChatStore.repair` promises."""
        at = self._now()
        repair = repair_of(chat_id, raw_rows.rows_of(connection, chat_id), at)
        decisions = tuple(plan(repair.facts, at))
        if decisions:
            raw_rows.store_repair(connection, repair, at)
        return self._store(connection, _Standing(repair.facts, repair.head), decisions, (), at)

    def claim(self, connection: sqlite3.Connection, plan: Plan, limit: int) -> list[Committed]:
        """Claim chats, as `ChatStore.claim` promises."""
        claimed: list[Committed] = []
        since, number = -1, -1
        while len(claimed) < limit:
            found = connection.execute(_CLAIMABLE, (since, number, limit - len(claimed))).fetchall()
            if not found:
                break
            for chat_id, since, number in found:  # noqa: B007 - the next page begins after the last
                if self._refusals.rests(chat_id):
                    continue
                committed = self._claim_one(connection, chat_id, plan)
                if committed is not None and committed.decisions:
                    claimed.append(committed)
        return claimed

    def _claim_one(self, connection: sqlite3.Connection, chat_id: str, plan: Plan) -> Committed | None:
        connection.execute("SAVEPOINT claim")
        try:
            committed = self.change(connection, chat_id, plan, ())
        except Exception as error:
            if not connection.in_transaction:  # SQLite has rolled back the whole transaction, other claims included
                raise
            connection.execute("ROLLBACK TO claim")
            self._refusals.note("claim_refused", chat_id, error)
            committed = None
        else:
            self._refusals.forget(chat_id)
        connection.execute("RELEASE claim")
        return committed

    def journal(
        self, connection: sqlite3.Connection, chat_id: str, token: int, state: ChatState, shown: Sequence[Event]
    ) -> tuple[Event, ...]:
        """Store events of a running job, as `ChatStore.journal` promises."""
        row = connection.execute(_STANDING, (chat_id,)).fetchone()
        if row is None:
            raise ChatNotFound(chat_id)
        _, found, event_seq, _, current, _ = row
        if found != state or current != token:
            raise StaleLease(chat_id, token, current)
        if not is_count(event_seq):
            raise _no_count("chats.event_seq", chat_id)
        if not shown:
            return ()
        events = numbered(shown, chat_id=chat_id, after=event_seq, at=self._now())
        try:
            _insert_events(connection, events)
        except sqlite3.IntegrityError as error:
            raise contradiction(chat_id, error) from error
        connection.execute("UPDATE chats SET event_seq = ? WHERE id = ?", (event_seq + len(events), chat_id))
        return events

    def renew(self, connection: sqlite3.Connection, worker: str, seconds: float) -> Mapping[str, int]:
        """Prolong a worker's leases; cut short every lease that became too long because the clock was set back."""
        now, lasts = micros_of(self._now()), micros_in(timedelta(seconds=seconds))
        connection.execute("UPDATE leases SET expires = ?1 + lasts WHERE expires > ?1 + lasts", (now,))
        sql = "UPDATE leases SET expires = ?, lasts = ? WHERE worker = ? RETURNING chat_id, token"
        return dict(connection.execute(sql, (now + lasts, lasts, worker)).fetchall())

    def _standing(self, connection: sqlite3.Connection, chat_id: str) -> _Standing:
        row = connection.execute(_STANDING, (chat_id,)).fetchone()
        if row is None:
            raise ChatNotFound(chat_id)
        version, state, event_seq, head, token, body = row
        if not is_count(event_seq):
            raise _no_count("chats.event_seq", chat_id)
        if not is_hash(head):
            raise ChatUnreadable("chats.head", "the hash of an audit record belongs here", chat_id=chat_id)
        cached = self._cache.get(chat_id)
        if cached is None or (version, state, token, body) != cached.mark:
            return _Standing(queries.facts(connection, chat_id), head)
        return _Standing(cached.facts.with_last_seq(event_seq), head)

    def _store(
        self,
        connection: sqlite3.Connection,
        standing: _Standing,
        decisions: tuple[Decision, ...],
        shown: Sequence[PartEvent],
        at: datetime,
    ) -> Committed:
        if not decisions:
            return Committed(standing.facts, standing.facts, (), (), at)
        chat_id, head = standing.facts.chat_id, standing.head
        unnumbered: list[Event] = [*shown]
        for decision in decisions:
            perform(Place(connection, chat_id, decision.facts.version, at), decision.writes)
            unnumbered.extend(decision.events)
        before = standing.facts.last_seq
        events = numbered(unnumbered, chat_id=chat_id, after=before, at=at)
        rows = _insert_events(connection, events)
        restated = _wipe(connection, chat_id, decisions)
        last, salt = decisions[-1], aside_of(decisions[-1]).events
        facts = last.facts.with_last_seq(before + len(events))
        row, since = row_of(facts), micros_of(facts.since or at)
        bonds = [
            *restated,
            bond_of_facts(row, since=since, salt=salt_of_facts(last)),
            *bond_of_events(before + 1, facts.last_seq, [fields_bound(row._asdict()) for row in rows], salt=salt),
        ]
        for decision in decisions:
            entry = entry_of(decision, prev=head, at=at, bonds=bonds if decision is last else ())
            head = entry.hash
            sql = "INSERT INTO audit (chat_id, version, hash, body, aside) VALUES (?, ?, ?, ?, ?)"
            connection.execute(sql, (chat_id, entry.version, bytes.fromhex(head), entry.body, entry.aside))
        connection.execute(_UPDATE_CHAT, (*row[1:], head, since, salt_of_facts(last), chat_id))
        if any(erases(decision.writes) for decision in decisions):
            self._cache.pop(chat_id, None)
        else:
            self._remember(facts, row.facts)
        return Committed(standing.facts, facts, decisions, events, at)

    def _remember(self, facts: Facts, body: str) -> None:
        token = facts.lease.token if facts.lease else None
        mark = (facts.version, facts.stored_state or facts.state, token, body)
        self._cache[facts.chat_id] = _Cached(facts, mark)
        self._cache.move_to_end(facts.chat_id)
        if len(self._cache) > _CACHED_CHATS:
            self._cache.popitem(last=False)


def contradiction(chat_id: str, error: sqlite3.IntegrityError) -> ChatUnreadable:
    """Return the error for a chat whose next row exists already: the stored rows contradict each other."""
    text = str(error)
    column = text.rpartition(": ")[2].rpartition(", ")[2] if "." in text else "chats"
    return ChatUnreadable(column, f"what is stored contradicts the next row ({text})", chat_id=chat_id)


def _no_count(column: str, chat_id: str) -> ChatUnreadable:
    return ChatUnreadable(column, "a count belongs here", chat_id=chat_id)


def _insert_chat(connection: sqlite3.Connection, blank: _Standing, at: datetime) -> None:
    row = row_of(blank.facts)
    try:
        connection.execute(
            "INSERT INTO chats (id, state, settled, archived, version, calls, facts, event_seq, head, since)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, blank.head, micros_of(at)),
        )
    except sqlite3.IntegrityError as error:
        raise StoreError(f"there is a chat {row.id!r} in this store already; nothing was written") from error


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
        restated += wiped.bonds
    return restated


def _insert_events(connection: sqlite3.Connection, events: Sequence[Event]) -> list[EventRow]:
    rows = rows_of(events)
    connection.executemany(
        "INSERT INTO events (chat_id, seq, kind, at, step, attempt, position, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    return rows
