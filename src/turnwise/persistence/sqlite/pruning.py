"""Pruning in SQLite: deletes the parts of replies that are over, a few at a time, once nobody needs them."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from itertools import takewhile
from typing import Final

from turnwise.persistence.integrity.passed_over import PassedOver
from turnwise.persistence.protocol import Pruned
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sql.statements import statements_of
from turnwise.persistence.sqlite import queries
from turnwise.states.errors import ChatNotFound, StoreError

_SQL: Final = statements_of(__name__)


def prune(
    connection: sqlite3.Connection, passed_over: PassedOver, *, until: datetime, after: str, limit: int
) -> Pruned:
    """Delete parts of replies that are over, shown at `until` or before.

    The index holds only the parts that are left, so a chat costs one lookup and a part one deletion.
    """
    deleted, latest = 0, micros_of(until)
    for _ in range(limit):
        first = connection.execute(_SQL["next_chat"], (after,)).fetchone()
        if first is None:
            return Pruned(deleted, None)
        chat_id, at = first
        if at <= latest:
            deleted += _prune_chat(connection, passed_over, chat_id, latest, limit - deleted)
        if deleted == limit:
            break
        after = chat_id
    return Pruned(deleted, after)


def _prune_chat(connection: sqlite3.Connection, passed_over: PassedOver, chat_id: str, latest: int, limit: int) -> int:
    try:
        over_before = queries.facts(connection, chat_id).step.over_before
    except (StoreError, ChatNotFound) as error:
        passed_over.note("prune_refused", chat_id, error)
        return 0
    rows = connection.execute(_SQL["over"], (chat_id, *over_before, limit)).fetchall()
    old = [(rowid,) for rowid, _ in takewhile(lambda row: row[1] <= latest, rows)]
    connection.executemany("DELETE FROM events WHERE rowid = ?", old)
    return len(old)
