"""Pruning: deletes the parts of replies that are over, a few at a time, once they are old enough."""

from __future__ import annotations

from datetime import datetime, timedelta

from turnwise.persistence.integrity.passed_over import PassedOver
from turnwise.persistence.protocol import Pruned
from turnwise.persistence.sql.database import SQLDatabase
from turnwise.persistence.sql.reads import ChatReads
from turnwise.states.errors import ChatNotFound, StoreError


async def prune(on: SQLDatabase, passed_over: PassedOver, *, keep: float, after: str, limit: int) -> Pruned:
    """Delete parts of replies that are over, shown at least `keep` seconds ago.

    A chat costs one step along the index of parts, which holds only those that are left. A chat that another worker is
    pruning is left to that worker.
    """
    until = await on.now() - timedelta(seconds=keep)
    deleted = 0
    chats = await on.fetch("first_parts", after=after, until=until, limit=limit)
    for chat_id, is_old in chats:
        if is_old:
            deleted += await _prune_chat(on, passed_over, chat_id, until, limit - deleted)
        if deleted == limit:
            return Pruned(deleted, after)
        after = chat_id
    return Pruned(deleted, after if len(chats) == limit else None)


async def _prune_chat(on: SQLDatabase, passed_over: PassedOver, chat_id: str, until: datetime, limit: int) -> int:
    try:
        step, attempt = (await ChatReads(on, chat_id).facts()).step.over_before
    except (StoreError, ChatNotFound) as error:
        passed_over.note("prune_refused", chat_id, error)
        return 0
    values = {"step": step, "attempt": attempt, "until": until, "limit": limit}
    return await on.execute("prune_chat", chat_id=chat_id, **values)
