"""One SQLite connection on a thread of its own, and what its errors mean."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, cast

import aiosqlite
import anyio
import anyio.to_thread

from turnwise.states.errors import StoreError

Durability = Literal["full", "normal"]
"""Whether a commit survives a power cut (`full`), or only the death of the process (`normal`)."""

_T = TypeVar("_T")

BUSY_TIMEOUT_S: Final = 30.0
"""Seconds to wait for other processes that hold the database."""

REFUSED: Final = (sqlite3.Error, UnicodeEncodeError)
"""What SQLite raises, and its driver for text that is not well-formed Unicode."""

_CONTENTION: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_MEANING: Final = {
    sqlite3.SQLITE_FULL: "the disk is full; make room and try again",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only; turnwise must be able to write both",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database; name another path",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; its folder must exist, and this user be allowed to write both",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write, or a quota or a limit on the size of files is reached",
    sqlite3.SQLITE_BUSY: f"another process held it for longer than {BUSY_TIMEOUT_S:g} s",
    sqlite3.SQLITE_PERM: "access to the file is denied",
}
_LASTING: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Of these, the ones that do not pass."""

_AS_IT_IS: Final = partial(str, encoding="utf-8", errors="surrogateescape")
"""Reads text that is not UTF-8, too, so that one such row fails alone and not every statement over many chats."""


sqlite3.register_adapter(type(None), lambda none: none)
"""Binds `None` as NULL, as ever. Without an adapter the driver raises and drops an error for each; so it does for
`bytes`, `bool` and enums, but not for `bytearray`. The driver has no adapters of a connection: this is one of the whole
process, as docs/guides/embedding.md says."""


class EagerConnection(sqlite3.Connection):
    """Reads all rows of a statement at once.

    A statement that is not read to its end keeps its snapshot, even past a ROLLBACK, while anything refers to its
    cursor: a traceback is enough. Later reads would then see old data.
    """

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or _EagerCursor)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement and read all of its rows."""
        return _EagerCursor(self).execute(sql, parameters)

    def executemany(self, sql: str, rows: Any, /) -> sqlite3.Cursor:
        try:
            return super().executemany(sql, rows)
        except OverflowError as error:
            raise _too_large(error) from error


class _EagerCursor(sqlite3.Cursor):
    _rows: Iterator[Any] = iter(())

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        try:
            super().execute(sql, parameters)
        except OverflowError as error:
            raise _too_large(error) from error
        self._rows = iter(super().fetchall())
        return self

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return [*self._rows]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._rows)


def first_rows(connection: sqlite3.Connection, sql: str, parameters: Any, *, size: float) -> tuple[list[Any], bool]:
    """Return the first rows of a statement, whose last column is their size, and whether they have come to `size`.

    The last row is the one that brings them to it.
    """
    rows: list[Any] = []
    with contextlib.closing(sqlite3.Cursor(connection)) as cursor:  # no other row is read, and the statement is over
        for row in cursor.execute(sql, parameters):
            rows.append(row)
            size -= row[-1]
            if size <= 0:
                return rows, True
    return rows, False


def _too_large(error: OverflowError) -> sqlite3.DataError:
    """Return SQLite's error for a number that its driver cannot pass on."""
    return sqlite3.DataError(f"a whole number is too large for a column ({error})")


