"""Performs a decision's writes in SQLite: one function for each kind of write, inside a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from turnwise.persistence.protocol import DuplicateReceipt
from turnwise.persistence.rows import CALLS, columns_of_call, columns_of_message, micros_in, micros_of
from turnwise.states import writes as w
from turnwise.states.errors import StoreError
from turnwise.states.messages import FORMAT

_INSERT_MESSAGE: Final = """
INSERT INTO messages (chat_id, position, id, role, turn, step, audience, added, erased, digest, salt, format, body)
VALUES (:chat_id, :position, :id, :role, :turn, :step, :audience, :added, :erased, :digest, :salt, :format, :body)
"""
_PUT_CALL: Final = """
INSERT INTO calls (chat_id, call_id, step, idx, status, deadline, body)
VALUES (:chat_id, :call_id, :step, :idx, :status, :deadline, :body)
ON CONFLICT (chat_id, call_id) DO UPDATE SET step = excluded.step, idx = excluded.idx,
    status = excluded.status, deadline = excluded.deadline, body = excluded.body
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and when a decision is performed."""

    connection: sqlite3.Connection
    chat_id: str
    version: int
    """The version that the decision makes."""
    at: datetime


def perform(place: Place, writes: Sequence[w.Write]) -> None:
    """Do the writes, in order.

    Raises:
        DuplicateReceipt: a receipt's `client_id` has one already.
        StoreError: the step has a compaction already.
    """
    for number, write in enumerate(writes):
        if isinstance(write, w.RecordUsage):
            _record_usage(place, write, number)
        else:
            _PERFORM[type(write)](place, write)


def _insert_message(place: Place, write: w.InsertMessage) -> None:
    own = {"digest": write.digest, "salt": write.salt, "format": FORMAT, "body": write.body}
    row = columns_of_message(write.message) | own | {"chat_id": place.chat_id, "added": place.version}
    place.connection.execute(_INSERT_MESSAGE, row)


def _cut_history(place: Place, write: w.CutHistory) -> None:
    cut = (place.version, place.chat_id, write.position)
    for table in ("messages", "boundaries"):
        place.connection.execute(
            f"UPDATE {table} SET cut = ? WHERE chat_id = ? AND position >= ? AND cut IS NULL",  # noqa: S608 - two names
            cut,
        )


def _put_call(place: Place, write: w.PutCall) -> None:
    row = columns_of_call(write.call) | {"chat_id": place.chat_id, "body": CALLS.dump(write.call)}
    place.connection.execute(_PUT_CALL, row)


def _put_queued(place: Place, write: w.PutQueued) -> None:
    if write.rank is None:
        sql = "UPDATE queue SET body = ?, salt = ? WHERE chat_id = ? AND id = ?"
        place.connection.execute(sql, (write.body, write.salt, place.chat_id, write.id))
    else:
        sql = "INSERT OR REPLACE INTO queue (chat_id, id, rank, body, salt) VALUES (?, ?, ?, ?, ?)"
        place.connection.execute(sql, (place.chat_id, write.id, write.rank, write.body, write.salt))


def _drop_queued(place: Place, write: w.DropQueued) -> None:
    place.connection.execute("DELETE FROM queue WHERE chat_id = ? AND id = ?", (place.chat_id, write.queued_id))


def _insert_boundary(place: Place, write: w.InsertBoundary) -> None:
    try:
        place.connection.execute(
            "INSERT INTO boundaries (chat_id, position, reason, step, carried) VALUES (?, ?, ?, ?, ?)",
            (place.chat_id, write.position, write.reason, write.step, json.dumps(write.carried)),
        )
    except sqlite3.IntegrityError as error:
        raise StoreError(
            f"chat {place.chat_id!r} has a compaction for step {write.step} already; nothing was written"
        ) from error


def _grant_lease(place: Place, write: w.GrantLease) -> None:
    lasts = timedelta(seconds=write.seconds)
    place.connection.execute(
        "INSERT OR REPLACE INTO leases (chat_id, worker, token, expires, lasts) VALUES (?, ?, ?, ?, ?)",
        (place.chat_id, write.lease.worker, write.lease.token, micros_of(place.at + lasts), micros_in(lasts)),
    )


def _drop_lease(place: Place, write: w.DropLease) -> None:
    place.connection.execute("DELETE FROM leases WHERE chat_id = ? AND token = ?", (place.chat_id, write.token))


def _record_usage(place: Place, write: w.RecordUsage, number: int) -> None:
    place.connection.execute(
        "INSERT INTO usage (chat_id, version, number, body) VALUES (?, ?, ?, ?)",
        (place.chat_id, place.version, number, write.body),
    )


def _put_profile(place: Place, write: w.PutProfile) -> None:
    place.connection.execute(
        "INSERT OR REPLACE INTO profiles (chat_id, body, salt) VALUES (?, ?, ?)",
        (place.chat_id, write.body, write.salt),
    )
    place.connection.execute("UPDATE chats SET owner = ? WHERE id = ?", (write.profile.owner, place.chat_id))


def _record_receipt(place: Place, write: w.RecordReceipt) -> None:
    try:
        place.connection.execute(
            "INSERT INTO receipts (chat_id, client_id, body) VALUES (?, ?, ?)",
            (place.chat_id, write.client_id, write.body),
        )
    except sqlite3.IntegrityError as error:
        raise DuplicateReceipt(place.chat_id, write.client_id) from error


def _elsewhere(place: Place, write: w.Write) -> None:
    """Store nothing: deadline and reason stand in other rows, and `erasure` blanks what is erased."""


_PERFORM: Final[dict[type[w.Write], Callable[[Place, Any], None]]] = {
    w.InsertMessage: _insert_message,
    w.CutHistory: _cut_history,
    w.PutCall: _put_call,
    w.PutQueued: _put_queued,
    w.DropQueued: _drop_queued,
    w.InsertBoundary: _insert_boundary,
    w.GrantLease: _grant_lease,
    w.DropLease: _drop_lease,
    w.PutProfile: _put_profile,
    w.RecordReceipt: _record_receipt,
    **dict.fromkeys((w.EraseEdits, w.EraseMessage, w.EraseText, w.NoteDeadline, w.NoteReason), _elsewhere),
}
