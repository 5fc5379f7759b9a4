"""Commits to PostgreSQL: sent alone or in batches, and looked up again when the server's answer was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import asyncpg

from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.commit import CachedChat, Commit, commit_of, erasing
from turnwise.persistence.postgres.append_events import LOCK, contradiction, table_of
from turnwise.persistence.postgres.database import SQL, DatabaseClock
from turnwise.persistence.postgres.group_commit import StatementBatches
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.refusals import Refused
from turnwise.persistence.postgres.write_rows import parameters_of
from turnwise.persistence.protocol import Committed, DuplicateReceipt
from turnwise.persistence.sql.raw_rows import wipe_all
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatExists, StoreError
from turnwise.states.events import PartEvent

Sent = list[Commit]
"""The commits that were sent to the server and not answered yet: each may have been stored, or not."""
Work = Callable[[asyncpg.Connection, Sent], Awaitable[list[Committed]]]


class Commits:
    """Stores decisions and caches where the chats stand after them. Calls `notify` with each changed chat."""

    def __init__(self, pool: Pool, *, clock: DatabaseClock, cache: ChatCache, notify: Callable[[str], None]) -> None:
        self._pool = pool
        self._clock = clock
        self._cache = cache
        self._notify = notify
        self.batches = StatementBatches(pool, self.store)
        """Stores a commit together with those of other chats; answers whether the chat still stood where it must."""

    async def close(self) -> None:
        """Wait until everything that was accepted is stored."""
        await self.batches.close()

    async def answered(self, chat_id: str, work: Work, sent: Sent | None = None) -> list[Committed]:
        """Return what `work` committed, even if the connection was lost before the server answered.

        After a lost connection the pool calls again. The new call first looks whether the commits in `sent` were
        stored, so that nothing is stored twice.
        """
        sent = [] if sent is None else sent
        lost = bool(sent)

        async def attempt(connection: asyncpg.Connection) -> list[Committed]:
            try:
                if not sent:
                    return await work(connection, sent)
                # In one transaction: the locks that `landed` takes hold until the work is stored.
                async with connection.transaction():
                    return await landed(connection, sent) or await work(connection, sent)
            except asyncpg.UniqueViolationError as error:
                # The key may have been taken by a try of our own, whose answer was lost.
                if stored := await landed(connection, sent):
                    return stored
                raise await _refusal(connection, error, chat_id, sent) from error

        try:
            answers = await self._pool.run(attempt)
        except Refused as error:
            if sent and (lost or error.lost):
                raise error.doubted() from error
            raise
        for commit in sent:
            # Tries that were not stored are among them: where they would have left the chat must not be cached.
            if commit.committed in answers:
                self.note(commit)
        return answers

    def note(self, commit: Commit) -> None:
        """Cache where a chat stands after a commit, or forget it after an erasure; notify other processes."""
        if commit.erasing:
            self._cache.forget(commit.chat_id)
        else:
            self._cache.put(commit.after)
        self._notify(commit.chat_id)

    async def store(self, connection: asyncpg.Connection, commits: Sequence[Commit]) -> list[bool]:
        """Store commits of different chats; return for each whether its chat still stood where it must."""
        rows = await self._clock.timed(connection.fetch(SQL["commit"], *parameters_of(commits)))
        stored = {row["id"] for row in rows}
        return [commit.chat_id in stored for commit in commits]

    async def commit(
        self,
        connection: asyncpg.Connection,
        current: CachedChat,
        decisions: tuple[Decision, ...],
        shown: Sequence[PartEvent],
        sent: Sent,
    ) -> Committed:
        """Store decisions on a chat as it was read, and add the commit to `sent`.

        Raises:
            Overtaken: the chat has changed since it was read; nothing was written.
        """
        async with AsyncExitStack() as together:
            restated: list[WriteRecord] = []
            if erasing(decisions):
                await together.enter_async_context(connection.transaction())
                # What others were about to store would not be blanked: they store it before, or lose the race.
                await connection.execute(LOCK, current.facts.chat_id)
                restated = await wipe_all(self._clock.database(connection), current.facts.chat_id, decisions)
            commit = commit_of(current, decisions, shown, restated=restated)
            # Before it is sent: if the connection is lost from here on, it is unknown whether it was stored.
            sent.append(commit)
            (stored,) = await self.store(connection, [commit])
            if not stored:
                sent.pop()
                raise Overtaken
        return commit.committed


class Overtaken(Exception):
    """The chat has changed since it was read."""


async def landed(connection: asyncpg.Connection, sent: Sent) -> list[Committed]:
    """Return those of the unanswered commits that were stored.

    The lost session may still be running its statement: it holds the row's lock until that has ended. If the server has
    not started it, it finds the row locked until the transaction of `connection` ends, and the chat changed after.
    """
    stored: list[Committed] = []
    # In the order of their ids: two processes that look for the same chats never wait for each other in a ring.
    for commit in sorted(sent, key=lambda commit: commit.chat_id):
        await connection.execute(LOCK, commit.chat_id)
        if await connection.fetchval(SQL["hash"], commit.chat_id, commit.row.version) == commit.after.head:
            stored.append(commit.committed)
    return stored


async def _refusal(
    connection: asyncpg.Connection, error: asyncpg.UniqueViolationError, chat_id: str, sent: Sent
) -> StoreError:
    """Return the error that names the key that was taken already. Rows of an import were not sent yet."""
    table = await table_of(connection, error)
    if table == "chats":
        return ChatExists(chat_id)
    if table == "receipts" and sent and (receipts := sent[-1].tables.rows["receipts"]):
        return DuplicateReceipt(chat_id, receipts[0]["client_id"])
    if table == "boundaries" and sent:
        return StoreError(f"chat {chat_id!r} has a compaction for this step already; nothing was written")
    return await contradiction(connection, chat_id, error)
