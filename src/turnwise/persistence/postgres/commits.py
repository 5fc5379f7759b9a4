"""Commits to PostgreSQL: sent alone or in batches, and looked up again when the server's answer was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import asyncpg

from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.commit import Commit, Decided, commit_of, erasing
from turnwise.persistence.postgres.append_events import LOCK, contradiction, table_of
from turnwise.persistence.postgres.database import SQL, DatabaseClock
from turnwise.persistence.postgres.group_commit import NoResponse, StatementBatches
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.refusals import Refused
from turnwise.persistence.postgres.write_rows import parameters_of
from turnwise.persistence.protocol import Committed, DuplicateReceipt
from turnwise.persistence.sql.budgets import store_funds
from turnwise.persistence.sql.raw_rows import wipe_all
from turnwise.persistence.sql.tombstones import deleted_among
from turnwise.states.errors import ChatExists, StoreError
from turnwise.states.events import PartEvent

Work = Callable[[asyncpg.Connection, list[Commit]], Awaitable[list[Committed]]]
"""Its list gets each commit before it is sent: without an answer, it may have been stored or not."""


class Commits:
    """Stores decisions and updates the cache. Calls `notify` with each changed chat."""

    def __init__(self, pool: Pool, *, clock: DatabaseClock, cache: ChatCache, notify: Callable[[str], None]) -> None:
        self._pool = pool
        self._clock = clock
        self._cache = cache
        self._notify = notify
        self.batches = StatementBatches(pool, self.store)
        """Stores a commit together with those of other chats; answers whether the chat was unchanged before."""
        self.creations = StatementBatches(pool, self.create)
        """Stores the first commit of a chat together with those of others; answers whether the chat was created."""

    async def close(self) -> None:
        await self.batches.close()
        await self.creations.close()

    async def run(self, chat_id: str, work: Work, unconfirmed: list[Commit] | None = None) -> list[Committed]:
        """Run `work` and return its commits, even if the connection was lost before the server answered.

        After a lost connection the pool retries. The retry first looks for stored commits in `unconfirmed`, so that
        nothing is stored twice.
        """
        unconfirmed = [] if unconfirmed is None else unconfirmed
        lost = bool(unconfirmed)

        async def attempt(connection: asyncpg.Connection) -> list[Committed]:
            try:
                if not unconfirmed:
                    return await work(connection, unconfirmed)
                # In one transaction: the locks that `find_stored` takes hold until the work is stored.
                async with connection.transaction():
                    return await find_stored(connection, unconfirmed) or await work(connection, unconfirmed)
            except asyncpg.UniqueViolationError as error:
                # The key may have been taken by our own earlier try, whose answer was lost.
                if stored := await find_stored(connection, unconfirmed):
                    return stored
                raise await _refusal(connection, error, chat_id, unconfirmed) from error

        try:
            answers = await self._pool.run(attempt)
        except Refused as error:
            if unconfirmed and (lost or error.lost):
                raise error.with_unknown_outcome() from error
            raise
        for commit in unconfirmed:
            # Tries that were not stored are among them: their result must not be cached.
            if commit.committed in answers:
                self.note(commit)
        return answers

    def note(self, commit: Commit) -> None:
        """Cache the chat after a commit, or evict it after an erasure; notify other processes."""
        if commit.erasing:
            self._cache.forget(commit.chat_id)
        else:
            self._cache.put(commit.after)
        self._notify(commit.chat_id)

    async def add(
        self, batches: StatementBatches[Commit, bool], commit: Commit, unconfirmed: list[Commit]
    ) -> Committed | None:
        """Store a commit in a batch; return `None` if it was not stored, or is `unconfirmed` now."""
        try:
            if not await batches.add(commit):
                return None
        except NoResponse as failure:
            if failure.lost:
                # The caller asks alone next, and looks first whether this commit was stored.
                unconfirmed.append(commit)
            return None
        self.note(commit)
        return commit.committed

    async def create(self, connection: asyncpg.Connection, commits: Sequence[Commit]) -> list[bool]:
        """Create chats; return for each whether it was.

        It is not if its id is taken or was deleted, or if its owner has a budget.
        """
        ids, since = [commit.chat_id for commit in commits], [commit.before.at for commit in commits]
        async with connection.transaction():
            new = {row["id"] for row in await connection.fetch(SQL["blanks"], GENESIS, ids, since)}
            # Not before: a deletion under way holds the id up until it has committed.
            deleted = await deleted_among(self._clock.database(connection), new)
            free = [commit for commit in commits if commit.chat_id in new - deleted]
            stored = {commit.chat_id for commit, ok in zip(free, await self.store(connection, free), strict=True) if ok}
            if new != stored:
                await connection.execute(SQL["drop_blanks"], [*(new - stored)])
        return [chat_id in stored for chat_id in ids]

    async def store(self, connection: asyncpg.Connection, commits: Sequence[Commit]) -> list[bool]:
        """Store commits of different chats; return for each whether its chat was unchanged and it was stored.

        One that spends budgets is stored alone, in the transaction that has locked them.
        """
        rows = await self._clock.timed(connection.fetch(SQL["commit"], *parameters_of(commits)))
        stored = {row["id"] for row in rows}
        for commit in commits:
            if commit.funds is not None and commit.chat_id in stored:
                await store_funds(self._clock.database(connection), commit.funds)
        return [commit.chat_id in stored for commit in commits]

    async def commit(
        self,
        connection: asyncpg.Connection,
        decided: Decided,
        unconfirmed: list[Commit],
        shown: Sequence[PartEvent] = (),
    ) -> Committed:
        """Store decisions on a chat as it was read, if there are any, and add the commit to `unconfirmed`.

        Raises:
            SerializationConflict: the chat has changed since it was read; nothing was written.
        """
        current, decisions, funds = decided
        if not decisions:
            return current.without_decisions
        async with AsyncExitStack() as together:
            restated: list[WriteRecord] = []
            if erasing(decisions):
                await together.enter_async_context(connection.transaction())
                # What others were about to store would not be blanked: they store it before, or lose the race.
                await connection.execute(LOCK, current.facts.chat_id)
                restated = await wipe_all(self._clock.database(connection), current.facts.chat_id, decisions)
            commit = commit_of(current, decisions, shown, restated=restated, funds=funds)
            # Before it is sent: if the connection is lost from here on, it is unknown whether it was stored.
            unconfirmed.append(commit)
            (stored,) = await self.store(connection, [commit])
            if not stored:
                unconfirmed.pop()
                raise SerializationConflict
        return commit.committed


class SerializationConflict(StoreError):
    """The chat has changed since it was read; nothing was written.

    Callers try again. It reaches a user if it is raised again although the chat is locked.
    """

    def __init__(self) -> None:
        super().__init__(
            "the chat changed whenever it was to be stored, or its row contradicts itself, as `turnwise doctor` "
            "then says; nothing was written"
        )


async def find_stored(connection: asyncpg.Connection, unconfirmed: list[Commit]) -> list[Committed]:
    """Return the unconfirmed commits that were stored.

    The lost session may still be running its statement: it holds the row's lock until that has ended. If the server has
    not started it, it finds the row locked until the transaction of `connection` ends, and the chat changed after.
    """
    stored: list[Committed] = []
    # In the order of their ids: two processes that look for the same chats never deadlock.
    for commit in sorted(unconfirmed, key=lambda commit: commit.chat_id):
        await connection.execute(LOCK, commit.chat_id)
        if await connection.fetchval(SQL["hash"], commit.chat_id, commit.row.version) == commit.after.head:
            stored.append(commit.committed)
    return stored


async def _refusal(
    connection: asyncpg.Connection, error: asyncpg.UniqueViolationError, chat_id: str, unconfirmed: list[Commit]
) -> StoreError:
    """Return the error that names the key that was taken already. Rows of an import were not sent yet."""
    table = await table_of(connection, error)
    if table == "chats":
        return ChatExists(chat_id)
    if table == "receipts" and unconfirmed and (receipts := unconfirmed[-1].tables.rows["receipts"]):
        return DuplicateReceipt(chat_id, receipts[0]["client_id"])
    if table == "boundaries" and unconfirmed:
        return StoreError(f"chat {chat_id!r} has a compaction for this step already; nothing was written")
    return await contradiction(connection, chat_id, error)
