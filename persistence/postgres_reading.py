"""Reading chats from PostgreSQL: each function is one question, answered from one snapshot of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import asyncpg

from turnwise.persistence import audit as audit_log
from turnwise.persistence.audit import AuditRecord
from turnwise.persistence.postgres_rows import body_of, statement
from turnwise.persistence.protocol import Overdue
from turnwise.persistence.rows import CALLS, EVENTS, QUEUE, RECEIPTS, USAGE, FactsRow, facts_of, message_of, unreadable
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.effects import RecordReceipt, RecordUsage
from turnwise.states.errors import ChatNotFound
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts, Lease
from turnwise.states.messages import Message, in_call_order
from turnwise.states.names import OPEN_STATUSES, ChatState

_FACTS: Final = statement("facts", ())
_PROMPTS: Final = statement("prompts", ("chat_ids",))
_CUT_AT: Final = statement("cut_at", ("chat_id", "message_id"))
_EVENTS: Final = """
SELECT chat_id, seq, at, body FROM events WHERE chat_id = $1 AND seq > $2
UNION ALL SELECT chat_id, seq, at, body FROM partial_events WHERE chat_id = $1 AND seq > $2
ORDER BY seq LIMIT $3
"""
_LEASES: Final = """
SELECT id, token FROM chats WHERE worker IS NOT NULL AND expires <= coalesce($1, clock_timestamp())
ORDER BY expires LIMIT $2
"""
_DEADLINES: Final = """
SELECT chat_id FROM calls JOIN chats ON chats.id = chat_id
WHERE deadline <= coalesce($1, clock_timestamp()) AND status = ANY ($3)
AND chats.state = 'requires_action' AND NOT archived
GROUP BY chat_id ORDER BY min(deadline) LIMIT $2
"""
_KNOWN_STATES: Final = ", ".join(f"'{state}'" for state in ChatState)
STRAYS: Final = f"SELECT id FROM chats WHERE state NOT IN ({_KNOWN_STATES}) ORDER BY number LIMIT $1"  # noqa: S608 - ours


async def rows_of(connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[asyncpg.Record]:
    """Return the rows that hold the chats' facts, in any order."""
    found: list[asyncpg.Record] = await connection.fetch(f"{_FACTS} WHERE chats.id = ANY ($1)", chat_ids)
    return found


def facts_in(row: asyncpg.Record) -> Facts:
    """Return the facts that a row holds."""
    columns = FactsRow(row["id"], row["state"], row["settled"], row["archived"], row["version"], "", row["facts"])
    calls = [CALLS.load(body) for body in row["calls"] or ()]
    queue = [QUEUE.load(body) for body in row["queue"] or ()]
    lease = None if row["worker"] is None else Lease(row["worker"], row["token"])
    return facts_of(columns, row["profile"], calls, queue, lease)


async def facts(connection: asyncpg.Connection, chat_id: str) -> Facts:
    """Return where a chat stands."""
    rows = await rows_of(connection, [chat_id])
    if not rows:
        raise ChatNotFound(chat_id)
    return facts_in(rows[0])


async def chats(
    connection: asyncpg.Connection, *, owner: str | None, state: ChatState | None, limit: int, after: str | None
) -> list[Facts]:
    """Return chats, newest first."""
    conditions = {
        "owner = ${}": owner,
        "state = ${}": state.value if state else None,
        "number < (SELECT number FROM chats WHERE id = ${})": after,
    }
    asked = [(condition, value) for condition, value in conditions.items() if value is not None]
    where = " AND ".join(condition.format(place) for place, (condition, _) in enumerate(asked, start=2)) or "true"
    rows = await connection.fetch(
        f"{_FACTS} WHERE {where} ORDER BY number DESC LIMIT $1", limit, *(value for _, value in asked)
    )
    return [facts_in(row) for row in rows]


async def history(connection: asyncpg.Connection, chat_id: str, *, at_version: int | None, after: int) -> list[Message]:
    """Return the messages after a position that are not cut, now or as of a version."""
    rows = await connection.fetch(
        "SELECT format, body FROM messages WHERE chat_id = $1 AND position > $3"
        " AND CASE WHEN $2::bigint IS NULL THEN cut IS NULL ELSE added <= $2 AND (cut IS NULL OR cut > $2) END"
        " ORDER BY position",
        chat_id,
        at_version,
        after,
    )
    return [message_of(row["format"], row["body"]) for row in rows]


