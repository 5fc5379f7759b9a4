"""Reads chats from PostgreSQL: each function answers one question from one snapshot of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg
from asyncpg.transaction import Transaction
from msgspec.json import decode
from msgspec.structs import replace

from turnwise.persistence.audit.record import AuditRecord, Entry, log_of
from turnwise.persistence.postgres.times import time_in
from turnwise.persistence.postgres.tombstones import missing
from turnwise.persistence.postgres.write_rows import body_of
from turnwise.persistence.protocol import PAGE_BYTES, EventPage, Expiry, Overdue, Snapshot, Waiting
from turnwise.persistence.rows import CALLS, EVENTS, GARBLED, RECEIPTS, USAGE, message_of, unreadable
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.stored_chat import PartialRead, Stored, facts_of, facts_or_rest, head_of, salvage
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.events import Event, PartEvent, TurnFinishedEvent
from turnwise.states.facts import Facts
from turnwise.states.message_order import in_call_order
from turnwise.states.messages import Message
from turnwise.states.names import OPEN_STATUSES, Answerer, ChatState
from turnwise.states.writes import RecordReceipt, RecordUsage

_SQL: Final = statements_of(__name__)
_NUMBERS: Final = "SELECT id, number FROM chats UNION ALL SELECT id, number FROM tombstones"
_KNOWN_STATES: Final = ", ".join(f"'{state}'" for state in ChatState)
_IDS: Final = "SELECT id FROM chats WHERE starts_with(id, $1) {whose} ORDER BY since DESC, number DESC LIMIT $2"
STRAYS: Final = f"SELECT id FROM chats WHERE state NOT IN ({_KNOWN_STATES}) ORDER BY number LIMIT $1"  # noqa: S608 - ours


def one_moment(connection: asyncpg.Connection) -> Transaction:
    """Return a transaction in which every query sees the same snapshot of the database."""
    return connection.transaction(isolation="repeatable_read")


async def rows_of(connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[asyncpg.Record]:
    """Return the rows that hold the chats' facts, in any order."""
    rows: list[asyncpg.Record] = await connection.fetch(f"{_SQL['facts']} WHERE chats.id = ANY ($1)", chat_ids)
    return rows


def stored_in(row: asyncpg.Record) -> Stored:
    """Return the stored values that say where a chat stands, as the row holds them."""
    return Stored(
        id=row["id"],
        state=row["state"],
        settled=row["settled"],
        archived=row["archived"],
        version=row["version"],
        call_ids=row["call_ids"],
        facts=row["facts"],
        profile=row["profile"],
        calls=row["calls"] or (),
        queue=row["queue"] or (),
        worker=row["worker"],
        token=row["token"],
        last_seq=row["event_seq"],
        facts_column="facts.body",
        lease_table="chats",
    )


def facts_in(row: asyncpg.Record) -> Facts:
    """Return the facts that a row holds."""
    return facts_of(stored_in(row))


async def facts(connection: asyncpg.Connection, chat_id: str) -> Facts:
    """Return where a chat stands."""
    return facts_of(await stored(connection, chat_id))


async def rest(connection: asyncpg.Connection, chat_id: str) -> PartialRead:
    """Return what can be read of a chat."""
    return salvage(await stored(connection, chat_id))


async def stored(connection: asyncpg.Connection, chat_id: str) -> Stored:
    """Return the stored values that say where a chat stands."""
    rows = await rows_of(connection, [chat_id])
    if not rows:
        raise await missing(connection, chat_id)
    return stored_in(rows[0])


async def chats(
    connection: asyncpg.Connection,
    *,
    owner: str | None,
    state: ChatState | None,
    limit: int,
    after: str | None,
    awaiting: Answerer | None = None,
) -> list[Facts | PartialRead]:
    """Return chats, newest first."""
    filters = {"owner" if state is None else "(owner || '')": owner, "(state || '')": state.value if state else None}
    keys = {name: value for name, value in filters.items() if value is not None}
    values, before = [limit, *keys.values()], "9223372036854775807"
    if after is not None:
        values.append(after)
        before = f"(SELECT number FROM ({_NUMBERS}) AS known WHERE id = ${len(values)})"  # noqa: S608 - a number
    awaits = "" if awaiting is None else f"NOT archived AND awaits IN ('{awaiting}', 'both') AND "
    order = ", ".join(f"{key} DESC" for key in (*keys, "number"))
    sql = f"{_SQL['facts']} WHERE {awaits}{_within([*keys], before)} ORDER BY {order} LIMIT $1"
    rows = await connection.fetch(sql, *values)
    return [facts_or_rest(stored_in(row)) for row in rows]


