"""Reads chats from SQLite: each function answers one question from one snapshot of the database."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from turnwise.persistence.audit.record import AuditRecord, Entry, log_of
from turnwise.persistence.protocol import PAGE_BYTES, EventPage, Expiry, Overdue, Snapshot, Waiting
from turnwise.persistence.rows import (
    CALLS,
    GARBLED,
    RECEIPTS,
    USAGE,
    Body,
    event_of,
    message_of,
    time_of,
    unreadable,
)
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.sqlite.connection import first_rows
from turnwise.persistence.sqlite.tombstones import missing
from turnwise.persistence.stored_chat import PartialRead, Stored, facts_of, facts_or_rest, head_of, ids_of, is_count
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import PartEvent, TurnFinishedEvent
from turnwise.states.facts import Facts
from turnwise.states.message_order import in_prompt_order
from turnwise.states.messages import Message
from turnwise.states.names import OPEN_STATUSES, Answerer, Audience, ChatState
from turnwise.states.writes import RecordReceipt, RecordUsage

_T = TypeVar("_T")

_SQL: Final = statements_of(__name__)


def facts(connection: sqlite3.Connection, chat_id: str) -> Facts:
    """Return where a chat stands."""
    return facts_of(stored(connection, chat_id))


def stored(connection: sqlite3.Connection, chat_id: str) -> Stored:
    """Return the stored values that say where a chat stands."""
    row = connection.execute(f"{_SQL['facts']} WHERE id = ?", (chat_id,)).fetchone()
    if row is None:
        raise missing(connection, chat_id)
    return _stored(connection, row)


def chats(
    connection: sqlite3.Connection,
    *,
    owner: str | None,
    state: ChatState | None,
    limit: int,
    after: str | None,
    awaiting: Answerer | None = None,
) -> list[Facts | PartialRead]:
    """Return chats, newest first."""
    conditions = {
        "owner = ?": owner,
        "state || '' = ?": state.value if state else None,
        "archived = 0 AND awaits IN (?, 'both')": awaiting,
        f"number < (SELECT number FROM ({_NUMBERS}) WHERE id = ?)": after,  # noqa: S608 - ours
    }
    filters = {condition: value for condition, value in conditions.items() if value is not None}
    where = f"WHERE {' AND '.join(filters)}" if filters else ""
    rows = connection.execute(
        f"{_SQL['facts']} {where} ORDER BY number DESC LIMIT ?", (*filters.values(), limit)
    ).fetchall()
    return [facts_or_rest(_stored(connection, row)) for row in rows]


def waiting_since(connection: sqlite3.Connection) -> Waiting:
    """Return since when the longest waiting chat of each agent waits for a worker, as far as that can be read."""
    waiting: dict[str, datetime] = {}
    for agent, since in connection.execute(_SQL["waiting"]).fetchall():
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if isinstance(agent, str):
                waiting[agent] = time_of(since)
    return Waiting(waiting)


def head(connection: sqlite3.Connection, chat_id: str) -> tuple[int, str]:
    """Return a chat's version and the hash of its last record."""
    row = connection.execute("SELECT version, head FROM chats WHERE id = ?", (chat_id,)).fetchone()
    if row is None:
        raise missing(connection, chat_id)
    return head_of(chat_id, row[0], row[1])


def awaiting_subagents(connection: sqlite3.Connection, *, after: str, limit: int) -> list[str]:
    """Return the ids of chats that wait for subagents, oldest first."""
    return [chat_id for (chat_id,) in connection.execute(_SQL["awaiting_subagents"], (after, limit)).fetchall()]


def ids(connection: sqlite3.Connection, prefix: str, limit: int, *, owner: str | None = None) -> list[str]:
    """Return ids that begin with a prefix, the most recent change of state first."""
    whose = "" if owner is None else "AND owner = :owner"
    values = {"begin": prefix, "end": f"{prefix}\U0010ffff", "owner": owner, "limit": limit}
    rows = connection.execute(_IDS.format(whose=whose), values).fetchall()
    return [chat_id for (chat_id,) in rows]


def _stored(connection: sqlite3.Connection, row: Sequence[Any]) -> Stored:
    chat_id, call_ids = row[0], row[5]
    calls: list[Any] = []
    if call_ids != "[]":
        with contextlib.suppress(*GARBLED):  # building the facts raises it again
            calls = _bodies(connection, _SQL["calls"], chat_id, json.dumps(ids_of(call_ids)))
    queue = _bodies(connection, "SELECT body FROM queue WHERE chat_id = ? ORDER BY rank", chat_id)
    profile, worker, token, last_seq = row[7:]
    return Stored._make((*row[:7], profile, calls, queue, worker, token, last_seq, "chats.facts", "leases"))


