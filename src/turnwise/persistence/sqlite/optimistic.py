"""Changes to chats that are decided before the transaction, on where this process knows the chats to stand.

The statement proves that a chat stands there still, or writes nothing. The lock on the file is thus held for SQL only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.commit import CachedChat, Held, erasing
from turnwise.persistence.protocol import Committed, Plan
from turnwise.persistence.rows import blank_facts, numbered
from turnwise.persistence.sqlite.event_rows import rows_of
from turnwise.persistence.sqlite.write_rows import insert, insert_events_as_found, prepared, update_as_found
from turnwise.states.events import Event, PartEvent

Submit = Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]
"""Does a piece of work inside a transaction and returns its result once that is committed."""


class OptimisticCommits:
    """Commits what was decided on the cached standings of chats. Only one task at a time may change a chat."""

    def __init__(self, now: Callable[[], datetime], cache: ChatCache, submit: Submit) -> None:
        self._now = now
        self._cache = cache
        self._submit = submit

    async def create(
        self, chat_id: str, plan: Plan, parent: tuple[str, int] | None = None, *, unchanged: bool = False
    ) -> Committed:
        """Create a chat, as `ChatStore.create` promises."""
        at = self._now()
        blank = CachedChat(blank_facts(chat_id, at), GENESIS, at)
        decisions = tuple(plan(blank.facts, at))
        if not decisions:
            return Committed(blank.facts, blank.facts, (), (), at)
        commit = prepared(blank, decisions, ())
        await self._submit(partial(insert, commit, parent, unchanged=unchanged))
        self._cache.put(commit.after)
        return commit.committed

    async def change(self, chat_id: str, plan: Plan, shown: Sequence[PartEvent]) -> Committed | None:
        """Change a chat without reading it; return `None` if it has to be read after all."""
        cached = self._cache.get(chat_id)
        if cached is None:
            return None
        standing = replace(cached, at=self._now())
        try:
            decisions = tuple(plan(standing.facts, standing.at))
        except Exception:  # noqa: BLE001 - the cache may be out of date: only facts that were read may refuse a caller
            return None
        if not decisions or erasing(decisions):
            return None
        commit = prepared(standing, decisions, shown)
        if not await self._submit(partial(update_as_found, commit)):
            return None
        self._cache.put(commit.after)
        return commit.committed

    async def append_events(self, chat_id: str, held: Held, shown: Sequence[Event]) -> tuple[Event, ...] | None:
        """Store events of a running job; return `None` if the chat has to be read after all."""
        cached = self._cache.get(chat_id)
        if cached is None or not shown:
            return None
        before = cached.facts.last_seq
        events = numbered(shown, chat_id=chat_id, after=before, at=self._now())
        rows = rows_of(events)
        if not await self._submit(partial(insert_events_as_found, rows, before, held)):
            return None
        self._cache.move(chat_id, events[-1].seq)
        return events
