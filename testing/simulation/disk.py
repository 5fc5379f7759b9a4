"""The database of a simulation: a real SQLite database that all engines share, and the store of one engine on it."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import anyio

from turnwise.persistence.sqlite import queries
from turnwise.persistence.sqlite.connection import meaning_of
from turnwise.persistence.sqlite.group_commit import Work
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import StoreError
from turnwise.testing.simulation.mischief import Mischief

_T = TypeVar("_T")


def new_disk() -> sqlite3.Connection:
    """Return a SQLite database in memory: what is committed stays, whoever dies."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(_blank())
    SQLiteStore(None).prepare(connection)
    return connection


@functools.cache
def _blank() -> bytes:
    """Return a database without chats: to migrate one takes longer than to copy it."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        SQLiteStore(None).prepare(connection)
        return connection.serialize()


class Dead(StoreError):
    """The process of this store has died."""

    def __init__(self) -> None:
        super().__init__("the process of this store is dead")


class SimulatedStore(SQLiteStore):
    """A SQLite store whose every transaction runs where it is called, so that one seed decides the order of all.

    The SQL, the cache and the fences are the store's own; only threads and files are taken away. `pause` is awaited
    before and after each transaction: it may take time, and it may kill the process this store stands for.
    """

    def __init__(
        self,
        disk: sqlite3.Connection,
        *,
        now: Callable[[], datetime],
        pause: Callable[[str], Awaitable[None]],
        mischief: Mischief,
    ) -> None:
        super().__init__(None, now=now)
        self._disk = disk
        self._mischief = mischief
        self._pause = pause
        self._open = False
        self.dead = False
        self.hint = anyio.Event()

    async def open(self) -> None:
        """Begin; the database is open already."""
        self._open = True

    async def close(self) -> None:
        """End; the database stays open."""
        self._open = False

    async def watch(self) -> AsyncIterator[str | None]:
        """Yield a hint whenever the simulation sets one."""
        while True:
            await self.hint.wait()
            self.hint = anyio.Event()
            yield None

    async def _write(self, work: Work[_T]) -> _T:
        await self._live("before")
        connection = self._disk
        connection.execute("BEGIN IMMEDIATE")
        try:
            done = work(connection)
        except BaseException as error:
            connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise meaning_of(error, "simulated") from error
            raise
        connection.execute("COMMIT")
        await self._live("after")
        return done

    async def _read(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        await self._live("read")
        connection = self._disk
        self._mischief.break_a_read(connection)
        try:
            return queries.in_one_snapshot(connection, question)
        except sqlite3.Error as error:
            raise meaning_of(error, "simulated") from error
        finally:
            connection.row_factory = None

    async def _live(self, moment: str) -> None:
        if not self.dead:
            await self._pause(moment)
        if self.dead or not self._open:
            raise Dead
