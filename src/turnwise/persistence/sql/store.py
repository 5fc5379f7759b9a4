"""What both stores do alike: all reads, and the writes that need no more than a transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.blobs.protocol import Blob
from turnwise.persistence.chat_cache import ChatCache, PassedOver
from turnwise.persistence.chat_rows import ChatRows, Rows
from turnwise.persistence.protocol import ChatStore, Pruned
from turnwise.persistence.reading import EventPage, Expiry, Overdue, Snapshot, Waiting
from turnwise.persistence.sql import files, lists, raw_rows
from turnwise.persistence.sql.database import SQLDatabase
from turnwise.persistence.sql.lists import children_among, forks_among
from turnwise.persistence.sql.reads import ChatReads
from turnwise.persistence.sql.tombstones import check_not_deleted, deleted_among, stored_tombstone
from turnwise.persistence.stored_chat import IntegrityIssue, PartialRead
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatNotFound, StoreError
from turnwise.states.events import PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import Answerer, ChatState
from turnwise.states.writes import RecordReceipt, RecordUsage

_T = TypeVar("_T")
Work = Callable[[SQLDatabase], Awaitable[_T]]


class SQLStore(ChatStore):
    """Reads chats by the SQL in `sql/statements/`. A store adds its transactions and its notifications."""

    def __init__(self) -> None:
        self._cache = ChatCache()
        self._prunings = PassedOver()

    @abstractmethod
    async def _read(self, question: Work[_T]) -> _T:
        """Return the answer to a question. Several statements of it are of one moment only within `one_moment`."""

    @abstractmethod
    async def _write(self, work: Work[_T]) -> _T:
        """Do a piece of work in a transaction; it may be done again if the answer to its commit is lost."""

    async def _read_of(self, chat_id: str, question: Callable[[ChatReads], Awaitable[_T]]) -> _T:
        """Return the answer to a question about one chat.

        Raises:
            ChatUnreadable: a stored value is in the way.
            ChatDeleted: there is no answer, because the chat is gone.
        """

        async def answer(on: SQLDatabase) -> _T:
            value = await raw_rows.read_or_blamed(on, chat_id, partial(question, ChatReads(on, chat_id)))
            if not value:
                await check_not_deleted(on, chat_id)
            return value

        return await self._read(answer)

    # One chat

    async def tombstone(self, chat_id: str) -> Tombstone | None:
        return await self._read(lambda on: stored_tombstone(on, chat_id))

    async def facts(self, chat_id: str) -> Facts:
        return await self._read_of(chat_id, ChatReads.facts)

    async def rest(self, chat_id: str) -> PartialRead:
        return await self._read_of(chat_id, ChatReads.rest)

    async def raw_rows(self, chat_id: str) -> Rows:
        return await self._read(lambda on: raw_rows.rows_of(on, chat_id))

    async def rows(self, chat_id: str) -> ChatRows:
        return await self._read_of(chat_id, lambda chat: raw_rows.rows_of_chat(chat.on, chat_id))

    async def lease_expiry(self, chat_id: str) -> Expiry | None:
        return await self._read_of(chat_id, ChatReads.lease_expiry)

    async def head(self, chat_id: str) -> tuple[int, str]:
        return await self._read_of(chat_id, ChatReads.head)

    async def history(
        self, chat_id: str, *, at_version: int | None = None, after: int = 0, size: int | None = None
    ) -> list[Message]:
        return await self._read_of(chat_id, lambda chat: chat.history(at_version=at_version, after=after, size=size))

    async def snapshot(self, chat_id: str, *, size: int | None = None) -> Snapshot:
        return await self._read_of(chat_id, lambda chat: chat.snapshot(size=size))

    async def prompt(self, chat_id: str) -> list[Message]:
        return await self._read_of(chat_id, ChatReads.prompt)

    async def cut_at(self, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
        return await self._read_of(chat_id, lambda chat: chat.cut_at(message_id))

    async def calls(self, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
        return await self._read_of(chat_id, lambda chat: chat.calls(call_ids))

    async def receipt(self, chat_id: str, client_id: str) -> RecordReceipt | None:
        return await self._read_of(chat_id, lambda chat: chat.receipt(client_id))

    async def events(self, chat_id: str, *, after: int, limit: int) -> EventPage:
        return await self._read_of(chat_id, lambda chat: chat.events(after=after, limit=limit))

    async def shown(self, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
        return await self._read_of(chat_id, lambda chat: chat.shown(step, attempt))

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        return await self._read_of(chat_id, ChatReads.audit)

    async def ledger(self, chat_id: str) -> list[RecordUsage]:
        return await self._read_of(chat_id, ChatReads.ledger)

    async def forks(self, chat_id: str) -> list[str]:
        return forks_among(chat_id, await self._read(lambda on: lists.profiles_naming(on, chat_id)))

    async def children(self, chat_id: str) -> list[str]:
        return children_among(chat_id, await self._read(lambda on: lists.profiles_naming(on, chat_id)))

    # Many chats

    async def deleted(self, chat_ids: Collection[str]) -> frozenset[str]:
        cached = self._cache.known()
        gone = await self._read(lambda on: deleted_among(on, {*chat_ids, *cached}))
        for chat_id in gone:
            self._cache.forget(chat_id)
        return gone & {*chat_ids}

    async def chats(
        self,
        *,
        state: ChatState | None,
        limit: int,
        after: str | None,
        awaiting: Answerer | None = None,
        **fields: Any,
    ) -> list[Facts | PartialRead]:
        wanted = {"state": state, "awaiting": awaiting, **fields}
        return await self._read(lambda on: lists.chats(on, limit=limit, after=after, **wanted))

    async def chat_ids(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        return await self._read(lambda on: lists.chat_ids(on, after=after, limit=limit))

    async def ids(self, *, prefix: str, limit: int, owner: str | None = None) -> list[str]:
        return await self._read(lambda on: lists.ids(on, prefix=prefix, limit=limit, owner=owner))

    async def orphans(self) -> list[IntegrityIssue]:
        return await self._read(raw_rows.orphans)

    async def waiting_since(self) -> Waiting:
        return await self._read(lists.waiting_since)

    async def awaiting_subagents(self, *, after: str, limit: int) -> list[str]:
        return await self._read(lambda on: lists.awaiting_subagents(on, after=after, limit=limit))

    async def holders(self) -> frozenset[str]:
        return await self._read(lists.holders)

    async def overdue(self, *, limit: int) -> Overdue:
        return await self._read(lambda on: lists.overdue(on, limit=limit))

    async def rested(self, *, archived: bool, seconds: float, limit: int) -> list[str]:
        return await self._read(lambda on: lists.rested(on, archived=archived, seconds=seconds, limit=limit))

    async def prune(self, *, keep: float, after: str, limit: int) -> Pruned:
        return await self._write(lambda on: prune(on, self._prunings, keep=keep, after=after, limit=limit))

    # Files

    def file_store(self) -> files.DatabaseFiles:
        return files.DatabaseFiles(self._write, self._read)

    async def files_kept_in(self) -> str | None:
        return await self._read(files.kept_in)

    async def note_file(self, chat_id: str, blob: Blob, *, kept_in: str, arriving: bool = False) -> None:
        await self._write(lambda on: files.note_file(on, chat_id, blob, store=kept_in, arriving=arriving))

    async def held_files(self, chat_id: str, digests: Collection[str] | None = None) -> Mapping[str, int]:
        return await self._read(lambda on: files.held_files(on, chat_id, digests))

    async def let_go(self, *, seconds: float, limit: int, chat_id: str | None = None) -> int:
        return await self._write(lambda on: files.release_unsent(on, seconds=seconds, limit=limit, chat_id=chat_id))

    async def unreferenced_files(self, *, limit: int) -> list[tuple[int, str]]:
        rows = await self._read(lambda on: on.fetch("unreferenced_files", limit=limit))
        return [(number, digest) for number, digest in rows]

    async def is_unreferenced(self, digest: str) -> bool:
        return await self._read(lambda on: on.fetch_one("holder", digest=digest)) is None

    async def settle_unreferenced(self, number: int) -> None:
        await self._write(lambda on: on.execute("settle_unreferenced", number=number))


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
