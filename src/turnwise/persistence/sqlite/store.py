"""The store of one machine: chats in a SQLite database, a file or in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import anyio

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.blobs.protocol import Blob
from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.commit import Held
from turnwise.persistence.forks import children_among, forks_among, naming
from turnwise.persistence.integrity.passed_over import PassedOver
from turnwise.persistence.integrity.raw_chat import Rows
from turnwise.persistence.protocol import (
    ChatStore,
    Committed,
    EventPage,
    Expiry,
    Overdue,
    Permission,
    Plan,
    Pruned,
    Runs,
    Snapshot,
    Waiting,
)
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sql.migrations import UNCHANGED, migrations
from turnwise.persistence.sqlite import held_files, pruning, queries, raw_rows
from turnwise.persistence.sqlite.chat_rows import rows_of_chat
from turnwise.persistence.sqlite.connection import Connection, Durability, inherited
from turnwise.persistence.sqlite.database_file import DatabaseFile, check_folder
from turnwise.persistence.sqlite.files import SQLiteFiles
from turnwise.persistence.sqlite.group_commit import GroupCommit, Work
from turnwise.persistence.sqlite.migrate import check_migrated, migrate
from turnwise.persistence.sqlite.optimistic import OptimisticCommits
from turnwise.persistence.sqlite.scrub import scrub
from turnwise.persistence.sqlite.tombstones import check_not_deleted, deleted_among, stored_tombstone
from turnwise.persistence.sqlite.transactions import Transactions
from turnwise.persistence.stored_chat import IntegrityIssue, PartialRead, salvage
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.errors import SettingsError, StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import Answerer, ChatState
from turnwise.states.values.checked import checked
from turnwise.states.writes import RecordReceipt, RecordUsage

_T = TypeVar("_T")
_IN_MEMORY: Final = ":memory:"
_CHECKPOINT_PAGES: Final = 4000
"""Pages (of 4 KiB) in the write-ahead log before a checkpoint moves them to the database: it costs two syncs."""
_NAMING: Final = "SELECT chat_id, body FROM profiles WHERE instr(body, ?) > 0"
_LOOSE: Final = "SELECT number, digest FROM loose_files ORDER BY number LIMIT ?"
_HELD_BY: Final = "SELECT 1 FROM chat_files WHERE digest = ? LIMIT 1"
_GLANCE: Final = 0.02
"""Seconds between two checks whether other processes have committed."""


class _Opened(NamedTuple):
    """What a store has while it is open."""

    writer: Connection
    reader: Connection
    """Reads while the writer commits. A database in memory has one connection only, which does both."""
    group_commit: GroupCommit


class SQLiteStore(ChatStore):
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
        self._path = _IN_MEMORY if path is None else str(path)
        if not self._path or "\0" in self._path:
            raise SettingsError("path", "must be the path of a file; it was empty, or held the character NUL")
        self._durability = durability
        self._now = partial(datetime.now, UTC) if now is None else now
        self._migrate = migrate if migrates else check_migrated
        self._prunings = PassedOver()
        self._cache = ChatCache()
        self._transactions = Transactions(self._now, self._cache)
        self._optimistic = OptimisticCommits(self._now, self._cache, self._write)
        self._file = DatabaseFile(None)
        self._now_open: _Opened | None = None

    async def open(self) -> None:
        if self._now_open is not None:
            self._opened()
            return
        if self._path != _IN_MEMORY:
            await check_folder(self._path)
        async with AsyncExitStack() as on_failure:
            writer = reader = await Connection.open(self._path, self.prepare)
            on_failure.push_async_callback(writer.close)
            if self._path != _IN_MEMORY:
                reader = await Connection.open(self._path, self.prepare)
                on_failure.push_async_callback(reader.close)
                self._file = DatabaseFile(self._path)
                self._file.check()
            on_failure.pop_all()
        self._now_open = _Opened(writer, reader, GroupCommit(writer, file=self._file))

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
        async with self._cache.turn(chat_id):
            return await self._optimistic.create(chat_id, plan, parent, unchanged=unchanged)

    async def change(self, chat_id: str, plan: Plan, *, shown: Sequence[PartEvent] = ()) -> Committed:
        async with self._cache.turn(chat_id):
            committed = await self._optimistic.change(chat_id, plan, shown)
            if committed is None:
                committed = await self._write(lambda on: self._transactions.change(on, chat_id, plan, shown))
        return committed

    async def repair(self, chat_id: str, plan: Plan) -> Committed:
        return await self._write(lambda on: self._transactions.repair(on, chat_id, plan))

    async def import_chat(self, chat: WholeChat, plan: Plan) -> Committed:
        async with self._cache.turn(chat.chat_id):
            return await self._write(lambda on: self._transactions.import_chat(on, chat, plan))

    async def delete(self, chat_id: str, permit: Permission, *, actor: str) -> Tombstone:
        async with self._cache.turn(chat_id):
            return await self._write(lambda on: self._transactions.delete(on, chat_id, permit, actor))

    async def claim(self, plan: Plan, *, runs: Runs, limit: int) -> list[Committed]:
        return await self._write(lambda on: self._transactions.claim(on, plan, runs, limit))

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event], *, worker: str | None = None
    ) -> tuple[Event, ...]:
        async with self._cache.turn(chat_id):
            stored = await self._optimistic.append_events(chat_id, Held(token, worker, state), shown)
            if stored is None:
                append_events = partial(self._transactions.append_events, worker=worker)
                stored = await self._write(lambda on: append_events(on, chat_id, token, state, shown))
        return stored

    async def renew(self, worker: str, seconds: float) -> Mapping[str, int]:
        return await self._write(lambda on: self._transactions.renew(on, worker, seconds))

    async def check_writable(self) -> None:
        await self._write(lambda on: on.execute(UNCHANGED))

    async def confirm(self) -> None:
        """Do nothing: what can be read is on disk."""

    def end_calls_within(self, seconds: float) -> None:
        """Do nothing: a file answers."""

    async def prune(self, *, keep: float, after: str, limit: int) -> Pruned:
        until = self._now() - timedelta(seconds=keep)
        return await self._write(lambda on: pruning.prune(on, self._prunings, until=until, after=after, limit=limit))

    # Reading

    async def tombstone(self, chat_id: str) -> Tombstone | None:
        return await self._read(lambda on: stored_tombstone(on, chat_id))

    async def deleted(self, chat_ids: Collection[str]) -> frozenset[str]:
        cached = self._cache.known()
        gone = await self._read(lambda on: deleted_among(on, {*chat_ids, *cached}))
        for chat_id in gone:
            self._cache.forget(chat_id)
        return gone & {*chat_ids}

    async def facts(self, chat_id: str) -> Facts:
        return await self._read_of(chat_id, lambda on: queries.facts(on, chat_id))

    async def rest(self, chat_id: str) -> PartialRead:
        return await self._read_of(chat_id, lambda on: salvage(queries.stored(on, chat_id)))

    async def raw_rows(self, chat_id: str) -> Rows:
        return await self._read(lambda on: raw_rows.rows_of(on, chat_id))

    async def chat_ids(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        return await self._read(lambda on: raw_rows.chat_ids(on, after=after, limit=limit))

    async def orphans(self) -> list[IntegrityIssue]:
        return await self._read(raw_rows.orphans)

    async def lease_expiry(self, chat_id: str) -> Expiry | None:
        now = self._now()
        return await self._read_of(chat_id, lambda on: queries.lease_expiry(on, chat_id, now=now))

    async def head(self, chat_id: str) -> tuple[int, str]:
        return await self._read_of(chat_id, lambda on: queries.head(on, chat_id))

    async def chats(
        self,
        *,
        owner: str | None,
        state: ChatState | None,
        limit: int,
        after: str | None,
        awaiting: Answerer | None = None,
    ) -> list[Facts | PartialRead]:
        return await self._read(
            lambda on: queries.chats(on, owner=owner, state=state, awaiting=awaiting, limit=limit, after=after)
        )

    async def waiting_since(self) -> Waiting:
        return await self._read(queries.waiting_since)

    async def awaiting_subagents(self, *, after: str, limit: int) -> list[str]:
        return await self._read(lambda on: queries.awaiting_subagents(on, after=after, limit=limit))

    async def ids(self, *, prefix: str, limit: int, owner: str | None = None) -> list[str]:
        return await self._read(lambda on: queries.ids(on, prefix, limit, owner=owner))

    async def history(
        self, chat_id: str, *, at_version: int | None = None, after: int = 0, size: int | None = None
    ) -> list[Message]:
        return await self._read_of(
            chat_id, lambda on: queries.history(on, chat_id, at_version=at_version, after=after, size=size)
        )

    async def snapshot(self, chat_id: str, *, size: int | None = None) -> Snapshot:
        return await self._read_of(chat_id, lambda on: queries.snapshot(on, chat_id, size=size))

    async def prompt(self, chat_id: str) -> list[Message]:
        return await self._read_of(chat_id, lambda on: queries.prompt(on, chat_id))

    async def cut_at(self, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
        return await self._read_of(chat_id, lambda on: queries.cut_at(on, chat_id, message_id))

    async def calls(self, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
        return await self._read_of(chat_id, lambda on: queries.calls(on, chat_id, call_ids))

    async def receipt(self, chat_id: str, client_id: str) -> RecordReceipt | None:
        return await self._read_of(chat_id, lambda on: queries.receipt(on, chat_id, client_id))

    async def events(self, chat_id: str, *, after: int, limit: int) -> EventPage:
        return await self._read_of(chat_id, lambda on: queries.events(on, chat_id, after=after, limit=limit))

    async def shown(self, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
        return await self._read_of(chat_id, lambda on: queries.shown(on, chat_id, step, attempt))

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        return await self._read_of(chat_id, lambda on: queries.audit(on, chat_id))

    async def forks(self, chat_id: str) -> list[str]:
        return forks_among(chat_id, await self._naming(chat_id))

    async def children(self, chat_id: str) -> list[str]:
        return children_among(chat_id, await self._naming(chat_id))

    async def _naming(self, parent: str) -> list[tuple[str, str]]:
        return await self._read(lambda on: on.execute(_NAMING, (naming(parent),)).fetchall())

    async def scrub(self) -> bool:
        return await scrub(self._opened().writer)

    async def rows(self, chat_id: str) -> ChatRows:
        return await self._read_of(chat_id, lambda on: rows_of_chat(on, chat_id))

    async def ledger(self, chat_id: str) -> list[RecordUsage]:
        return await self._read_of(chat_id, lambda on: queries.ledger(on, chat_id))

    async def holders(self) -> frozenset[str]:
        return await self._read(queries.holders)

    async def overdue(self, *, limit: int) -> Overdue:
        now = micros_of(self._now())
        return await self._read(lambda on: queries.overdue(on, now=now, limit=limit))

    async def rested(self, *, archived: bool, seconds: float, limit: int) -> list[str]:
        until = micros_of(self._now() - timedelta(seconds=seconds))
        return await self._read(lambda on: queries.rested(on, archived=archived, until=until, limit=limit))

    # Files

    def file_store(self) -> SQLiteFiles:
        return SQLiteFiles(self._write, self._read, self._now)

    async def files_kept_in(self) -> str | None:
        row = await self._read(lambda on: on.execute(held_files.KEPT_IN).fetchone())
        return None if row is None else str(row[0])

    async def note_file(self, chat_id: str, blob: Blob, *, kept_in: str, arriving: bool = False) -> None:
        at = micros_of(self._now())
        await self._write(lambda on: held_files.note(on, chat_id, blob, kept_in=kept_in, at=at, arriving=arriving))

    async def held_files(self, chat_id: str, digests: Collection[str] | None = None) -> Mapping[str, int]:
        return await self._read(lambda on: held_files.held(on, chat_id, digests))

    async def let_go(self, *, seconds: float, limit: int, chat_id: str | None = None) -> int:
        until = micros_of(self._now() - timedelta(seconds=seconds)) if seconds else None
        return await self._write(lambda on: held_files.let_unsent_go(on, until=until, limit=limit, chat_id=chat_id))

    async def loose_files(self, *, limit: int) -> list[tuple[int, str]]:
        return await self._read(lambda on: on.execute(_LOOSE, (limit,)).fetchall())

    async def is_loose(self, digest: str) -> bool:
        holder = await self._read(lambda on: on.execute(_HELD_BY, (digest,)).fetchone())
        return holder is None

    async def settle_loose(self, number: int) -> None:
        await self._write(lambda on: on.execute("DELETE FROM loose_files WHERE number = ?", (number,)))

    # Noticing

    def attend(self, worker: str) -> None:
        """Do nothing: the workers share a machine, whose operating system tells which of them live."""

    async def gone(self, workers: Collection[str]) -> frozenset[str]:  # noqa: ARG002 - as every store is asked
        """Return nobody: a file cannot tell."""
        return frozenset()

    async def watch(self) -> AsyncIterator[str | None]:
        """Yield `None` at once and whenever another process has committed; a database in memory never yields."""
        if self._path == _IN_MEMORY:
            await anyio.sleep_forever()
        seen = await self._foreign_commits()
        yield None
        while True:
            await anyio.sleep(_GLANCE)
            commits = await self._foreign_commits()
            if commits != seen:
                seen = commits
                yield None

    async def _foreign_commits(self) -> int:
        """Return a number that changes with every commit of another connection, but not with the writer's own."""
        (version,) = await self._opened().writer.run(lambda on: on.execute("PRAGMA data_version").fetchone())
        return int(version)

    async def _write(self, work: Work[_T]) -> _T:
        return await self._opened().group_commit.submit(work)

    async def _read(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        def answer(connection: sqlite3.Connection) -> _T:
            self._file.check_main()
            return queries.in_one_snapshot(connection, question)

        return await self._opened().reader.run(answer)

    async def _read_of(self, chat_id: str, question: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return the answer to a question about one chat.

        Raises:
            ChatUnreadable: a stored value is in the way.
            ChatDeleted: there is no answer, because the chat is gone.
        """

        def answer(connection: sqlite3.Connection) -> _T:
            with raw_rows.blaming(connection, chat_id):
                value = question(connection)
            if not value:
                check_not_deleted(connection, chat_id)
            return value

        return await self._read(answer)

    def _opened(self) -> _Opened:
        if self._now_open is None:
            raise StoreError(f"the store {self._path!r} is not open; open it, or enter the engine, first")
        if self._now_open.writer.inherited:
            raise inherited(self._path)
        return self._now_open
