"""The limit: the rows of a durable turn straight into SQLite, grouped into commits, with no library and no model.

A turn is a chat row, four messages, six audit rows and six changes of state, in six commits, one per transition. A
writer thread takes all transitions that wait and commits them together; a chat goes on only when its own is committed.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from workload import CALLS, DELTA, DELTAS, TOOL_ARGUMENTS, USER, Contestant, run_tool

Statement = tuple[str, tuple[Any, ...]]

_SCHEMA: Final = """
CREATE TABLE chat (id TEXT PRIMARY KEY, status TEXT NOT NULL, updated REAL NOT NULL);
CREATE TABLE message (id INTEGER PRIMARY KEY, chat_id TEXT NOT NULL, seq INTEGER NOT NULL, role TEXT NOT NULL,
                      content TEXT, UNIQUE (chat_id, seq));
CREATE TABLE audit (id INTEGER PRIMARY KEY, chat_id TEXT NOT NULL, source TEXT, target TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX audit_of_chat ON audit (chat_id, id);
"""
_CHAT: Final = "INSERT INTO chat VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
_MESSAGE: Final = "INSERT INTO message (chat_id, seq, role, content) VALUES (?, ?, ?, ?)"
_AUDIT: Final = "INSERT INTO audit (chat_id, source, target, at) VALUES (?, ?, ?, ?)"
_STATUS: Final = "UPDATE chat SET status = ?, updated = ? WHERE id = ?"


class RawSQLite(Contestant):
    """Group commit and nothing else."""

    title = "raw SQLite, group commit"
    keeps = "rows only"
    distributions = ()
    imports = "import asyncio, sqlite3"
    metrics = "ABCE"

    async def open(self) -> None:
        """Start the writer thread."""
        self._loop = asyncio.get_running_loop()
        self._lengths: dict[str, int] = {}
        self._connection = sqlite3.connect(self.directory / "raw.db", isolation_level=None, check_same_thread=False)
        self._connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + _SCHEMA)
        self._waiting: queue.SimpleQueue[tuple[list[Statement], asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write)
        self._writer.start()

    async def close(self) -> None:
        """Stop it."""
        self._waiting.put(None)
        await asyncio.to_thread(self._writer.join)
        self._connection.close()

    async def turn(self, chat: str) -> int:
        """Commit the turn's transitions one after another."""
        CALLS["model"] += 2
        result = await run_tool()
        start = self._lengths.get(chat, 0)
        self._lengths[chat] = start + 4
        for statements in _transitions(chat, start, result):
            committed = self._loop.create_future()
            self._waiting.put((statements, committed))
            await committed
        return len(DELTA) * DELTAS

    async def model_alone(self) -> None:
        """Do nothing: there is no model."""

    def _write(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    self._waiting.put(None)
                    break
                batch.append(following)
            self._connection.execute("BEGIN IMMEDIATE")
            for statements, _ in batch:
                for sql, values in statements:
                    self._connection.execute(sql, values)
            self._connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_release, [committed for _, committed in batch])


def _release(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


def _transitions(chat: str, start: int, result: str) -> Iterator[list[Statement]]:
    now = time.time()

    def to(source: str, target: str, *more: Statement) -> list[Statement]:
        return [*more, (_AUDIT, (chat, source, target, now)), (_STATUS, (target, now, chat))]

    asked: Statement = (_MESSAGE, (chat, start, "user", USER))
    yield to("waiting", "pending", (_CHAT, (chat, "waiting", now)), asked)
    yield to("pending", "streaming")
    yield to("streaming", "executing_tools", (_MESSAGE, (chat, start + 1, "assistant", TOOL_ARGUMENTS)))
    yield to("executing_tools", "executed", (_MESSAGE, (chat, start + 2, "tool", result)))
    yield to("executed", "streaming")
    yield to("streaming", "waiting", (_MESSAGE, (chat, start + 3, "assistant", DELTA * DELTAS)))
