"""Pruning in PostgreSQL: deletes the parts of replies that are over, a few at a time, once nobody needs them."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import asyncpg

from turnwise.persistence.integrity.passed_over import PassedOver
from turnwise.persistence.postgres.queries import facts
from turnwise.persistence.protocol import Pruned
from turnwise.persistence.sql.statements import statements_of
from turnwise.states.errors import ChatNotFound, StoreError

_SQL: Final = statements_of(__name__)


async def prune(
    connection: asyncpg.Connection,
    passed_over: PassedOver,
    *,
    now: datetime | None,
    keep: float,
    after: str,
    limit: int,
) -> Pruned:
    """Delete parts of replies that are over, shown at least `keep` seconds before `now`, or the database's time.

    Each chat is a transaction of its own. A chat that another worker is pruning is left to that worker.
    """
    deleted = 0
    chats = await connection.fetch(_SQL["first_parts"], after, now, keep, limit)
    for chat_id, old in chats:
        if old:
            deleted += await _prune_chat(connection, passed_over, chat_id, now, keep, limit - deleted)
        if deleted == limit:
            return Pruned(deleted, after)
        after = chat_id
    return Pruned(deleted, after if len(chats) == limit else None)


async def _prune_chat(
    connection: asyncpg.Connection, passed_over: PassedOver, chat_id: str, now: datetime | None, keep: float, limit: int
) -> int:
    try:
        over_before = (await facts(connection, chat_id)).step.over_before
    except (StoreError, ChatNotFound) as error:
        passed_over.note("prune_refused", chat_id, error)
        return 0
    done = await connection.execute(_SQL["delete"], chat_id, *over_before, limit, now, keep)
    return int(done.removeprefix("DELETE "))
