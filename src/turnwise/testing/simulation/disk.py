"""The database of a simulation: a real SQLite database that all engines share, and the store of one engine on it."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime
from itertools import count
from typing import Final, TypeVar

import anyio

from turnwise.persistence.sqlite import connection
from turnwise.persistence.sqlite.database import in_one_snapshot
from turnwise.persistence.sqlite.group_commit import Job
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import StoreError
from turnwise.testing.simulation.faults import Faults, rows_of_chats

_T = TypeVar("_T")
_SERIAL: Final = count()


class Disk:
    """A SQLite database in memory: what is committed survives every process. One connection writes, and one reads."""

    def __init__(self) -> None:
        place = f"file:/simulation{next(_SERIAL)}?vfs=memdb"
        self.writer, self.reader = (
            sqlite3.connect(place, uri=True, isolation_level=None, timeout=0, factory=connection.EagerConnection)
            for _ in range(2)
        )
        with contextlib.closing(sqlite3.connect(":memory:")) as blank:
            blank.deserialize(_blank())
            blank.backup(self.writer)
        for each in (self.writer, self.reader):
            SQLiteStore(None).prepare(each)

    def rows_of(self, chat_id: str) -> Iterator[tuple[str, str]]:
        """Yield everything that is stored of a chat: each row as text, with the name of its table."""
        for table, of_chat, _ in rows_of_chats(self.reader):
            for row in self.reader.execute(f"SELECT * FROM {table} WHERE {of_chat}", (chat_id,)):  # noqa: S608 - our own names
                yield table, " ".join(map(str, row))

    def at_work(self, owner: str) -> int:
        """Return how many chats of an owner workers hold, those apart that settle an interrupt."""
        sql = "SELECT count(*) FROM chats WHERE owner = ? AND worker IS NOT NULL AND state <> 'interrupted'"
        return int(self.reader.execute(sql, (owner,)).fetchone()[0])

    def close(self) -> None:
        self.writer.close()
        self.reader.close()


@functools.cache
def _blank() -> bytes:
    """Return a database without chats: to migrate one takes longer than to copy it."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        SQLiteStore(None).prepare(made)
        return made.serialize()


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
        disk: Disk,
        *,
        now: Callable[[], datetime],
        pause: Callable[[str], Awaitable[None]],
        faults: Faults,
    ) -> None:
        super().__init__(None, now=now)
        self._disk = disk
        self._faults = faults
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

    async def scrub(self) -> bool:
        """Leave nothing of what was deleted: there is no log beside a database in memory."""
        await self._live("scrub")
        return True

    async def _submit(self, work: Job[_T]) -> _T:
        await self._live("before")
        self._faults.strike("store")
        writer = self._disk.writer
        try:
            writer.execute("BEGIN IMMEDIATE")
            done = self._faults.failing(work, 0.02)(writer)
            writer.execute("COMMIT")
        except BaseException as error:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise connection.meaning_of(error, "simulated") from error
            raise
        await self._live("after")
        return done

    async def _answer(self, question: Job[_T]) -> _T:
        await self._live("read")
        reader = self._disk.reader
        try:
            return in_one_snapshot(reader, self._faults.failing(question, 0.05))
        except sqlite3.Error as error:
            raise connection.meaning_of(error, "simulated") from error
        except StoreError as error:
            self._faults.last_read_error = error
            raise

    async def _live(self, moment: str) -> None:
        if not self.dead:
            await self._pause(moment)
        if self.dead or not self._open:
            raise Dead
