"""Pruning in PostgreSQL: deletes the parts of replies that are over, a few at a time, once nobody needs them."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import asyncpg

from turnwise.persistence.passed_over import Refusals
from turnwise.persistence.postgres.queries import facts
from turnwise.persistence.protocol import Pruned
from turnwise.states.errors import ChatNotFound, StoreError

FIRST_PARTS: Final = """
WITH RECURSIVE first AS (
    (SELECT chat_id, at FROM partial_events WHERE kind = 'part' AND chat_id > $1
     ORDER BY chat_id, step, attempt LIMIT 1)
    UNION ALL
    SELECT next.chat_id, next.at FROM first, LATERAL (
        SELECT chat_id, at FROM partial_events WHERE kind = 'part' AND partial_events.chat_id > first.chat_id
        ORDER BY chat_id, step, attempt LIMIT 1
    ) AS next
)
SELECT chat_id, at <= coalesce($2, clock_timestamp()) - make_interval(secs => $3) AS old FROM first LIMIT $4
"""
DELETE: Final = """
DELETE FROM partial_events USING (
    SELECT chat_id, seq, at FROM partial_events
    WHERE kind = 'part' AND chat_id = $1 AND (step, attempt) < ($2, $3)
    ORDER BY step, attempt LIMIT $4 FOR UPDATE SKIP LOCKED
) AS over
WHERE partial_events.chat_id = over.chat_id AND partial_events.seq = over.seq
AND over.at <= coalesce($5, clock_timestamp()) - make_interval(secs => $6)
"""


async def prune(
    connection: asyncpg.Connection, refusals: Refusals, *, now: datetime | None, keep: float, after: str, limit: int
) -> Pruned:
    """Delete parts of replies that are over, shown at least `keep` seconds before `now`, or the database's time.

    Each chat is a transaction of its own. A chat that another worker is pruning is left to that worker.
    """
    deleted = 0
    chats = await connection.fetch(FIRST_PARTS, after, now, keep, limit)
    for chat_id, old in chats:
        if old:
            deleted += await _prune_chat(connection, refusals, chat_id, now, keep, limit - deleted)
        if deleted == limit:
            return Pruned(deleted, after)
        after = chat_id
    return Pruned(deleted, after if len(chats) == limit else None)


async def _prune_chat(
    connection: asyncpg.Connection, refusals: Refusals, chat_id: str, now: datetime | None, keep: float, limit: int
) -> int:
    try:
        over_before = (await facts(connection, chat_id)).step.over_before
    except (StoreError, ChatNotFound) as error:
        refusals.note("prune_refused", chat_id, error)
        return 0
    done = await connection.execute(DELETE, chat_id, *over_before, limit, now, keep)
    return int(done.removeprefix("DELETE "))
