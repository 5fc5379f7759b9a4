"""The limit of turnwise: the SQL of one of its turns, again and again, and nothing else of a turn.

An engine runs one turn in a database of its own, and its statements are kept, commit by commit. Each turn that is
measured runs them as another chat's, through turnwise's own group commit and thread: what a turn would take if
deciding, encoding, hashing, streaming and following took no time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from turnwise_engine import Turnwise
from workload import CALLS, DELTA, DELTAS, Contestant, run_tool

from turnwise.persistence.sqlite.connection import EagerConnection, SQLiteConnection
from turnwise.persistence.sqlite.database_file import DatabaseFile
from turnwise.persistence.sqlite.group_commit import GroupCommit
from turnwise.persistence.sqlite.store import SQLiteStore

Statement = tuple[str, str, Any]
"""The connection's method, the SQL, and the values of one row or of many."""

_NOT_WRITTEN: Final = ("PRAGMA", "BEGIN", "SELECT", "COMMIT", "ROLLBACK")


class ReplayedSQL(Contestant):
    """turnwise's rows by turnwise's statements, of no engine."""

    title = "turnwise's SQL, nothing else"
    keeps = "rows only"
    distributions = ("turnwise",)
    imports = "from turnwise.persistence.sqlite.store import SQLiteStore"
    metrics = "AB"

    async def open(self) -> None:
        """Keep the statements of an engine's turn, and open a database for the turns to come."""
        original = Turnwise(self.directory / "original")
        original.directory.mkdir()
        await original.open()
        with _kept() as statements:
            await original.turn("kept")
        await original.close()
        self._transactions = [*_transactions(statements)]
        self._chat_id = original.chat_id("kept")
        self._numbers: dict[str, int] = {}
        path = str(self.directory / "chats.db")
        self._connection = await SQLiteConnection.open(path, SQLiteStore(path).prepare)
        self._group_commit = GroupCommit(self._connection, file=DatabaseFile(path))

    async def close(self) -> None:
        """Close the database."""
        await self._group_commit.close()
        await self._connection.close()

    async def turn(self, chat: str) -> int:
        """Commit what the engine committed, as another chat's."""
        CALLS["model"] += 2
        await run_tool()
        for transaction in self._transactions:
            await self._group_commit.submit(partial(_run, [self._as_of(chat, each) for each in transaction]))
        return len(DELTA) * DELTAS

    async def model_alone(self) -> None:
        """Do nothing: there is no model."""

    def _as_of(self, chat: str, statement: Statement) -> Statement:
        method, sql, rows = statement
        one = method == "execute"
        names_number = "(chat, " in sql or ", chat)" in sql
        renamed = [self._renamed(chat, row, names_number=names_number) for row in ([rows] if one else rows)]
        return method, sql, renamed[0] if one else renamed

    def _renamed(self, chat: str, row: Any, *, names_number: bool) -> Any:
        """Return a row as another chat's, whose number is its first column, or that of its name."""
        number = self._numbers.setdefault(chat, len(self._numbers) + 1)
        if isinstance(row, Mapping):
            renamed = {name: chat if value == self._chat_id else value for name, value in row.items()}
            return renamed | {"chat": number} if names_number else renamed
        renamed_row = tuple(chat if value == self._chat_id else value for value in row)
        return (number, *renamed_row[1:]) if names_number else renamed_row


def _run(statements: Sequence[Statement], connection: sqlite3.Connection) -> None:
    for method, sql, rows in statements:
        getattr(connection, method)(sql, rows)


@contextmanager
def _kept() -> Iterator[list[Statement]]:
    """Keep the statements of every connection meanwhile."""
    statements: list[Statement] = []
    execute, executemany = EagerConnection.execute, EagerConnection.executemany

    def one(self: EagerConnection, sql: str, row: Any = (), /) -> sqlite3.Cursor:
        statements.append(("execute", sql, row))
        return execute(self, sql, row)

    def many(self: EagerConnection, sql: str, rows: Any, /) -> sqlite3.Cursor:
        rows = [*rows]
        statements.append(("executemany", sql, rows))
        return executemany(self, sql, rows)

    with patch.multiple(EagerConnection, execute=one, executemany=many):
        yield statements


def _transactions(statements: Sequence[Statement]) -> Iterator[list[Statement]]:
    """Yield the statements that write, transaction by transaction."""
    transaction: list[Statement] = []
    for statement in statements:
        if not statement[1].startswith(_NOT_WRITTEN):
            transaction.append(statement)
        elif statement[1].startswith("COMMIT"):
            yield transaction
            transaction = []
