"""Chats in their own SQLite database, changed without threads, with a stopped clock."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.protocol import Committed, Plan
from turnwise.persistence.sql.reads import ChatReads
from turnwise.persistence.sqlite.database import SQLiteDatabase, run_sync
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.persistence.sqlite.transactions import OptimisticCommits, SQLiteTransactions
from turnwise.states.facts import Facts
from turnwise.testing.conformance import plans

NOON: Final = datetime(2026, 11, 22, 12, tzinfo=UTC)

_T = TypeVar("_T")


class Chats:
    """A database, its transactions, and a clock that tests move."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.at = NOON
        self.on = connection
        self.cache = ChatCache()
        self.transactions = SQLiteTransactions(lambda: self.at, self.cache)
        self.optimistic = OptimisticCommits(lambda: self.at, self.cache, self._submit)

    @classmethod
    @contextmanager
    def in_memory(cls) -> Iterator[Chats]:
        """Open chats in a database in memory."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            SQLiteStore(None).prepare(connection)
            yield cls(connection)

    def create(self, chat_id: str, plan: Plan) -> Committed:
        return run_sync(self.optimistic.create(chat_id, plan))

    def live(self, chat_id: str, *moves: plans.Move, owner: str | None = None) -> None:
        """Create a chat and fire triggers."""
        self.create(chat_id, plans.plan(plans.create(owner)))
        for move in moves:
            self.change(chat_id, move)

    def change(self, chat_id: str, *moves: plans.Move) -> Facts:
        """Fire triggers on a chat in one transaction."""
        return self.transactions.change(self.on, chat_id, plans.plan(*moves), ()).facts

    @property
    def database(self) -> SQLiteDatabase:
        """Return the database as the code that both stores share uses it."""
        return SQLiteDatabase(self.on, lambda: self.at)

    def read(self, question: Callable[[ChatReads], Coroutine[Any, Any, _T]], chat_id: str = "chat") -> _T:
        return run_sync(question(ChatReads(self.database, chat_id)))

    def sql(self, sql: str, *values: Any) -> list[Any]:
        return self.on.execute(sql, values).fetchall()

    async def _submit(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        return work(self.on)
