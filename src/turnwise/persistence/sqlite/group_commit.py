"""Group commit: jobs that arrive while a transaction commits go together into the next one."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import anyio

from turnwise.persistence.sqlite.connection import SQLiteConnection, meaning_of, retry_while_busy
from turnwise.persistence.sqlite.database_file import DatabaseFile
from turnwise.states.errors import StoreError

_T = TypeVar("_T")
_BATCH: Final = 128

Job = Callable[[sqlite3.Connection], _T]
"""Reads and writes inside a transaction that it neither begins nor ends. If it raises, its writes are undone.

It may be called a second time, after its first call was rolled back.
"""
_Attempt = Callable[[Job[Any], sqlite3.Connection], Any]


class _Submission(Generic[_T]):
    """A piece of work and the future on which its submitter waits."""

    __slots__ = ("ended", "outcome", "over", "work")

    def __init__(self, work: Job[_T]) -> None:
        self.work = work
        self.outcome: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] | None = None
        """Done when the job has ended; for a submitter that was cancelled, without the outcome."""
        self.over = False

    def answer(self, outcome: _T | BaseException) -> None:
        self.over = True
        if self.ended is not None:
            self.ended.set_result(None)
        elif self.outcome.cancelled():
            return
        elif isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class GroupCommit:
    """Runs jobs in transactions on one connection, one after another.

    No timer runs: a lone job is done at once; under load, jobs gather while a transaction commits. No task runs either,
    only callbacks: an event loop that ends cancels every task, and what was accepted must still be done.
    """

    def __init__(self, connection: SQLiteConnection, *, file: DatabaseFile) -> None:
        self._connection = connection
        self._file = file
        self._waiting: deque[_Submission[Any]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    async def submit(self, work: Job[_T]) -> _T:
        """Run `work` and return its result once it is committed.

        If the caller is cancelled before the work begins, it is never done; if later, the call waits until it is over.

        Raises:
            StoreError: the database refused; nothing of the work was written.
        """
        if self._closing:
            raise StoreError(f"the store {self._connection.path!r} is closed; nothing was written")
        job = _Submission(work)
        self._waiting.append(job)
        if self._idle.is_set():
            self._idle.clear()
            self._start_soon()
        try:
            return await job.outcome
        except asyncio.CancelledError:
            await self._give_up(job)
            raise
        finally:
            del job  # it holds the error, whose traceback holds this frame: what nothing refers to is freed at once

    async def close(self) -> None:
        """Accept no more jobs, and wait until those that were accepted are done, even in a cancelled scope."""
        self._closing = True
        with anyio.CancelScope(shield=True):
            await self._idle.wait()

    async def _give_up(self, job: _Submission[Any]) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
            return
        if not job.over:
            job.ended = asyncio.get_running_loop().create_future()
            while not job.ended.done():
                with contextlib.suppress(asyncio.CancelledError), anyio.CancelScope(shield=True):
                    await asyncio.shield(job.ended)  # even if cancelled again
        elif not job.outcome.cancelled():
            job.outcome.exception()  # or asyncio would log an exception that was never retrieved

    def _start_soon(self) -> None:
        """Start a transaction once the callbacks before it have run: the jobs that they submit join it."""
        asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        jobs = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        if not jobs:
            self._idle.set()
            return
        try:
            self._connection.post(partial(self._run, jobs, asyncio.get_running_loop()))
        except Exception as error:  # noqa: BLE001 - every submitter must get an answer
            self._answer(jobs, [error] * len(jobs))

    def _answer(self, jobs: Sequence[_Submission[Any]], outcomes: Sequence[Any]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.answer(outcome)
        if self._waiting:
            self._start_soon()
        else:
            self._idle.set()

    def _run(
        self, jobs: Sequence[_Submission[Any]], loop: asyncio.AbstractEventLoop, connection: sqlite3.Connection
    ) -> None:
        """Do the jobs, on the connection's thread, and answer them by a callback: a future would take one more."""
        answer = loop.call_soon_threadsafe
        try:
            outcomes = self._transact(jobs, connection)
        except BaseException as error:  # noqa: BLE001 - as above
            answer(self._answer, jobs, [error] * len(jobs))
        else:
            answer(self._answer, jobs, outcomes)

    def _transact(self, jobs: Sequence[_Submission[Any]], connection: sqlite3.Connection) -> list[Any]:
        """Do the jobs in one transaction, and return their outcomes.

        A savepoint costs an eighth of a small job. So the jobs are first done without; if one fails after it has
        written, the transaction is rolled back and all are done again with a savepoint each.
        """
        try:
            self._file.check()
            try:
                outcomes = self._do(jobs, connection, self._attempt)
            except _LeftSomethingBehind:
                self._undo(connection)
                outcomes = self._do(jobs, connection, self._attempt_apart)
            if all(isinstance(outcome, BaseException) for outcome in outcomes):
                self._undo(connection)  # a commit would write the pages that the savepoints have put back
            else:
                retry_while_busy(lambda: connection.execute("COMMIT"))
            self._file.check(committed=True)  # what went to a file that was deleted meanwhile must not be acknowledged
        except BaseException as error:
            self._undo(connection)
            raise self._error_for_caller(error) from error
        return outcomes

    def _do(self, jobs: Sequence[_Submission[Any]], connection: sqlite3.Connection, attempt: _Attempt) -> list[Any]:
        retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))
        return [attempt(job.work, connection) for job in jobs]

    @staticmethod
    def _undo(connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _attempt(self, work: Job[Any], connection: sqlite3.Connection) -> Any:
        written = connection.total_changes
        try:
            return work(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise  # SQLite has rolled back the whole batch
            if connection.total_changes != written:
                raise _LeftSomethingBehind from error
            return self._error_for_caller(error)

    def _attempt_apart(self, work: Job[Any], connection: sqlite3.Connection) -> Any:
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
            translated = meaning_of(error, self._connection.path)
        elif isinstance(error, StopIteration):
            translated = RuntimeError("a plan raised StopIteration; nothing was written")  # no future can carry it
        else:
            return error
        translated.__cause__ = error
        return translated


class _LeftSomethingBehind(Exception):
    """A job failed after it had written."""
