"""Group commit: items that arrive while a batch is being stored go together into the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

import anyio
import asyncpg

from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.refusals import Refused, Unreachable
from turnwise.states.errors import StoreError

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_BATCH: Final = 64


class NoResponse(Exception):
    """A batch failed: each caller must ask alone. If the answer was `lost`, its item may have been stored."""

    def __init__(self, *, lost: bool) -> None:
        super().__init__()
        self.lost = lost


class StatementBatches(Generic[_Item, _Answer]):
    """Stores items, or answers questions, in batches: one statement each, one batch after another.

    No timer runs. A lone item is sent at once; under load, items gather while the batch before them is stored.

    An event loop that ends cancels every task, also the one of a batch that has not started: then another goes on,
    since those who close a store wait until all that was accepted is done.
    """

    def __init__(
        self,
        pool: Pool,
        perform: Callable[[asyncpg.Connection, Sequence[_Item]], Awaitable[Sequence[_Answer]]],
        *,
        reads: bool = False,
    ) -> None:
        self._pool = pool
        self._perform = perform
        self._reads = reads
        """Whether a batch changes nothing: it is sent again after a lost connection."""
        self._waiting: deque[tuple[_Item, asyncio.Future[_Answer]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def add(self, item: _Item) -> _Answer:
        """Return the database's answer to the item. Waiting for it cannot be cancelled.

        Raises:
            NoResponse: the batch failed; the item may have been stored if the answer was lost.
            StoreError: the server could not be reached; nothing was stored.
        """
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._task is None:
            self._start()
        # The item may be under way: a caller that left could not learn whether it was stored.
        with anyio.CancelScope(shield=True):
            answered = await answer
        return answered  # noqa: RET504 - inside the block mypy sees no return: a scope may swallow exceptions

    async def close(self) -> None:
        """Wait until everything that was accepted is stored."""
        with anyio.CancelScope(shield=True):
            while self._task is not None:
                await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.create_task(self._commit(), name="turnwise commits")
        self._task.add_done_callback(self._on_end)

    def _on_end(self, _task: asyncio.Task[None]) -> None:
        self._task = None
        if self._waiting:  # also what answered callers added: they have run on before this is called
            self._start()

    async def _commit(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
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
            if sent and not self._reads:
                # The pool tries again on a new connection, but the first statement may have been committed.
                raise NoResponse(lost=True)
            sent = True
            try:
                return await self._perform(connection, items)
            except asyncpg.ReadOnlySQLTransactionError:
                sent = False  # refused: the pool waits until the server may be written to
                raise

        try:
            return await self._pool.run(once)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every caller must get an answer
            if isinstance(error, StoreError) and (not sent or (self._reads and isinstance(error, Unreachable))):
                return [error for _ in items]  # nothing was stored; asking alone would take as long again
            # Only a server that refused has stored nothing; after anything else that is unknown.
            lost = not isinstance(error, Refused) or error.lost
            return [NoResponse(lost=lost) for _ in items]
