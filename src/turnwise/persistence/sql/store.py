"""What both stores do alike: all reads, and the writes that need no more than a transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from turnwise.persistence.chat_cache import ChatCache, SkippedChats
from turnwise.persistence.protocol import ChatStore, Pruned
from turnwise.persistence.sql import budgets as stored_budgets
from turnwise.persistence.sql import changes as change_log
from turnwise.persistence.sql import files, lists
from turnwise.persistence.sql.database import SQLDatabase
from turnwise.persistence.sql.raw_rows import orphans_in, read_or_blame, rows_of, rows_of_chat
from turnwise.persistence.sql.reads import ChatReads
from turnwise.persistence.sql.tombstones import check_not_deleted, deleted_among, stored_tombstone
from turnwise.states.errors import ChatNotFound, StoreError

_T = TypeVar("_T")
_P = ParamSpec("_P")
Work = Callable[[SQLDatabase], Coroutine[Any, Any, _T]]
_DRAWS_UNTIL_CLEANUP: Final = 1000
"""After how many draws full buckets are deleted."""
_DAY: Final = 86400.0
_ROUNDING: Final = 0.01
"""Of a request: `Retry-After` is rounded, so a client that obeys it may come a little early."""


def _asking(
    read: Callable[Concatenate[SQLDatabase, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[SQLStore, _P], Coroutine[Any, Any, _T]]:
    async def ask(store: SQLStore, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return await store._read(lambda db: read(db, *args, **options))  # noqa: SLF001 - a method of it

    return ask


def _writing(
    write: Callable[Concatenate[SQLDatabase, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[SQLStore, _P], Coroutine[Any, Any, _T]]:
    async def do(store: SQLStore, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return await store._write(lambda db: write(db, *args, **options))  # noqa: SLF001 - a method of it

    return do


def _of_chat(
    read: Callable[Concatenate[ChatReads, _P], Awaitable[_T]],
) -> Callable[Concatenate[SQLStore, str, _P], Coroutine[Any, Any, _T]]:
    """Return the method of a store that returns what it reads of one chat.

    It raises `ChatUnreadable` if a stored value is in the way, and `ChatDeleted` if there is nothing, because the chat
    is gone.
    """

    async def ask(store: SQLStore, chat_id: str, /, *args: _P.args, **options: _P.kwargs) -> _T:
        async def answer(db: SQLDatabase) -> _T:
            question = partial(read, ChatReads(db, chat_id), *args, **options)
            value = await read_or_blame(db, chat_id, question)
            if not value:
                await check_not_deleted(db, chat_id)
            return value

        return await store._read(answer)  # noqa: SLF001 - a method of it

    return ask


class SQLStore(ChatStore):
    """Reads chats by the SQL in `sql/statements/`. A store adds its transactions and its notifications."""

    def __init__(self) -> None:
        self._cache = ChatCache()
        self._prunings = SkippedChats()
        self._draws = 0

    @abstractmethod
    async def _read(self, question: Work[_T]) -> _T:
        """Return the answer to a question. Several statements of it are of one moment only within `one_moment`."""

    @abstractmethod
    async def _write(self, work: Work[_T]) -> _T:
        """Do a piece of work in a transaction; it may be done again if the answer to its commit is lost."""

    # One chat

    facts = _of_chat(ChatReads.facts)
    rest = _of_chat(ChatReads.rest)
    lease_expiry = _of_chat(ChatReads.lease_expiry)
    head = _of_chat(ChatReads.head)
    history = _of_chat(ChatReads.history)
    snapshot = _of_chat(ChatReads.snapshot)
    prompt = _of_chat(ChatReads.prompt)
    cut_at = _of_chat(ChatReads.cut_at)
    calls = _of_chat(ChatReads.calls)
    receipt = _of_chat(ChatReads.receipt)
    events = _of_chat(ChatReads.events)
    shown = _of_chat(ChatReads.shown)
    audit = _of_chat(ChatReads.audit)
    ledger = _of_chat(ChatReads.ledger)
    rows = _of_chat(lambda chat: rows_of_chat(chat.db, chat.chat_id))
    raw_rows = _asking(rows_of)
    tombstone = _asking(stored_tombstone)
    forks = _asking(lists.forks)
    children = _asking(lists.children)

    # Many chats

    async def deleted(self, chat_ids: Collection[str]) -> frozenset[str]:
        cached = self._cache.known()
        gone = await self._read(lambda db: deleted_among(db, {*chat_ids, *cached}))
        for chat_id in gone:
            self._cache.forget(chat_id)
        return gone & {*chat_ids}

    chats = _asking(lists.chats)
    chat_ids = _asking(lists.chat_ids)
    ids = _asking(lists.ids)
    orphans = _asking(orphans_in)
    waiting_since = _asking(lists.waiting_since)
    at_work = _asking(lists.at_work)
    count_states = _asking(lists.count_states)
    oldest = _asking(lists.oldest)
    fleet = _asking(lists.fleet)
    usage_page = _asking(lists.usage_page)
    report_worker = _writing(lists.report_worker)
    forget_worker = _writing(lists.forget_worker)
    awaiting_subagents = _asking(lists.awaiting_subagents)
    holders = _asking(lists.holders)
    overdue = _asking(lists.overdue)
    rested = _asking(lists.rested)

    # All chats, and consumers of their events

    numbers = _asking(change_log.numbers)
    changes = _asking(change_log.changes)
    change_numbers = _asking(change_log.change_numbers)
    changed_events = _asking(change_log.changed_events)
    changed_event = _asking(change_log.changed_event)
    consumers = _asking(change_log.consumers)
    undelivered = _asking(change_log.undelivered)
    due_again = _asking(change_log.due_again)
    hold_consumer = _writing(change_log.hold_consumer)
    advance_consumer = _writing(change_log.advance_consumer)
    drop_consumer = _writing(change_log.drop_consumer)
    set_aside = _writing(change_log.set_aside)

    async def release_consumer(self, name: str, worker: str, token: int, /) -> None:
        await self._write(lambda db: db.execute("release_consumer", name=name, worker=worker, token=token))

    async def deliver_again(self, name: str, /, *, chat_id: str | None, seq: int | None) -> int:
        values = {"name": name, "chat_id": chat_id, "seq": seq, "due": True}
        return await self._write(lambda db: db.execute("deliver_again", **values))

    async def delivered_after_all(self, name: str, chat_id: str, seq: int, /) -> None:
        await self._write(lambda db: db.execute("delivered_after_all", name=name, chat_id=chat_id, seq=seq))

    async def prune(self, *, keep: float, after: str, limit: int) -> Pruned:
        return await self._write(lambda db: prune(db, self._prunings, keep=keep, after=after, limit=limit))

    # Budgets

    budgets = _asking(stored_budgets.stored_budgets)
    change_budget = _writing(stored_budgets.change_budget)

    async def draw(self, name: str, *, wanted: int, per_second: float, burst: int) -> tuple[int, float]:
        self._draws += 1
        if self._draws % _DRAWS_UNTIL_CLEANUP == 0:
            seconds = min(burst / per_second, _DAY) if per_second else _DAY
            await self._write(lambda db: _forget_full_rates(db, seconds))
        return await self._write(lambda db: _draw(db, name, wanted=wanted, per_second=per_second, burst=burst))

    # Files

    files_kept_in = _asking(files.files_kept_in)
    held_files = _asking(files.held_files)

    def file_store(self) -> files.DatabaseFiles:
        return files.DatabaseFiles(self._write, self._read)

    note_file = _writing(files.note_file)
    let_go = _writing(files.release_unsent)

    async def unreferenced_files(self, *, limit: int) -> list[tuple[int, str]]:
        rows = await self._read(lambda db: db.fetch("unreferenced_files", limit=limit))
        return [(number, digest) for number, digest in rows]

    async def is_unreferenced(self, digest: str) -> bool:
        return await self._read(lambda db: db.fetch_one("holder", digest=digest)) is None

    async def settle_unreferenced(self, number: int) -> None:
        await self._write(lambda db: db.execute("settle_unreferenced", number=number))


async def prune(db: SQLDatabase, skipped: SkippedChats, *, keep: float, after: str, limit: int) -> Pruned:
    """Delete parts of replies that are over, shown at least `keep` seconds ago.

    A chat costs one step along the index of parts, which holds only those that are left. A chat that another worker is
    pruning is left to that worker.
    """
    until = await db.now() - timedelta(seconds=keep)
    deleted = 0
    chats = await db.fetch("first_parts", after=after, until=until, limit=limit)
    for chat_id, is_old in chats:
        if is_old:
            deleted += await _prune_chat(db, skipped, chat_id, until, limit - deleted)
        if deleted == limit:
            return Pruned(deleted, after)
        after = chat_id
    return Pruned(deleted, after if len(chats) == limit else None)


async def _prune_chat(db: SQLDatabase, skipped: SkippedChats, chat_id: str, until: datetime, limit: int) -> int:
    try:
        step, attempt = (await ChatReads(db, chat_id).facts()).step.over_before
    except (StoreError, ChatNotFound) as error:
        skipped.note("prune_refused", chat_id, error)
        return 0
    values = {"step": step, "attempt": attempt, "until": until, "limit": limit}
    return await db.execute("prune_chat", chat_id=chat_id, **values)


async def _draw(db: SQLDatabase, name: str, *, wanted: int, per_second: float, burst: int) -> tuple[int, float]:
    """Take requests out of a principal's bucket, as `ChatStore.draw` promises."""
    now = await db.now()
    ((allowance, at),) = await db.fetch("allowance", name=name, burst=float(burst), now=now)
    passed = max((now - db.time_in(at)).total_seconds(), 0)
    allowance = min(burst, allowance + passed * per_second)
    granted = min(wanted, int(allowance + _ROUNDING))
    await db.execute("spend_allowance", name=name, allowance=float(allowance - granted), now=now)
    return granted, allowance - granted


async def _forget_full_rates(db: SQLDatabase, seconds: float) -> None:
    await db.execute("forget_full_rates", full_since=await db.now() - timedelta(seconds=seconds))