def _bodies(connection: sqlite3.Connection, sql: str, *values: str) -> list[Any]:
    return [body for (body,) in connection.execute(sql, values)]


def lease_expiry(connection: sqlite3.Connection, chat_id: str, *, now: datetime) -> Expiry | None:
    """Return when the chat's lease runs out."""
    row = connection.execute("SELECT expires FROM leases WHERE chat_id = ?", (chat_id,)).fetchone()
    try:
        return None if row is None else Expiry(time_of(row[0]), now)
    except GARBLED as error:
        raise unreadable(chat_id, "leases.expires", error) from None


def history(
    connection: sqlite3.Connection, chat_id: str, *, at_version: int | None, after: int, size: int | None
) -> list[Message]:
    """Return the messages after a position that are not cut, now or as of a version: about `size` bytes of them."""
    if at_version is None:
        return _messages(connection, chat_id, "position > ? AND cut IS NULL", after, size=size)
    then = "position > ? AND added <= ? AND (cut IS NULL OR cut > ?)"
    return _messages(connection, chat_id, then, after, at_version, at_version, size=size)


def snapshot(connection: sqlite3.Connection, chat_id: str, *, size: int | None) -> Snapshot:
    """Return a chat, the first of its history and the shown parts of the attempt under way."""
    chat = facts(connection, chat_id)
    messages = history(connection, chat_id, at_version=None, after=0, size=size)
    step = chat.step
    parts = shown(connection, chat_id, step.number, step.attempt) if step.attempt_open else []
    row = connection.execute(_SQL["last_finished"], (chat_id,)).fetchone()
    finished = None if row is None else event_of(*row)
    reason = finished.stop_reason if isinstance(finished, TurnFinishedEvent) else None
    return Snapshot(chat, tuple(messages), tuple(parts), reason)


def prompt(connection: sqlite3.Connection, chat_id: str) -> list[Message]:
    """Return what the model sees: the newest boundary's summary and carried messages, and what came after it."""
    position, carried = _newest_boundary(connection, chat_id)
    messages = _messages(
        connection,
        chat_id,
        "cut IS NULL AND audience <> ? AND (position > ? OR position IN (SELECT value FROM json_each(?)))",
        Audience.user.value,
        position,
        carried,
    )
    return in_prompt_order(messages, json.loads(carried))