async def waiting_since(connection: asyncpg.Connection, *, now: datetime | None = None) -> Waiting:
    """Return since when the longest waiting chat of each agent waits for a worker: at `now`, or the database's time."""
    rows = await connection.fetch(_SQL["waiting"])
    since = {row["name"]: row["since"] for row in rows if isinstance(row["since"], datetime)}
    return Waiting(since, at=now or (rows[0]["at"] if rows else None))


async def lease_expiry(connection: asyncpg.Connection, chat_id: str, *, now: datetime | None = None) -> Expiry | None:
    """Return when a chat's lease runs out, with `now`; without that, with the database's time."""
    row = await connection.fetchrow("SELECT expires, clock_timestamp() AS at FROM chats WHERE id = $1", chat_id)
    expires = None if row is None else time_in(row, "expires")
    return None if row is None or expires is None else Expiry(expires, now or row["at"])


async def head(connection: asyncpg.Connection, chat_id: str) -> tuple[int, str]:
    """Return a chat's version and the hash of its last record."""
    row = await connection.fetchrow("SELECT version, head FROM chats WHERE id = $1", chat_id)
    if row is None:
        raise await missing(connection, chat_id)
    return head_of(chat_id, row["version"], row["head"])


async def awaiting_subagents(connection: asyncpg.Connection, *, after: str, limit: int) -> list[str]:
    """Return the ids of chats that wait for subagents, oldest first."""
    return [row["id"] for row in await connection.fetch(_SQL["awaiting_subagents"], after, limit)]


def _within(keys: Sequence[str], before: str) -> str:
    """Return the condition that the keys equal $2 and so on, and the number is below another.

    It is spelled as a range of the one index whose columns these are: an equation would leave the planner free to walk
    down all chats by number, however rare those that are wanted. There is no upper bound for a key alone, where the
    server would begin.
    """
    if not keys:
        return f"number < {before}"
    places = [f"${place}" for place, _ in enumerate(keys, start=2)]
    ends = f"({', '.join((*keys, 'number'))}) < ({', '.join((*places, before))})"
    begins = f"({', '.join(keys)}) >= ({', '.join(places)})"
    return f"{ends} AND {begins} AND {keys[0]} >= {places[0]}"  # the last tells that an owner is not null


async def ids(connection: asyncpg.Connection, prefix: str, limit: int, *, owner: str | None = None) -> list[str]:
    """Return ids that begin with a prefix, the most recent change of state first."""
    if owner is None:
        rows = await connection.fetch(_IDS.format(whose=""), prefix, limit)
    else:
        rows = await connection.fetch(_IDS.format(whose="AND owner = $3"), prefix, limit, owner)
    return [row["id"] for row in rows]


async def history(
    connection: asyncpg.Connection, chat_id: str, *, at_version: int | None, after: int, size: int | None
) -> list[Message]:
    """Return the messages after a position that are not cut, now or as of a version: about `size` bytes of them."""
    rows = await connection.fetch(_SQL["history"], chat_id, at_version, after, size)
    return [message_of(row["format"], row["body"], chat_id) for row in rows]


async def snapshot(connection: asyncpg.Connection, chat_id: str, *, size: int | None) -> Snapshot:
    """Return a chat, the first of its history and the shown parts of the attempt under way, all of one moment."""
    async with one_moment(connection):
        chat = await facts(connection, chat_id)
        messages = await history(connection, chat_id, at_version=None, after=0, size=size)
        step = chat.step
        parts = await shown(connection, chat_id, step.number, step.attempt) if step.attempt_open else []
        row = await connection.fetchrow(_SQL["last_finished"], chat_id)
    finished = None if row is None else event_in(row)
    reason = finished.stop_reason if isinstance(finished, TurnFinishedEvent) else None
    return Snapshot(chat, tuple(messages), tuple(parts), reason)


