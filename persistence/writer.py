"""Group commit: one task owns the writing connection, and whoever writes at the same time shares a commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import anyio

from turnwise.persistence.connection import Connection, meaning_of, patiently
from turnwise.states.errors import StoreError

_T = TypeVar("_T")
_BATCH: Final = 128

Work = Callable[[sqlite3.Connection], _T]
"""Reads and writes inside a transaction that it neither begins nor ends. What it raises undoes what it wrote."""


@dataclass(slots=True, eq=False)
class _Job(Generic[_T]):
    work: Work[_T]
    outcome: asyncio.Future[_T]

    def answer(self, outcome: _T | BaseException) -> None:
        if self.outcome.done():
            return
        if isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class Writer:
    """Runs jobs in transactions. Batches form under load, by themselves: no job ever waits for another to come."""

    def __init__(self, connection: Connection, *, forget: Callable[[], None]) -> None:
        self._connection = connection
        self._forget = forget
        self._waiting: deque[_Job[Any]] = deque()
        self._taken: list[_Job[Any]] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._serve(), name="turnwise-writer")

    async def submit(self, work: Work[_T]) -> _T:
        """Return what `work` returned, once it is committed.

        Cancelled before the work was taken, it never happens; cancelled later, the outcome is awaited first.

        Raises:
            StoreError: the database refused; nothing of the work was written.
        """
        if self._closing:
            raise StoreError(f"the store {self._connection.path!r} is closed; nothing was written")
        job = _Job(work, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._wake.set()
        try:
            return await asyncio.shield(job.outcome)
        except asyncio.CancelledError:
            if job in self._waiting:
                self._waiting.remove(job)
            else:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([job.outcome])
            raise

    async def close(self) -> None:
        """Finish what was accepted and stop."""
        self._closing = True
        self._wake.set()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])

    async def _serve(self) -> None:
        try:
            while await self._work_waits():
                self._taken = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                await self._commit(self._taken)
        finally:
            self._closing = True
            for job in (*self._taken, *self._waiting):
                job.answer(StoreError("the store was torn down before it could say whether this was written"))

    async def _work_waits(self) -> bool:
        if not self._waiting and not self._closing:
            self._wake.clear()
            await self._wake.wait()
        return bool(self._waiting)

    async def _commit(self, jobs: Sequence[_Job[Any]]) -> None:
        try:
            outcomes = await self._connection.run(lambda connection: self._transact(connection, jobs))
        except Exception as error:  # noqa: BLE001 - every submitter hears it
            outcomes = [error] * len(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.answer(outcome)

    def _transact(self, connection: sqlite3.Connection, jobs: Sequence[_Job[Any]]) -> list[Any]:
        """Run on the connection's thread: one transaction, whatever becomes of each job."""
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            outcomes = [self._attempt(connection, job.work) for job in jobs]
            connection.execute("COMMIT")
        except BaseException:
            self._forget()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return outcomes

    def _attempt(self, connection: sqlite3.Connection, work: Work[Any]) -> Any:
        connection.execute("SAVEPOINT job")
        try:
            outcome = work(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise  # the database has undone the whole batch
            connection.execute("ROLLBACK TO job")
            outcome = error
            if isinstance(error, sqlite3.Error):
                self._forget()
                outcome = meaning_of(error, self._connection.path)
                outcome.__cause__ = error
        connection.execute("RELEASE job")
        return outcome