class _Database(aiosqlite.Connection):
    """Runs any function on its thread, by its protected queue: pyproject.toml allows no version that could lack it."""

    def __init__(self, path: str) -> None:
        super().__init__(partial(_open_connection, path), iter_chunk_size=64)

    def post(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Do what `_execute` does, but without a future: a callback may call this."""
        if not self._running:
            raise ValueError("the connection is closed")
        self._tx.put_nowait((None, partial(work, self._conn)))

    async def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return cast("_T", await self._execute(work, self._conn))  # type: ignore[no-untyped-call]

    def join(self) -> None:
        self._thread.join()


def _open_connection(path: str) -> sqlite3.Connection:
    # SQLite would wait for other processes with the connection's mutex held. A thread that frees a cursor of it needs
    # the mutex: the event loop, if it happens to collect garbage, or the very thread that is waited for.
    connection = sqlite3.connect(path, isolation_level=None, timeout=0, factory=EagerConnection)
    connection.text_factory = _AS_IT_IS
    return connection


class SQLiteConnection:
    """A connection with a thread of its own, which does one function at a time, in the order of the calls."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._process = os.getpid()
        self._database = _Database(path)
        self._closed = False

    @classmethod
    async def open(cls, path: str, prepare: Callable[[sqlite3.Connection], None]) -> SQLiteConnection:
        """Open a connection and prepare it, on its thread.

        Raises:
            StoreError: the database cannot be opened, or `prepare` refused it, or this process has inherited it open.
        """
        _check_not_inherited(path)
        opened = cls(path)
        # Shielded: cancelled, the driver would forget what its thread opens, and nothing would close it.
        opening = asyncio.ensure_future(opened._database)
        try:
            await asyncio.shield(opening)
        except (sqlite3.Error, asyncio.CancelledError) as error:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([opening])
                await opened.close()
                # The driver has stopped its thread, which reports that to the event loop: it must still be there.
                await anyio.to_thread.run_sync(opened._database.join)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise meaning_of(error, path) from error
        _stop_when_lost(opened, opened._database)
        try:
            await opened.run(prepare)
        except BaseException:
            await opened.close()
            raise
        return opened

    @property
    def inherited(self) -> bool:
        """Whether it was open when this process was forked: its thread was left behind, and so were its locks."""
        return self._process != os.getpid()

    def post(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run `work`, which reports its own outcome, on the connection's thread.

        Raises:
            StoreError: the connection is closed.
        """
        self._check_open()
        self._database.post(work)

    async def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` on the connection's thread; do it again while other processes hold the database.

        If the caller is cancelled the work runs on: put what must not be left half done into one function.

        Raises:
            StoreError: the database refused, or the connection is closed.
        """
        self._check_open()
        try:
            return await self._database.run(lambda db: retry_while_busy(lambda: work(db)))
        except REFUSED as error:
            raise meaning_of(error, self.path) from error

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.path!r} is closed; nothing was written")

    async def close(self) -> None:
        """Finish the running work and close, even in a cancelled scope."""
        if self._closed:
            return
        self._closed = True
        _open.pop(self._database, None)
        with anyio.CancelScope(shield=True):
            await self._database.close()


class _OpenFile(NamedTuple):
    """The process that has opened a file, and which file; that is `None` for a database in memory."""

    process: int
    identity: tuple[int, int] | None


_open: Final[dict[aiosqlite.Connection, _OpenFile]] = {}
"""The connections of this process, and those that it has inherited: these can be neither used nor closed."""


def _check_not_inherited(path: str) -> None:
    """Refuse a file that was open when this process was forked.

    SQLite believes here that it holds the locks of the process before, which has not passed them on.
    """
    process, identity = _open_file(path)
    if identity is not None and any(one.identity == identity and one.process != process for one in _open.values()):
        raise inherited(path)


def _open_file(path: str) -> _OpenFile:
    try:
        status = os.stat(path)  # noqa: PTH116 - no path, but a name that SQLite knows, if it is in memory
    except OSError:
        return _OpenFile(os.getpid(), None)
    return _OpenFile(os.getpid(), (status.st_dev, status.st_ino))


def inherited(path: str) -> StoreError:
    """Return the error for who uses, in a process that was forked, what was open before."""
    return StoreError(
        f"the store {path!r}: this process was forked from one that has it open: SQLite would lose commits; start"
        " processes by 'spawn' or 'forkserver', or open the store only after the fork; nothing was written"
    )


def _stop_when_lost(owner: SQLiteConnection, connection: aiosqlite.Connection) -> None:
    """Stop a connection's thread when its owner or the main thread ends, or it would keep the process alive."""
    _open[connection] = _open_file(owner.path)
    lost = weakref.finalize(owner, _stop, connection)
    lost.atexit = False
    _stop_at_exit(os.getpid())


def _stop(connection: aiosqlite.Connection) -> None:
    if connection in _open and _open[connection].process == os.getpid():
        del _open[connection]
        connection.stop()


@cache
def _stop_at_exit(_process: int) -> None:
    threading.Thread(target=_stop_all, name="turnwise exit", daemon=True).start()


def _stop_all() -> None:
    threading.main_thread().join()
    for connection in [*_open]:
        connection.stop()


def retry_while_busy(attempt: Callable[[], _T]) -> _T:
    """Run `attempt` and return its result; retry while other processes lock the database. Blocks the thread."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    pause = 0.001
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_contention(error) or time.monotonic() > deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the waiters, guards no secret
        pause = min(pause * 2, 0.1)


def is_contention(error: sqlite3.Error) -> bool:
    """Whether other processes, or other connections of this one, hold the database."""
    return _error_code(error) in _CONTENTION


def meaning_of(error: sqlite3.Error | UnicodeEncodeError, path: str) -> StoreError:
    """Return a database error in words for the people who run turnwise."""
    if isinstance(error, UnicodeEncodeError):
        return StoreError(f"the store {path!r}: an id holds half a character and can be no one's; nothing was written")
    code = _error_code(error)
    meaning = _MEANING.get(code, "the database refused")
    problem = f"the store {path!r}: {meaning} (SQLite: {error}); nothing was written"
    return StoreError(problem, passing=code in _MEANING and code not in _LASTING)


def _error_code(error: sqlite3.Error) -> int:
    extended: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return extended & 0xFF
