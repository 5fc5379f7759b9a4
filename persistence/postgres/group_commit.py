"""Group commit: items that arrive while a batch is being stored go together into the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

import anyio
import asyncpg
from anyio.lowlevel import checkpoint

from turnwise.persistence.postgres.pool import Pool
from turnwise.states.errors import StoreError

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_BATCH: Final = 64


class Unanswered(Exception):
    """A batch failed, or its answer was lost: each caller must find out whether its item was stored."""


class GroupCommit(Generic[_Item, _Answer]):
    """Stores items, or answers questions, in batches: one statement each.

    No timer runs. A lone item is sent at once; under load, items gather while the batch before them is stored.
    """

    def __init__(
        self, pool: Pool, perform: Callable[[asyncpg.Connection, Sequence[_Item]], Awaitable[Sequence[_Answer]]]
    ) -> None:
        self._pool = pool
        self._perform = perform
        self._waiting: deque[tuple[_Item, asyncio.Future[_Answer]]] = deque()
        self._performing: asyncio.Task[None] | None = None

    async def add(self, item: _Item) -> _Answer:
        """Return the database's answer to the item. Waiting for it cannot be cancelled.

        Raises:
            Unanswered: it is not known whether the item was stored.
            StoreError: the server could not be reached; nothing was stored.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        self._waiting.append((item, answer))
        if self._performing is None or self._performing.done():
            self._performing = loop.create_task(self._run())
        with anyio.CancelScope(shield=True):
            answered = await answer
        return answered  # noqa: RET504 - inside the block mypy sees no return: a scope may swallow exceptions

    async def close(self) -> None:
        """Wait until everything that was accepted is stored."""
        if self._performing is not None:
            with anyio.CancelScope(shield=True):
                await self._performing

    async def _run(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            answers = await self._answers([item for item, _ in batch])
            for place, (_, waits) in enumerate(batch):
                answer = answers[place]
                if waits.cancelled():
                    continue
                if isinstance(answer, Exception):
                    waits.set_exception(answer)
                else:
                    waits.set_result(answer)
            await checkpoint()  # let the callers run on: their next items join the batch

    async def _answers(self, items: Sequence[_Item]) -> Sequence[_Answer | Exception]:
        sent = False

        async def once(connection: asyncpg.Connection) -> Sequence[_Answer]:
            nonlocal sent
            if sent:
                # The pool tries again on a new connection, but the first statement may have been committed.
                raise Unanswered
            sent = True
            return await self._perform(connection, items)

        try:
            return await self._pool.run(once)
        except Exception as error:  # noqa: BLE001 - whatever it is, every caller must get an answer
            nothing_stored = isinstance(error, StoreError) and not sent
            return [error if nothing_stored else Unanswered() for _ in items]
