"""Reading chats from SQLite: each function is one question, asked inside one snapshot of the database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from turnwise.persistence.audit import AuditRecord, Entry, log_of
from turnwise.persistence.event_rows import TOLD, event_of
from turnwise.persistence.protocol import Overdue
from turnwise.persistence.rows import (
    CALLS,
    QUEUE,
    RECEIPTS,
    USAGE,
    Body,
    FactsRow,
    facts_of,
    message_of,
    unreadable,
)
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.effects import RecordReceipt, RecordUsage
from turnwise.states.errors import ChatNotFound
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts, Lease
from turnwise.states.messages import Message, in_call_order
from turnwise.states.names import OPEN_STATUSES, Audience, ChatState

_T = TypeVar("_T")

_FACTS: Final = """
SELECT id, state, settled, archived, version, calls, facts, profiles.body, worker, token
FROM chats JOIN profiles ON profiles.chat_id = id LEFT JOIN leases ON leases.chat_id = id
"""


def facts(connection: sqlite3.Connection, chat_id: str) -> Facts:
    """Return where a chat stands."""
    row = connection.execute(f"{_FACTS} WHERE id = ?", (chat_id,)).fetchone()
    if row is None:
        raise ChatNotFound(chat_id)
    return _assembled(connection, row)


def chats(
    connection: sqlite3.Connection, *, owner: str | None, state: ChatState | None, limit: int, after: str | None
) -> list[Facts]:
    """Return chats, newest first."""
    conditions = {
        "owner = ?": owner,
        "state = ?": state.value if state else None,
        "number < (SELECT number FROM chats WHERE id = ?)": after,
    }
    asked = {condition: value for condition, value in conditions.items() if value is not None}
    where = f"WHERE {' AND '.join(asked)}" if asked else ""
    rows = connection.execute(f"{_FACTS} {where} ORDER BY number DESC LIMIT ?", (*asked.values(), limit)).fetchall()
    return [_assembled(connection, row) for row in rows]


def _assembled(connection: sqlite3.Connection, row: Sequence[str]) -> Facts:
    columns, (profile, worker, token) = FactsRow._make(row[:-3]), row[-3:]
    known = calls(connection, columns.id, json.loads(columns.calls)) if columns.calls != "[]" else {}
    queue = connection.execute("SELECT body FROM queue WHERE chat_id = ? ORDER BY rank", (columns.id,))
    lease = None if worker is None else Lease(worker, int(token))
    return facts_of(columns, profile, known.values(), _each(QUEUE, queue), lease)


def lease_expiry(connection: sqlite3.Connection, chat_id: str) -> int | None:
    """Return when the chat's lease runs out, in microseconds."""
    row = connection.execute("SELECT expires FROM leases WHERE chat_id = ?", (chat_id,)).fetchone()
    return None if row is None else row[0]


def history(connection: sqlite3.Connection, chat_id: str, *, at_version: int | None, after: int) -> list[Message]:
    """Return the messages after a position that are not cut, now or as of a version."""
    if at_version is None:
        return _messages(connection, chat_id, "position > ? AND cut IS NULL", after)
    then = "position > ? AND added <= ? AND (cut IS NULL OR cut > ?)"
    return _messages(connection, chat_id, then, after, at_version, at_version)


def prompt(connection: sqlite3.Connection, chat_id: str) -> list[Message]:
    """Return what the model sees: of a newest boundary its summary, what it carries, and what came after."""
    position, reason, carried = _newest_boundary(connection, chat_id)
    seen = _messages(
        connection,
        chat_id,
        "cut IS NULL AND audience <> ? AND (position > ? OR position IN (SELECT value FROM json_each(?)))",
        Audience.user.value,
        position,
        carried,
    )
    summary = position + 1 if reason == "compaction" else 0
    return in_call_order(sorted(seen, key=lambda message: message.position != summary))


