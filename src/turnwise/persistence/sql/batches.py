"""Batches: items that arrive while a batch is being done go together into the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio

_Item = TypeVar("_Item")


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