async def prompts(connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[list[Message]]:
    """Return what the model sees of each chat."""
    messages: dict[str, list[Message]] = {chat_id: [] for chat_id in chat_ids}
    for row in await connection.fetch(_SQL["prompts"], list(messages)):
        messages[row["id"]].append(message_of(row["format"], row["body"], row["id"]))
    return [in_call_order(messages[chat_id]) for chat_id in chat_ids]


async def cut_at(connection: asyncpg.Connection, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
    """Return a message of the history, and what an edit of it would cut."""
    row = await connection.fetchrow(_SQL["cut_at"], chat_id, message_id)
    if row is None:
        return None
    message = message_of(row["format"], row["body"], chat_id)
    cut = Cut(
        position=message.position,
        first_removed=message.id,
        boundary=row["boundary"],
        foldable=row["foldable"],
        history_version=_history_version(chat_id, row["facts"]),
    )
    return message, cut


def _history_version(chat_id: str, facts_body: Any) -> int:
    try:
        return int(decode(facts_body).get("history_version", 0))
    except GARBLED as error:
        raise unreadable(chat_id, "facts.body", error) from None


async def calls(connection: asyncpg.Connection, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
    """Return the calls of these ids that the chat has ever had, by step and index."""
    sql = "SELECT body FROM calls WHERE chat_id = $1 AND call_id = ANY ($2) ORDER BY step, idx"
    stored_calls = [CALLS.load(row["body"], chat_id) for row in await connection.fetch(sql, chat_id, call_ids)]
    return {call.call_id: call for call in stored_calls}


async def receipt(connection: asyncpg.Connection, chat_id: str, client_id: str) -> RecordReceipt | None:
    """Return the receipt of a client's message."""
    sql = "SELECT body FROM receipts WHERE chat_id = $1 AND client_id = $2"
    body = await connection.fetchval(sql, chat_id, client_id)
    return None if body is None else RECEIPTS.load(body, chat_id)


async def ledger(connection: asyncpg.Connection, chat_id: str) -> list[RecordUsage]:
    """Return every model call's usage, in order."""
    sql = "SELECT body FROM usage WHERE chat_id = $1 ORDER BY version, number"
    return [USAGE.load(row["body"], chat_id) for row in await connection.fetch(sql, chat_id)]


async def events(connection: asyncpg.Connection, chat_id: str, *, after: int, limit: int) -> EventPage:
    """Return a page of events, durable and partial, in order."""
    rows = await connection.fetch(connection.readable(_SQL["events"]), chat_id, after, limit, PAGE_BYTES)
    page = EventPage(map(event_in, rows))
    page.more = len(rows) == limit or (bool(rows) and rows[-1]["size"] >= PAGE_BYTES)
    return page


async def shown(connection: asyncpg.Connection, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
    """Return the parts shown of an attempt, in order."""
    stored_events = [
        event_in(row) for row in await connection.fetch(connection.readable(_SQL["parts"]), chat_id, step, attempt)
    ]
    return [event for event in stored_events if isinstance(event, PartEvent)]


def event_in(row: asyncpg.Record) -> Event:
    """Return the event that a row holds."""
    event = EVENTS.load(row["body"], row["chat_id"])
    return replace(event, chat_id=row["chat_id"], seq=row["seq"], at=time_in(row, "at"))


async def time_of_event(connection: asyncpg.Connection, chat_id: str, seq: int, event: Event) -> datetime | None:
    """Return when an event with exactly this content was stored under the number; `None` if none was."""
    at: datetime | None = await connection.fetchval(_SQL["same_event"], chat_id, seq, body_of(event))
    return at


async def audit(connection: asyncpg.Connection, chat_id: str) -> list[AuditRecord]:
    """Return the audit records, in order of version."""
    sql = "SELECT version, body, aside FROM audit WHERE chat_id = $1 ORDER BY version"
    rows = await connection.fetch(sql, chat_id)
    try:
        return log_of(chat_id, [Entry(row["version"], "", row["body"], row["aside"]) for row in rows])
    except GARBLED as error:
        raise unreadable(chat_id, "audit.body", error) from None


async def holders(connection: asyncpg.Connection) -> frozenset[str]:
    """Return the workers that hold a lease."""
    rows = await connection.fetch("SELECT DISTINCT worker FROM chats WHERE worker IS NOT NULL")
    return frozenset(row["worker"] for row in rows)


async def rested(
    connection: asyncpg.Connection, *, now: datetime | None, archived: bool, seconds: float, limit: int
) -> list[str]:
    """Return resting chats, archived or not, that were not changed for so long."""
    return [row["id"] for row in await connection.fetch(_SQL["rested"], now, archived, seconds, limit)]


async def overdue(connection: asyncpg.Connection, *, now: datetime | None, limit: int) -> Overdue:
    """Return what has run out at `now`; without it, by the database's clock."""
    at = now if now is not None else await connection.fetchval("SELECT clock_timestamp()")
    leases = await connection.fetch(_SQL["leases"], at, limit)
    deadlines = await connection.fetch(_SQL["deadlines"], at, limit, sorted(OPEN_STATUSES))
    strays = await connection.fetch(STRAYS, limit)
    return Overdue(
        leases=tuple((row["id"], row["token"]) for row in leases),
        deadlines=tuple(row["chat_id"] for row in deadlines),
        strays=tuple(row["id"] for row in strays),
        at=at,
    )