def cut_at(connection: sqlite3.Connection, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
    """Return a message of the history, and what an edit of it would cut."""
    found = _messages(connection, chat_id, "cut IS NULL AND id = ?", message_id)
    if not found:
        return None
    message = found[0]
    boundary, reason, carried = _newest_boundary(connection, chat_id, before=message.position)
    (since,) = connection.execute(
        "SELECT count(*) FROM messages WHERE chat_id = ? AND cut IS NULL AND audience <> ?"
        " AND position > ? AND position < ?",
        (chat_id, Audience.user.value, boundary + (reason == "compaction"), message.position),
    ).fetchone()
    cut = Cut(
        position=message.position,
        first_removed=message.id,
        boundary=boundary,
        foldable=since + len(json.loads(carried)),
        history_version=facts(connection, chat_id).history_version,
    )
    return message, cut


def _messages(connection: sqlite3.Connection, chat_id: str, condition: str, *values: str | int) -> list[Message]:
    sql = f"SELECT format, body FROM messages WHERE chat_id = ? AND {condition} ORDER BY position"  # noqa: S608 - ours
    return [message_of(form, body) for form, body in connection.execute(sql, (chat_id, *values))]


def _newest_boundary(
    connection: sqlite3.Connection, chat_id: str, *, before: int = 2**63 - 1
) -> tuple[int, str | None, str]:
    row: tuple[int, str, str] | None = connection.execute(
        "SELECT position, reason, carried FROM boundaries WHERE chat_id = ? AND cut IS NULL AND position < ?"
        " ORDER BY position DESC LIMIT 1",
        (chat_id, before),
    ).fetchone()
    return row or (0, None, "[]")


def calls(connection: sqlite3.Connection, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
    """Return those of the calls that the chat has ever had, by step and index."""
    rows = connection.execute(
        "SELECT body FROM calls WHERE chat_id = ? AND call_id IN (SELECT value FROM json_each(?)) ORDER BY step, idx",
        (chat_id, json.dumps(list(call_ids))),
    )
    return {call.call_id: call for call in _each(CALLS, rows)}


def receipt(connection: sqlite3.Connection, chat_id: str, client_id: str) -> RecordReceipt | None:
    """Return the receipt of a client's message."""
    sql = "SELECT body FROM receipts WHERE chat_id = ? AND client_id = ?"
    row = connection.execute(sql, (chat_id, client_id)).fetchone()
    return None if row is None else RECEIPTS.load(row[0])


def ledger(connection: sqlite3.Connection, chat_id: str) -> list[RecordUsage]:
    """Return every model call's usage, in order."""
    sql = "SELECT body FROM usage WHERE chat_id = ? ORDER BY version, number"
    return _each(USAGE, connection.execute(sql, (chat_id,)))


def events(connection: sqlite3.Connection, chat_id: str, *, after: int, limit: int) -> list[Event]:
    """Return events, in order."""
    rows = connection.execute(_EVENTS, (chat_id, after, limit))
    return [event_of(*row) for row in rows]


def shown(connection: sqlite3.Connection, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
    """Return the parts shown of an attempt, in order."""
    rows = connection.execute(_SHOWN, (chat_id, step, attempt))
    return [event for event in (event_of(*row) for row in rows) if isinstance(event, PartEvent)]


def audit(connection: sqlite3.Connection, chat_id: str) -> list[AuditRecord]:
    """Return the audit records, in order of version."""
    sql = "SELECT version, lower(hex(hash)), body FROM audit WHERE chat_id = ? ORDER BY version"
    rows = connection.execute(sql, (chat_id,))
    try:
        return log_of(chat_id, map(Entry._make, rows))
    except ValueError as error:
        raise unreadable(f"audit log of chat {chat_id!r}", error) from error


def holders(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the workers that hold a lease."""
    return frozenset(worker for (worker,) in connection.execute("SELECT DISTINCT worker FROM leases"))


def overdue(connection: sqlite3.Connection, *, now: int, limit: int) -> Overdue:
    """Return what has run out at `now`, in microseconds."""
    leases = connection.execute(
        "SELECT chat_id, token FROM leases WHERE expires <= ? ORDER BY expires LIMIT ?", (now, limit)
    )
    deadlines = connection.execute(_DEADLINES, (now, limit))
    strays = connection.execute(_STRAYS, (limit,))
    return Overdue(
        leases=tuple((chat_id, token) for chat_id, token in leases),
        deadlines=tuple(dict.fromkeys(chat_id for (chat_id,) in deadlines)),
        strays=tuple(chat_id for (chat_id,) in strays),
    )


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


_EVENTS: Final = f"{TOLD} WHERE events.chat_id = ? AND seq > ? ORDER BY seq LIMIT ?"
_SHOWN: Final = f"""
{TOLD} WHERE kind = 'part' AND events.chat_id = ? AND events.step = ? AND events.attempt = ? ORDER BY seq
"""
_DEADLINES: Final = f"""
SELECT chat_id FROM calls JOIN chats ON chats.id = chat_id
WHERE deadline <= ? AND status IN ({_listed(sorted(OPEN_STATUSES))})
AND chats.state = 'requires_action' AND archived = 0
ORDER BY deadline LIMIT ?
"""  # noqa: S608 - our own words
_STRAYS: Final = f"SELECT id FROM chats WHERE state NOT IN ({_listed(ChatState)}) ORDER BY number LIMIT ?"  # noqa: S608


def _each(kind: Body[_T], rows: Iterable[tuple[str]]) -> list[_T]:
    return [kind.load(body) for (body,) in rows]


def in_one_snapshot(connection: sqlite3.Connection, question: Callable[[sqlite3.Connection], _T]) -> _T:
    """Return the answer to a question whose statements all see the database at one moment."""
    connection.execute("BEGIN")
    try:
        return question(connection)
    finally:
        connection.execute("ROLLBACK")