async def prompts(connection: asyncpg.Connection, chat_ids: Sequence[str]) -> list[list[Message]]:
    """Return what the model sees of each chat."""
    found: dict[str, list[Message]] = {chat_id: [] for chat_id in chat_ids}
    for row in await connection.fetch(_PROMPTS, list(found)):
        found[row["id"]].append(message_of(row["format"], row["body"]))
    return [in_call_order(found[chat_id]) for chat_id in chat_ids]


async def cut_at(connection: asyncpg.Connection, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
    """Return a message of the history, and what an edit of it would cut."""
    row = await connection.fetchrow(_CUT_AT, chat_id, message_id)
    if row is None:
        return None
    message = message_of(row["format"], row["body"])
    cut = Cut(
        position=message.position,
        first_removed=message.id,
        boundary=row["boundary"],
        foldable=row["foldable"],
        history_version=row["history_version"],
    )
    return message, cut


async def calls(connection: asyncpg.Connection, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
    """Return those of the calls that the chat has ever had, by step and index."""
    sql = "SELECT body FROM calls WHERE chat_id = $1 AND call_id = ANY ($2) ORDER BY step, idx"
    found = [CALLS.load(row["body"]) for row in await connection.fetch(sql, chat_id, call_ids)]
    return {call.call_id: call for call in found}


async def receipt(connection: asyncpg.Connection, chat_id: str, client_id: str) -> RecordReceipt | None:
    """Return the receipt of a client's message."""
    sql = "SELECT body FROM receipts WHERE chat_id = $1 AND client_id = $2"
    body = await connection.fetchval(sql, chat_id, client_id)
    return None if body is None else RECEIPTS.load(body)


async def ledger(connection: asyncpg.Connection, chat_id: str) -> list[RecordUsage]:
    """Return every model call's usage, in order."""
    sql = "SELECT body FROM usage WHERE chat_id = $1 ORDER BY version, number"
    return [USAGE.load(row["body"]) for row in await connection.fetch(sql, chat_id)]


async def events(connection: asyncpg.Connection, chat_id: str, *, after: int, limit: int) -> list[Event]:
    """Return events, durable and partial, in order."""
    return [event_in(row) for row in await connection.fetch(_EVENTS, chat_id, after, limit)]


async def shown(connection: asyncpg.Connection, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
    """Return the parts shown of an attempt, in order."""
    sql = (
        "SELECT chat_id, seq, at, body FROM partial_events"
        " WHERE kind = 'part' AND chat_id = $1 AND step = $2 AND attempt = $3 ORDER BY seq"
    )
    found = [event_in(row) for row in await connection.fetch(sql, chat_id, step, attempt)]
    return [event for event in found if isinstance(event, PartEvent)]


def event_in(row: asyncpg.Record) -> Event:
    """Return the event that a row holds."""
    numbered = {"chat_id": row["chat_id"], "seq": row["seq"], "at": row["at"]}
    return EVENTS.load(row["body"]).model_copy(update=numbered)


async def told(connection: asyncpg.Connection, chat_id: str, seq: int, event: Event) -> datetime | None:
    """Return when an event of just this content was stored under the number, if it was."""
    rows = await connection.fetch(_EVENTS, chat_id, seq - 1, 1)
    return next((row["at"] for row in rows if row["seq"] == seq and row["body"] == body_of(event)), None)


async def audit(connection: asyncpg.Connection, chat_id: str) -> list[AuditRecord]:
    """Return the audit records, in order of version."""
    rows = await connection.fetch("SELECT body FROM audit WHERE chat_id = $1 ORDER BY version", chat_id)
    try:
        return [audit_log.from_json(row["body"]) for row in rows]
    except ValueError as error:
        raise unreadable(f"audit log of chat {chat_id!r}", error) from error


async def holders(connection: asyncpg.Connection) -> frozenset[str]:
    """Return the workers that hold a lease."""
    rows = await connection.fetch("SELECT DISTINCT worker FROM chats WHERE worker IS NOT NULL")
    return frozenset(row["worker"] for row in rows)


async def overdue(connection: asyncpg.Connection, *, now: datetime | None, limit: int) -> Overdue:
    """Return what has run out at `now`, or by the database's clock."""
    leases = await connection.fetch(_LEASES, now, limit)
    deadlines = await connection.fetch(_DEADLINES, now, limit, sorted(OPEN_STATUSES))
    strays = await connection.fetch(STRAYS, limit)
    return Overdue(
        leases=tuple((row["id"], row["token"]) for row in leases),
        deadlines=tuple(row["chat_id"] for row in deadlines),
        strays=tuple(row["id"] for row in strays),
    )
