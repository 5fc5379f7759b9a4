"""One SQLite connection on a thread of its own, and what its errors mean."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable
from typing import Final, Literal, TypeVar

import aiosqlite
import anyio

from turnwise.states.errors import StoreError

Durability = Literal["full", "normal"]
"""Whether a commit survives a power cut (`full`), or only the death of the process (`normal`)."""

_T = TypeVar("_T")

PATIENCE: Final = 30.0
"""Seconds to wait for other processes that hold the database."""

REFUSED: Final = (sqlite3.Error, UnicodeEncodeError)
"""What SQLite and its driver raise: the latter for text that is no well-formed Unicode."""

_CONTENTION: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_MEANING: Final = {
    sqlite3.SQLITE_FULL: "the disk is full; make room and try again",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only; turnwise must be able to write both",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database; name another path",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; its folder must exist and be writable",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write, or a quota or a limit on the size of files is reached",
    sqlite3.SQLITE_BUSY: f"another process held it for longer than {PATIENCE:g} s",
    sqlite3.SQLITE_PERM: "access to the file is denied",
}


class Connection:
    """A connection that does one function at a time, in the order of the calls."""

    def __init__(self, path: str, connection: aiosqlite.Connection) -> None:
        self.path = path
        self._connection = connection
        self._closed = False

    @classmethod
    async def open(cls, path: str, prepare: Callable[[sqlite3.Connection], None]) -> Connection:
        """Open a connection and prepare it, on its thread.

        Raises:
            StoreError: the database cannot be opened, or `prepare` refused it.
        """
        opened = aiosqlite.connect(path, isolation_level=None, timeout=PATIENCE)
        opened._thread.daemon = True  # noqa: SLF001 - a forgotten close must not keep the interpreter from exiting
        try:
            await opened
        except sqlite3.Error as error:
            raise meaning_of(error, path) from error
        connection = cls(path, opened)
        try:
            await connection.run(prepare)
        except BaseException:
            await connection.close()
            raise
        return connection

    def start(self, work: Callable[[sqlite3.Connection], _T]) -> asyncio.Future[_T]:
        """Begin `work` as one function on the connection's thread and return its outcome to come.

        Whoever stops waiting leaves the work running: what must not be left half done belongs in one function.

        Raises:
            StoreError: the connection is closed.
        """
        if self._closed:
            raise StoreError(f"the store {self.path!r} is closed; nothing was written")
        opened = self._connection
        outcome: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        opened._tx.put_nowait((outcome, lambda: work(opened._conn)))  # noqa: SLF001 - one hop, not one per statement
        return outcome

    async def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return what `work` returns.

        Raises:
            StoreError: the database refused, or the connection is closed.
        """
        try:
            return await self.start(work)
        except REFUSED as error:
            raise meaning_of(error, self.path) from error

    async def close(self) -> None:
        """Finish what was begun and close, even in a cancelled scope."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._connection.close()


def patiently(attempt: Callable[[], _T]) -> _T:
    """Return what `attempt` returns, trying again while other processes hold the database. It blocks the thread.

    SQLite waits by itself, but not everywhere: where it fears a deadlock or recovers a log it gives up at once.
    """
    deadline = time.monotonic() + PATIENCE
    pause = 0.001
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if _code_of(error) not in _CONTENTION or time.monotonic() > deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the waiters, guards no secret
        pause = min(pause * 2, 0.1)


def meaning_of(error: sqlite3.Error | UnicodeEncodeError, path: str) -> StoreError:
    """Return what a database error means to whoever runs turnwise."""
    if isinstance(error, UnicodeEncodeError):
        return StoreError(f"the store {path!r}: an id holds half a character and can be no one's; nothing was written")
    meaning = _MEANING.get(_code_of(error), "the database refused")
    return StoreError(f"the store {path!r}: {meaning} (SQLite: {error}); nothing was written")


def _code_of(error: sqlite3.Error) -> int:
    extended: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return extended & 0xFF
