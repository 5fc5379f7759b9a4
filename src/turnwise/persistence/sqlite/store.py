"""The store of one machine: chats in a SQLite database, a file or in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import anyio

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.commit import RequiredLease
from turnwise.persistence.protocol import Committed, Permission, Plan, Runs
from turnwise.persistence.shares import Shares
from turnwise.persistence.sql.migrations import UNCHANGED, migrations
from turnwise.persistence.sql.store import SQLStore, Work
from turnwise.persistence.sqlite.connection import Durability, SQLiteConnection, inherited
from turnwise.persistence.sqlite.database import SQLiteDatabase, in_one_snapshot, run_sync
from turnwise.persistence.sqlite.database_file import DatabaseFile, check_folder
from turnwise.persistence.sqlite.group_commit import GroupCommit, Job
from turnwise.persistence.sqlite.migrate import check_migrated, migrate
from turnwise.persistence.sqlite.transactions import OptimisticCommits, SQLiteTransactions
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.errors import SettingsError, StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.names import ChatState
from turnwise.states.values.checked import checked

_T = TypeVar("_T")
_IN_MEMORY: Final = ":memory:"
_CHECKPOINT_PAGES: Final = 4000
"""Pages (of 4 KiB) in the write-ahead log before a checkpoint moves them to the database: it costs two syncs."""
VACUUMED: Final = 32 * 1024 * 1024
"""Up to how many bytes a database is written anew. It takes a fifth of a second, and others wait."""
_ATTEMPTS: Final = 500
"""How often it is tried to empty the write-ahead log while others read."""
_PAUSE_S: Final = 0.02
"""Seconds between two attempts."""
_POLL_INTERVAL_S: Final = 0.02
"""Seconds between two checks whether other processes have committed."""


class _OpenStore(NamedTuple):
    """What a store has while it is open."""

    writer: SQLiteConnection
    reader: SQLiteConnection
    """Reads while the writer commits. A database in memory has one connection only, which does both."""
    group_commit: GroupCommit


class SQLiteStore(SQLStore):
    """Keeps chats in a SQLite database that several processes of one machine may share.

    `path` is a file, created if it is missing, or `None` for a database in memory that ends with the store.
    Without `migrates` it opens only a database that has this version's schema, and changes none.
    `now` is the clock for leases and deadlines and returns UTC; by default it is the machine's. The store needs
    asyncio.

    Raises:
        SettingsError: `path` is no path of a file, or another argument is not what it may be.
    """

    @checked
    def __init__(
        self,
        path: str | Path | None,
        *,
        durability: Durability = "full",
        now: Callable[[], datetime] | None = None,
        migrates: bool = True,
    ) -> None:
        super().__init__()
        self._path = _IN_MEMORY if path is None else str(path)
        if not self._path or "\0" in self._path:
            raise SettingsError("path", "must be the path of a file; it was empty, or held the character NUL")
        self._durability = durability
        self._now = partial(datetime.now, UTC) if now is None else now
        self._migrate = migrate if migrates else check_migrated
        self._transactions = SQLiteTransactions(self._now, self._cache)
        self._optimistic = OptimisticCommits(self._now, self._cache, self._submit)
        self._file = DatabaseFile(None)
        self._now_open: _OpenStore | None = None

    async def open(self) -> None:
        if self._now_open is not None:
            self._opened()
            return
        if self._path != _IN_MEMORY:
            await check_folder(self._path)
        async with AsyncExitStack() as on_failure:
            writer = reader = await SQLiteConnection.open(self._path, self.prepare)
            on_failure.push_async_callback(writer.close)
            if self._path != _IN_MEMORY:
                reader = await SQLiteConnection.open(self._path, self.prepare)
                on_failure.push_async_callback(reader.close)
                self._file = DatabaseFile(self._path)
                self._file.check()
            on_failure.pop_all()
        self._now_open = _OpenStore(writer, reader, GroupCommit(writer, file=self._file))

    async def close(self) -> None:
        closing, self._now_open = self._now_open, None
        if closing is not None and not closing.writer.inherited:
            await closing.group_commit.close()
            await closing.reader.close()
            await closing.writer.close()

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Migrate the database, or check that it is, and set a new connection up for concurrent use."""
        self._migrate(connection, self._path, migrations("sqlite"))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._durability.upper()}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    # Changing

    async def create(
        self, chat_id: str, plan: Plan, *, parent: tuple[str, int] | None = None, unchanged: bool = False
    ) -> Committed:
        async with self._cache.lock(chat_id):
            return await self._optimistic.create(chat_id, plan, parent, unchanged=unchanged)

    async def change(self, chat_id: str, plan: Plan, *, shown: Sequence[PartEvent] = ()) -> Committed:
        async with self._cache.lock(chat_id):
            committed = await self._optimistic.change(chat_id, plan, shown)
            if committed is None:
                committed = await self._submit(lambda db: self._transactions.change(db, chat_id, plan, shown))
        return committed

    async def repair(self, chat_id: str, plan: Plan) -> Committed:
        return await self._submit(lambda db: self._transactions.repair(db, chat_id, plan))

    async def import_chat(self, chat: WholeChat, plan: Plan) -> Committed:
        async with self._cache.lock(chat.chat_id):
            return await self._submit(lambda db: self._transactions.import_chat(db, chat, plan))

    async def delete(self, chat_id: str, permit: Permission, *, actor: str) -> Tombstone:
        async with self._cache.lock(chat_id):
            return await self._submit(lambda db: self._transactions.delete(db, chat_id, permit, actor))

    async def claim(self, plan: Plan, *, runs: Runs, limit: int, shares: Shares | None = None) -> list[Committed]:
        if shares is not None:
            return await self._submit(lambda db: self._transactions.claim_fairly(db, plan, runs, limit, shares))
        return await self._submit(lambda db: self._transactions.claim(db, plan, runs, limit))

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event], *, worker: str | None = None
    ) -> tuple[Event, ...]:
        held = RequiredLease(token, worker, state)
        async with self._cache.lock(chat_id):
            stored = await self._optimistic.append_events(chat_id, held, shown)
            if stored is None:
                stored = await self._submit(lambda db: self._transactions.append_events(db, chat_id, held, shown))
        return stored

    async def renew(self, worker: str, seconds: float) -> Mapping[str, int]:
        return await self._submit(lambda db: self._transactions.renew(db, worker, seconds))

    async def check_writable(self) -> None:
        await self._submit(lambda db: db.execute(UNCHANGED))

    async def confirm(self) -> None:
        """Do nothing: what can be read is on disk."""

    def end_calls_within(self, seconds: float) -> None:
        """Do nothing: a file answers."""

    async def scrub(self) -> bool:
        """Write a database that is not large anew, then empty the write-ahead log; return whether both were done.

        SQLite overwrites deleted rows with zeros, but no copies of them that it left where it moved rows between pages.
        """
        writer = self._opened().writer
        rewritten = await writer.run(_rewrite)
        for _ in range(_ATTEMPTS):
            busy, _, _ = await writer.run(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
            if not busy:
                return rewritten
            await anyio.sleep(_PAUSE_S)
        return False

    # Noticing

    def attend(self, worker: str) -> None:
        """Do nothing: the workers share a machine, whose operating system knows which of them live."""

    async def gone(self, workers: Collection[str]) -> frozenset[str]:  # noqa: ARG002 - as every store is asked
        """Return none: a file does not know."""
        return frozenset()

    async def watch(self) -> AsyncIterator[str | None]:
        """Yield `None` at once and whenever another process has committed; a database in memory never yields."""
        if self._path == _IN_MEMORY:
            await anyio.sleep_forever()
        seen = await self._foreign_commits()
        yield None
        while True:
            await anyio.sleep(_POLL_INTERVAL_S)
            commits = await self._foreign_commits()
            if commits != seen:
                seen = commits
                yield None

    async def _foreign_commits(self) -> int:
        """Return a number that changes with every commit of another connection, but not with the writer's own."""
        (version,) = await self._opened().writer.run(lambda db: db.execute("PRAGMA data_version").fetchone())
        return int(version)

    async def _read(self, question: Work[_T]) -> _T:
        return await self._answer(lambda db: run_sync(question(SQLiteDatabase(db, self._now))))

    async def _write(self, work: Work[_T]) -> _T:
        return await self._submit(lambda db: run_sync(work(SQLiteDatabase(db, self._now))))

    async def _submit(self, work: Job[_T]) -> _T:
        return await self._opened().group_commit.submit(work)

    async def _answer(self, question: Job[_T]) -> _T:
        """Return the result of a function that reads one snapshot."""

        def answer(connection: sqlite3.Connection) -> _T:
            self._file.check(reads=True)
            return in_one_snapshot(connection, question)

        return await self._opened().reader.run(answer)

    def _opened(self) -> _OpenStore:
        if self._now_open is None:
            raise StoreError(f"the store {self._path!r} is not open; open it, or enter the engine, first")
        if self._now_open.writer.inherited:
            raise inherited(self._path)
        return self._now_open


def _rewrite(db: sqlite3.Connection) -> bool:
    """Write a database anew, unless it is large; return whether nothing is left in it but its rows.

    It may number rows anew in tables that have no number of their own: nothing uses those beyond its transaction.
    """
    size = db.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0]
    if size > VACUUMED:
        return False
    db.execute("PRAGMA temp_store = MEMORY")  # or the copy that VACUUM makes would be in a file elsewhere
    try:
        db.execute("VACUUM")
    finally:
        db.execute("PRAGMA temp_store = DEFAULT")
    return True
