"""Group commit: whoever writes while a commit is under way shares the next one."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import anyio

from turnwise.persistence.sqlite.connection import Connection, meaning_of, patiently
from turnwise.persistence.sqlite.database_file import DatabaseFile, NoFile
from turnwise.states.errors import StoreError

_T = TypeVar("_T")
_BATCH: Final = 128

Work = Callable[[sqlite3.Connection], _T]
"""Reads and writes inside a transaction that it neither begins nor ends. What it raises undoes what it wrote.

It may be called again, after a rollback of its first call.
"""
_Attempt = Callable[[Work[Any], sqlite3.Connection], Any]


class _Job(Generic[_T]):
    """A piece of work and the future on which its submitter waits."""

    __slots__ = ("known", "outcome", "over", "work")

    def __init__(self, work: Work[_T]) -> None:
        self.work = work
        self.outcome: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self.known: asyncio.Future[None] | None = None
        """Takes the outcome's place for a submitter that was cancelled: it is told when, and not what."""
        self.over = False

    def answer(self, outcome: _T | BaseException) -> None:
        self.over = True
        if self.known is not None:
            self.known.set_result(None)
        elif self.outcome.cancelled():
            return
        elif isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class GroupCommit:
    """Runs jobs in transactions on one connection.

    Batches form under load, by themselves: no timer runs and no job waits for another to come.
    """

    def __init__(
        self, connection: Connection, *, forget: Callable[[], None], file: DatabaseFile | NoFile | None = None
    ) -> None:
        self._connection = connection
        self._file = file or NoFile()
        self._forget = forget
        self._waiting: deque[_Job[Any]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._committing: asyncio.Task[None]

    async def submit(self, work: Work[_T]) -> _T:
        """Return what `work` returned, once it is committed.

        Cancelled before the work was begun, it never happens; cancelled later, its end is awaited first.

        Raises:
            StoreError: the database refused; nothing of the work was written.
        """
        if self._closing:
            raise StoreError(f"the store {self._connection.path!r} is closed; nothing was written")
        job = _Job(work)
        self._waiting.append(job)
        if self._idle.is_set():
            self._idle.clear()
            self._committing = asyncio.create_task(self._commit_waiting(), name="turnwise commits")
        try:
            return await job.outcome
        except asyncio.CancelledError:
            await self._give_up(job)
            raise
        finally:
            del job  # it holds the error, whose traceback holds this frame: what nothing refers to is freed at once

    async def close(self) -> None:
        """Finish what was accepted; accept nothing more."""
        self._closing = True
        with anyio.CancelScope(shield=True):
            await self._idle.wait()

    async def _give_up(self, job: _Job[Any]) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
        elif not job.over:
            job.known = asyncio.get_running_loop().create_future()
            while not job.known.done():
                with contextlib.suppress(asyncio.CancelledError), anyio.CancelScope(shield=True):
                    await asyncio.shield(job.known)  # cancelled again, it is awaited still
        elif not job.outcome.cancelled():
            job.outcome.exception()  # looked at, or asyncio would report it as lost

    async def _commit_waiting(self) -> None:
        while self._waiting:
            jobs = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                outcomes = await self._connection.do(partial(self._transact, jobs))
            except BaseException as failure:  # noqa: BLE001 - whoever waits is told
                outcomes = [failure] * len(jobs)
            self._answer(jobs, outcomes)
            await asyncio.sleep(0)  # who was answered runs first, so that its next job joins the batch
        self._idle.set()

    def _answer(self, jobs: Sequence[_Job[Any]], outcomes: Sequence[Any]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.answer(outcome)

    def _transact(self, jobs: Sequence[_Job[Any]], connection: sqlite3.Connection) -> list[Any]:
        """Do the jobs in one transaction, as one function on the connection's thread.

        Savepoints cost an eighth of a small job, so they are set only when a job has left something to undo.
        """
        try:
            self._file.check()
            try:
                outcomes = self._do(jobs, connection, self._attempt)
            except _LeftSomethingBehind:
                self._undo(connection)
                outcomes = self._do(jobs, connection, self._attempt_apart)
            patiently(lambda: connection.execute("COMMIT"))
            self._file.check()  # or what was written to a file that nobody will find again would be acknowledged
        except BaseException as error:
            self._undo(connection)
            raise self._error_for_caller(error) from error
        return outcomes

    def _do(self, jobs: Sequence[_Job[Any]], connection: sqlite3.Connection, attempt: _Attempt) -> list[Any]:
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        return [attempt(job.work, connection) for job in jobs]

    def _undo(self, connection: sqlite3.Connection) -> None:
        self._forget()
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _attempt(self, work: Work[Any], connection: sqlite3.Connection) -> Any:
        written = connection.total_changes
        try:
            return work(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise  # the database itself has undone the whole batch
            if connection.total_changes != written:
                raise _LeftSomethingBehind from error
            return self._error_for_caller(error)

    def _attempt_apart(self, work: Work[Any], connection: sqlite3.Connection) -> Any:
        connection.execute("SAVEPOINT job")
        try:
            outcome = work(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO job")
            outcome = self._error_for_caller(error)
        connection.execute("RELEASE job")
        return outcome

    def _error_for_caller(self, error: BaseException) -> BaseException:
        translated: BaseException
        if isinstance(error, sqlite3.Error | UnicodeEncodeError):
            self._forget()
            translated = meaning_of(error, self._connection.path)
        elif isinstance(error, StopIteration):
            translated = RuntimeError("a plan raised StopIteration; nothing was written")  # no future can carry it
        else:
            return error
        translated.__cause__ = error
        return translated


class _LeftSomethingBehind(Exception):
    """A job failed after it had written."""