def cut_at(connection: sqlite3.Connection, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
    """Return a message of the history, and what an edit of it would cut."""
    messages = _messages(connection, chat_id, "cut IS NULL AND id = ?", message_id)
    if not messages:
        return None
    message = messages[0]
    boundary, carried = _newest_boundary(connection, chat_id, before=message.position)
    between = (chat_id, Audience.everyone.value, boundary, message.position)
    (newer,) = connection.execute(_SQL["said_between"], between).fetchone()
    carried_over = sum(position < boundary for position in json.loads(carried))
    cut = Cut(
        position=message.position,
        first_removed=message.id,
        boundary=boundary,
        foldable=newer + carried_over,
        history_version=facts(connection, chat_id).history_version,
    )
    return message, cut


def _messages(
    connection: sqlite3.Connection, chat_id: str, condition: str, *values: str | int, size: int | None = None
) -> list[Message]:
    of_chat = f"FROM messages WHERE chat_id = ? AND {condition} ORDER BY position"
    sql = f"SELECT format, body, length(body) {of_chat}"
    rows, _ = first_rows(connection, sql, (chat_id, *values), size=math.inf if size is None else size)
    return [message_of(form, body, chat_id) for form, body, _ in rows]


def _newest_boundary(connection: sqlite3.Connection, chat_id: str, *, before: float = math.inf) -> tuple[int, str]:
    row: tuple[int, str] | None = connection.execute(_SQL["newest_boundary"], (chat_id, before)).fetchone()
    if row is None:
        return 0, "[]"
    try:
        msgspec.json.decode(row[1], type=list[int])
    except GARBLED as error:
        raise unreadable(chat_id, "boundaries.carried", error) from None
    if not is_count(row[0]):
        raise ChatUnreadable("boundaries.position", "a count belongs here", chat_id=chat_id)
    return row


def calls(connection: sqlite3.Connection, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
    """Return the calls of these ids that the chat has ever had, by step and index."""
    rows = connection.execute(_SQL["calls"], (chat_id, json.dumps(list(call_ids))))
    return {call.call_id: call for call in _each(CALLS, rows, chat_id)}


def receipt(connection: sqlite3.Connection, chat_id: str, client_id: str) -> RecordReceipt | None:
    """Return the receipt of a client's message."""
    sql = "SELECT body FROM receipts WHERE chat_id = ? AND client_id = ?"
    row = connection.execute(sql, (chat_id, client_id)).fetchone()
    return None if row is None else RECEIPTS.load(row[0], chat_id)


def ledger(connection: sqlite3.Connection, chat_id: str) -> list[RecordUsage]:
    """Return every model call's usage, in order."""
    sql = "SELECT body FROM usage WHERE chat_id = ? ORDER BY version, number"
    return _each(USAGE, connection.execute(sql, (chat_id,)), chat_id)


def events(connection: sqlite3.Connection, chat_id: str, *, after: int, limit: int) -> EventPage:
    """Return a page of events, in order."""
    rows, is_full = first_rows(connection, _SQL["events"], (chat_id, after, limit), size=PAGE_BYTES)
    page = EventPage(event_of(*columns) for *columns, _ in rows)
    page.more = len(page) == limit or is_full
    return page


def shown(connection: sqlite3.Connection, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
    """Return the parts shown of an attempt, in order."""
    rows = connection.execute(_SQL["parts"], (chat_id, step, attempt))
    return [event for event in (event_of(*row) for row in rows) if isinstance(event, PartEvent)]


def audit(connection: sqlite3.Connection, chat_id: str) -> list[AuditRecord]:
    """Return the audit records, in order of version."""
    sql = "SELECT version, lower(hex(hash)), body, aside FROM audit WHERE chat_id = ? ORDER BY version"
    rows = connection.execute(sql, (chat_id,))
    try:
        return log_of(chat_id, map(Entry._make, rows))
    except GARBLED as error:
        raise unreadable(chat_id, "audit.body", error) from None


def holders(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the workers that hold a lease."""
    rows = connection.execute("SELECT DISTINCT worker FROM leases")
    return frozenset(worker for (worker,) in rows if isinstance(worker, str))


def overdue(connection: sqlite3.Connection, *, now: int, limit: int) -> Overdue:
    """Return what has run out at `now`, in microseconds."""
    leases = connection.execute(
        # SQLite sorts text after every number: a lease whose expiry is not a number counts as run out.
        "SELECT chat_id, token FROM leases WHERE expires <= ? OR expires >= '' ORDER BY expires LIMIT ?",
        (now, limit),
    )
    deadlines = connection.execute(_DEADLINES, (now, limit))
    strays = connection.execute(_STRAYS, (limit,))
    return Overdue(
        leases=tuple((chat_id, token) for chat_id, token in leases),
        deadlines=tuple(chat_id for (chat_id,) in deadlines),
        strays=tuple(chat_id for (chat_id,) in strays),
    )


def rested(connection: sqlite3.Connection, *, archived: bool, until: int, limit: int) -> list[str]:
    """Return resting chats, archived or not, that were changed last at `until` or before, in microseconds."""
    sql = "SELECT id FROM chats WHERE archived = ? AND rested <= ? ORDER BY rested LIMIT ?"
    return [chat_id for (chat_id,) in connection.execute(sql, (archived, until, limit))]


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


_NUMBERS: Final = "SELECT id, number FROM chats UNION ALL SELECT id, number FROM tombstones"
_DEADLINES: Final = _SQL["deadlines"].format(open_statuses=_listed(sorted(OPEN_STATUSES)))
_IDS: Final = (
    "SELECT id FROM chats WHERE id >= :begin AND id < :end {whose} ORDER BY since DESC, number DESC LIMIT :limit"
)
_IN_NO_STATE: Final = " AND ".join(f"state <> '{state}'" for state in ChatState)
_STRAYS: Final = f"SELECT id FROM chats WHERE {_IN_NO_STATE} ORDER BY number LIMIT ?"  # noqa: S608 - names of our own
"""Its condition is that of the index of strays."""


def _each(kind: Body[_T], rows: Iterable[tuple[str]], chat_id: str) -> list[_T]:
    return [kind.load(body, chat_id) for (body,) in rows]


def in_one_snapshot(connection: sqlite3.Connection, question: Callable[[sqlite3.Connection], _T]) -> _T:
    """Return the answer to a question whose statements all see the same moment of the database."""
    if connection.in_transaction:  # a ROLLBACK failed
        connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    try:
        return question(connection)
    finally:
        connection.execute("ROLLBACK")
