"""Group commit: items that arrive while a batch is being stored go together into the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

import anyio
import asyncpg

from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.refusals import Refused
from turnwise.states.errors import StoreError

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_BATCH: Final = 64


class Unanswered(Exception):
    """A batch failed: each caller must ask alone. If the answer was `lost`, its item may have been stored."""

    def __init__(self, *, lost: bool) -> None:
        super().__init__()
        self.lost = lost


class Batches(Generic[_Item]):
    """Does items in batches, one batch after another, each in a task of its own.

    No timer runs. A lone item is done at once; under load, items gather while the batch before them is done.

    No task of these is anybody's to cancel. An event loop that ends cancels every task, though, also one that has not
    started: then another goes on, since those who close a store wait until all that was accepted is done.

    Args:
        perform: does a batch, answers its submitters, and raises nothing.
        size: the most items in a batch.
    """

    def __init__(self, perform: Callable[[Sequence[_Item]], Awaitable[None]], *, size: int) -> None:
        self._perform = perform
        self._size = size
        self._waiting: deque[_Item] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, item: _Item) -> None:
        """Accept an item."""
        self._waiting.append(item)
        if self._task is None:
            self._start()

    def withdraw(self, item: _Item) -> bool:
        """Take an item back whose batch has not started; return whether there was time for it."""
        withdrawn = item in self._waiting
        if withdrawn:
            self._waiting.remove(item)
        return withdrawn

    async def over(self) -> None:
        """Wait until everything that was accepted is done, even in a cancelled scope."""
        with anyio.CancelScope(shield=True):
            while self._task is not None:
                await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="turnwise commits")
        self._task.add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._task = None
        if self._waiting:  # also what answered submitters added: they have run on before this is called
            self._start()

    async def _run(self) -> None:
        await self._perform([self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))])


class StatementBatches(Generic[_Item, _Answer]):
    """Stores items, or answers questions, in batches: one statement each."""

    def __init__(
        self, pool: Pool, perform: Callable[[asyncpg.Connection, Sequence[_Item]], Awaitable[Sequence[_Answer]]]
    ) -> None:
        self._pool = pool
        self._perform = perform
        self._batches: Batches[tuple[_Item, asyncio.Future[_Answer]]] = Batches(self._commit, size=_BATCH)

    async def add(self, item: _Item) -> _Answer:
        """Return the database's answer to the item. Waiting for it cannot be cancelled.

        Raises:
            Unanswered: the batch failed; the item may have been stored if the answer was lost.
            StoreError: the server could not be reached; nothing was stored.
        """
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._batches.add((item, answer))
        # The item may be under way: a caller that left could not learn whether it was stored.
        with anyio.CancelScope(shield=True):
            answered = await answer
        return answered  # noqa: RET504 - inside the block mypy sees no return: a scope may swallow exceptions

    async def close(self) -> None:
        """Wait until everything that was accepted is stored."""
        await self._batches.over()

    async def _commit(self, batch: Sequence[tuple[_Item, asyncio.Future[_Answer]]]) -> None:
        answers = await self._answers([item for item, _ in batch])
        for (_, waits), answer in zip(batch, answers, strict=True):
            if waits.cancelled():
                continue
            if isinstance(answer, Exception):
                waits.set_exception(answer)
            else:
                waits.set_result(answer)

    async def _answers(self, items: Sequence[_Item]) -> Sequence[_Answer | Exception]:
        sent = False

        async def once(connection: asyncpg.Connection) -> Sequence[_Answer]:
            nonlocal sent
            if sent:
                # The pool tries again on a new connection, but the first statement may have been committed.
                raise Unanswered(lost=True)
            sent = True
            try:
                return await self._perform(connection, items)
            except asyncpg.ReadOnlySQLTransactionError:
                sent = False  # refused: the pool waits until the server may be written to
                raise

        try:
            return await self._pool.run(once)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every caller must get an answer
            if isinstance(error, StoreError) and not sent:
                return [error for _ in items]  # nothing was stored
            # Only a server that refused has stored nothing; after anything else that is unknown.
            lost = not isinstance(error, Refused) or error.lost
            return [Unanswered(lost=lost) for _ in items]
