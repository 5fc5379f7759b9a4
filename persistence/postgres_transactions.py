"""What changes chats in PostgreSQL.

A change reads the chat, decides, and writes in one statement that finds the chat as it was read or does nothing: no
lock is held while Python thinks. Whoever loses that race too often, and whoever claims, locks rows first.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

import anyio
import asyncpg

from turnwise.persistence import postgres_reading as reading
from turnwise.persistence.audit import GENESIS, from_json
from turnwise.persistence.postgres_erasure import erase
from turnwise.persistence.postgres_pool import Pool, Unreachable
from turnwise.persistence.postgres_rows import Commit, Standing, commit_of, erased_by, event_rows, statement
from turnwise.persistence.protocol import Committed, DuplicateReceipt, Plan
from turnwise.persistence.rows import blank_facts, numbered
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatNotFound, StaleLease, StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.names import ChatState

_log = logging.getLogger("turnwise.persistence")

_COMMIT: Final = statement("commit", Commit._fields)
_JOURNALLED: Final = ("chat_id", "state", "token", "found_event_seq", "now", "count", "events", "partial_events")
_JOURNAL: Final = statement("journal", _JOURNALLED)
_BLANK: Final = """
INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls)
VALUES ($1, 'waiting', true, false, 0, 0, $3, $2, '{}')
"""
_LOCK: Final = "SELECT FROM chats WHERE id = $1 FOR UPDATE"
_CLAIMABLE: Final = """
SELECT id, since, number FROM chats
WHERE NOT archived AND (state = 'pending' OR (state = 'interrupted' AND NOT settled)) AND worker IS NULL
AND (since, number) > ($1, $2)
ORDER BY since, number LIMIT $3 FOR UPDATE SKIP LOCKED
"""
_LONG_AGO: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_RACES: Final = 3
"""How often a change is tried without a lock."""
_CACHED_CHATS: Final = 1024
_RENEW: Final = """
UPDATE chats SET expires = coalesce($1, clock_timestamp()) + make_interval(secs => $2) WHERE worker = $3
RETURNING id, token
"""

_Sent = list[tuple[Commit, Committed]]
"""What a caller has sent to the server and has had no answer to."""
_Work = Callable[[asyncpg.Connection, _Sent], Awaitable[list[Committed]]]


class Transactions:
    """Changes chats and remembers where they stand. `tell` is told of every chat that was changed."""

    def __init__(self, pool: Pool, *, now: Callable[[], datetime] | None, tell: Callable[[str], None]) -> None:
        self._pool = pool
        self._now = now
        self._tell = tell
        self._known: OrderedDict[str, Standing] = OrderedDict()
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def create(self, chat_id: str, plan: Plan) -> Committed:
        """Create a chat."""

        async def work(connection: asyncpg.Connection, sent: _Sent) -> list[Committed]:
            at = self._now() if self._now else await connection.fetchval("SELECT clock_timestamp()")
            blank = Standing(blank_facts(chat_id, at), 0, GENESIS, at)
            decisions = tuple(plan(blank.facts, at))
            if not decisions:
                return [Committed(blank.facts, (), (), at)]
            async with connection.transaction():
                await connection.execute(_BLANK, chat_id, at, GENESIS)
                return [await self._commit(connection, blank, decisions, (), sent)]

        async with self._turn(chat_id):
            return (await self._answered(chat_id, work))[0]

    async def change(self, chat_id: str, plan: Plan, shown: Sequence[PartEvent]) -> Committed:
        """Change a chat."""

        async def attempt(connection: asyncpg.Connection, sent: _Sent) -> list[Committed]:
            standing = await self._standing(connection, chat_id)
            decisions = tuple(plan(standing.facts, standing.at))
            if not decisions:
                return [Committed(standing.facts, (), (), standing.at)]
            return [await self._commit(connection, standing, decisions, shown, sent)]

        async def work(connection: asyncpg.Connection, sent: _Sent) -> list[Committed]:
            for _ in range(_RACES):
                try:
                    return await attempt(connection, sent)
                except _Overtaken:
                    if landed := await _landed(connection, sent):
                        return landed
            async with connection.transaction():
                await connection.execute(_LOCK, chat_id)
                return await attempt(connection, sent)

        async with self._turn(chat_id):
            return (await self._answered(chat_id, work))[0]

    async def claim(self, plan: Plan, limit: int) -> list[Committed]:
        """Apply a plan to chats that want a worker."""

        async def work(connection: asyncpg.Connection, sent: _Sent) -> list[Committed]:
            claimed: list[Committed] = []
            page: tuple[datetime, int] = (_LONG_AGO, 0)
            async with connection.transaction():
                while len(claimed) < limit:
                    locked = await connection.fetch(_CLAIMABLE, *page, limit - len(claimed))
                    if not locked:
                        break
                    page = (locked[-1]["since"], locked[-1]["number"])
                    claimed += await self._claim(connection, [row["id"] for row in locked], plan, sent)
            return claimed

        return await self._answered("", work)

    async def _claim(
        self, connection: asyncpg.Connection, locked: Sequence[str], plan: Plan, sent: _Sent
    ) -> list[Committed]:
        """Apply a plan to chats that are locked, and write what it decides in one go."""
        made: _Sent = []
        rows = {row["id"]: row for row in await reading.rows_of(connection, locked)}
        for chat_id in locked:
            try:
                standing = self._standing_of(rows[chat_id])
                decisions = tuple(plan(standing.facts, standing.at))
                if decisions:
                    made.append(_prepared(standing, decisions, ()))
            except Exception:  # noqa: BLE001 - whatever is wrong with one chat is no other's business
                _log.exception("claim_refused chat_id=%s", chat_id)
        sent += made
        await connection.fetchmany(_COMMIT, [commit for commit, _ in made])
        return [committed for _, committed in made]

    async def journal(self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event]) -> tuple[Event, ...]:
        """Store events of a running job."""
        sent: list[int] = []

        async def work(connection: asyncpg.Connection) -> tuple[Event, ...]:
            for after in sent:
                at = await reading.told(connection, chat_id, after + 1, shown[0]) if shown else None
                if at is not None:
                    return numbered(shown, chat_id=chat_id, after=after, at=at)
            while True:
                known = self._known.get(chat_id)
                after = known.event_seq if known else await _held_since(connection, chat_id, token, state)
                sent.append(after)
                rows = event_rows(shown, after=after)
                now = self._now() if self._now else None
                at = await connection.fetchval(_JOURNAL, chat_id, state.value, token, after, now, len(shown), *rows)
                if at is not None:
                    return numbered(shown, chat_id=chat_id, after=after, at=at)
                sent.pop()
                self._known.pop(chat_id, None)

        async with self._turn(chat_id):
            events = await self._pool.run(work)
        known = self._known.get(chat_id)
        if known is not None and events:
            self._known[chat_id] = dataclasses.replace(known, event_seq=events[-1].seq)
        self._tell(chat_id)
        return events

    async def renew(self, worker: str, seconds: float) -> Mapping[str, int]:
        """Prolong the leases of a worker."""
        now = self._now() if self._now else None
        rows = await self._pool.run(lambda on: on.fetch(_RENEW, now, seconds, worker))
        return {row["id"]: row["token"] for row in rows}

    @asynccontextmanager
    async def _turn(self, chat_id: str) -> AsyncIterator[None]:
        """Let the changes of one chat follow one another in this process, and race only with those of others."""
        async with self._turns.setdefault(chat_id, anyio.Lock()):
            yield

    async def _answered(self, chat_id: str, work: _Work) -> list[Committed]:
        """Return what `work` committed, also where the answer of the server was lost on the way."""
        sent: _Sent = []

        async def attempt(connection: asyncpg.Connection) -> list[Committed]:
            if landed := await _landed(connection, sent):
                return landed
            sent.clear()
            try:
                return await work(connection, sent)
            except asyncpg.UniqueViolationError as error:
                raise _refusal(error, chat_id, sent) from error

        try:
            answered = await self._pool.run(attempt)
        except Unreachable as error:
            if not sent:
                raise
            raise StoreError(f"{error.told}; it is not known whether anything was written") from error
        for commit, committed in sent:
            if committed in answered:
                self._remember(Standing(committed.facts, commit.event_seq, commit.head, committed.at))
                self._tell(commit.chat_id)
            if erased_by(committed.decisions):
                self._known.pop(commit.chat_id, None)
        return answered

    async def _commit(
        self,
        connection: asyncpg.Connection,
        standing: Standing,
        decisions: tuple[Decision, ...],
        shown: Sequence[PartEvent],
        sent: _Sent,
    ) -> Committed:
        commit, committed = _prepared(standing, decisions, shown)
        sent.append((commit, committed))
        erased = erased_by(decisions)
        async with AsyncExitStack() as together:
            if erased:
                await together.enter_async_context(connection.transaction())
            if not await connection.fetchval(_COMMIT, *commit):
                sent.pop()
                raise _Overtaken
            for blank in erased:
                await erase(connection, commit.chat_id, blank)
        return committed

    async def _standing(self, connection: asyncpg.Connection, chat_id: str) -> Standing:
        rows = await reading.rows_of(connection, [chat_id])
        if not rows:
            raise ChatNotFound(chat_id)
        return self._standing_of(rows[0])

    def _standing_of(self, row: asyncpg.Record) -> Standing:
        known = self._known.get(row["id"])
        unchanged = known is not None and _mark_of(known) == (row["head"], row["state"], row["token"])
        facts = known.facts if known is not None and unchanged else reading.facts_in(row)
        return Standing(facts, row["event_seq"], row["head"], self._now() if self._now else row["at"])

    def _remember(self, standing: Standing) -> None:
        self._known[standing.facts.chat_id] = standing
        self._known.move_to_end(standing.facts.chat_id)
        if len(self._known) > _CACHED_CHATS:
            self._known.popitem(last=False)


class _Overtaken(Exception):
    """The chat is not any more as it was read."""


def _prepared(
    standing: Standing, decisions: tuple[Decision, ...], shown: Sequence[PartEvent]
) -> tuple[Commit, Committed]:
    commit, events = commit_of(standing, decisions, shown)
    return commit, Committed(decisions[-1].facts, decisions, events, standing.at)


async def _landed(connection: asyncpg.Connection, sent: _Sent) -> list[Committed]:
    """Return what of the unanswered was committed, having waited for what is still under way."""
    found: list[Committed] = []
    for commit, committed in sent:
        await connection.execute(_LOCK, commit.chat_id)
        sql = "SELECT body FROM audit WHERE chat_id = $1 AND version = $2"
        body = await connection.fetchval(sql, commit.chat_id, commit.version)
        if body is not None and from_json(body).hash == commit.head:
            found.append(committed)
    return found


async def _held_since(connection: asyncpg.Connection, chat_id: str, token: int, state: ChatState) -> int:
    """Return the last event number of a chat that is held under the token, in the state."""
    row = await connection.fetchrow("SELECT state, token, event_seq FROM chats WHERE id = $1", chat_id)
    if row is None:
        raise ChatNotFound(chat_id)
    if (row["state"], row["token"]) != (state, token):
        raise StaleLease(chat_id, token, row["token"])
    return int(row["event_seq"])


def _refusal(error: asyncpg.UniqueViolationError, chat_id: str, sent: _Sent) -> StoreError:
    """Return what it means that a key is taken."""
    if error.table_name == "chats":
        return StoreError(f"there is a chat {chat_id!r} in this store already; nothing was written")
    if error.table_name == "receipts":
        (receipt, *_) = json.loads(sent[-1][0].receipts)
        return DuplicateReceipt(chat_id, receipt["client_id"])
    if error.table_name == "boundaries":
        return StoreError(f"chat {chat_id!r} has a compaction for this step already; nothing was written")
    return StoreError(f"the database refused ({error}); nothing was written")


def _mark_of(known: Standing) -> tuple[str, str, int | None]:
    facts = known.facts
    return known.head, facts.stored_state or facts.state, facts.lease.token if facts.lease else None
