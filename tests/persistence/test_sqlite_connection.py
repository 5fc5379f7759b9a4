"""A connection waits for whoever holds the database, as long as it is patient, and for nothing else."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnwise.persistence.sqlite import connection
from turnwise.persistence.sqlite.connection import Connection, _check_not_inherited, meaning_of, patiently
from turnwise.states.errors import StoreError


class Attempts:
    """Fails as often as it is told to, and counts how often it was made."""

    def __init__(self, code: int, failures: float) -> None:
        self.code = code
        self.failures = failures
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        if self.made > self.failures:
            return "done"
        error = sqlite3.OperationalError("no")
        error.sqlite_errorcode = self.code
        raise error


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made: they pass at once."""
    made: list[float] = []
    began = time.monotonic()
    monkeypatch.setattr(time, "sleep", made.append)
    monkeypatch.setattr(time, "monotonic", lambda: began + sum(made))
    return made


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_SNAPSHOT, sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_LOCKED]
)
def test_what_another_holds_is_tried_again(code: int, pauses: list[float]) -> None:
    attempts = Attempts(code, failures=12)
    assert patiently(attempts) == "done"
    assert attempts.made == 13
    assert len(pauses) == 12
    longest = [min(0.001 * 2**number, 0.1) for number in range(12)]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True)), "it backs off"


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_CORRUPT])
def test_what_waiting_does_not_mend_is_told_at_once(code: int, pauses: list[float]) -> None:
    attempts = Attempts(code, failures=1)
    with pytest.raises(sqlite3.OperationalError):
        patiently(attempts)
    assert (attempts.made, pauses) == (1, [])


def test_patience_ends(pauses: list[float]) -> None:
    with pytest.raises(sqlite3.OperationalError):
        patiently(Attempts(sqlite3.SQLITE_BUSY, failures=float("inf")))
    assert connection.PATIENCE <= sum(pauses) < connection.PATIENCE + 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (sqlite3.SQLITE_BUSY, True),
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_READONLY_DBMOVED, True),
        (sqlite3.SQLITE_IOERR_WRITE, True),
        (sqlite3.SQLITE_CANTOPEN, True),
        (sqlite3.SQLITE_PERM, True),
        (sqlite3.SQLITE_CORRUPT, False),
        (sqlite3.SQLITE_NOTADB, False),
        (sqlite3.SQLITE_CONSTRAINT_TRIGGER, False),
        (sqlite3.SQLITE_TOOBIG, False),
    ],
)
def test_what_others_may_mend_passes(code: int, *, passes: bool) -> None:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    assert meaning_of(error, "chats.db").passing is passes


@pytest.mark.parametrize("row", [(2**63,), [(2**63,)]], ids=["one row", "rows"])
def test_a_number_that_no_column_holds_is_told_as_sqlite_tells_its_errors(row: Any) -> None:
    """The driver raises an error of its own kind for one that 64 bits do not hold."""
    with contextlib.closing(sqlite3.connect(":memory:", factory=connection.EagerConnection)) as on:
        on.execute("CREATE TABLE numbers (number)")
        insert = on.executemany if isinstance(row, list) else on.execute
        with pytest.raises(sqlite3.DataError, match="a whole number is too large"):
            insert("INSERT INTO numbers VALUES (?)", row)


async def test_a_closed_connection_does_nothing_and_says_so(tmp_path: Path) -> None:
    done: list[sqlite3.Connection] = []
    opened = await Connection.open(str(tmp_path / "chats.db"), done.append)
    await opened.close()
    await opened.close()
    for work in (opened.do, opened.run):
        with pytest.raises(StoreError, match=r"chats\.db' is closed; nothing was written"):
            await work(done.append)
    assert len(done) == 1


@pytest.mark.anyio
async def test_an_error_is_freed_as_soon_as_nobody_looks_at_it(tmp_path: Path) -> None:
    """Its frames hold rows of chats: they do not wait for the garbage to be collected."""

    class Row:
        pass

    held: list[weakref.ref[Row]] = []

    def fail(_: sqlite3.Connection) -> None:
        row = Row()
        held.append(weakref.ref(row))
        raise LookupError("no")

    opened = await Connection.open(str(tmp_path / "chats.db"), lambda _: None)
    gc.disable()
    try:
        with contextlib.suppress(LookupError):
            await opened.do(fail)
        assert held[0]() is None
    finally:
        gc.enable()
        await opened.close()


async def test_a_connection_is_closed_before_a_cancelled_caller_goes_on(tmp_path: Path) -> None:
    """The last one to close tidies up: whoever copies or deletes the file next finds it whole."""
    path = tmp_path / "chats.db"
    opened = await Connection.open(str(path), lambda on: on.execute("PRAGMA journal_mode = WAL"))
    await opened.run(lambda on: on.execute("CREATE TABLE one (two)"))
    assert path.with_name("chats.db-wal").exists()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await opened.close()
    assert not path.with_name("chats.db-wal").exists()


@pytest.mark.filterwarnings("ignore:unclosed database")  # the driver drops what it has opened for nobody
@pytest.mark.parametrize("cancelled", [False, True], ids=["refused", "cancelled"])
def test_no_thread_outlives_the_opening_of_a_database_that_failed(tmp_path: Path, *, cancelled: bool) -> None:
    """It reports its end to the event loop: after that had closed it printed a traceback."""
    before = {*threading.enumerate()}
    left: list[threading.Thread] = []

    async def fail_to_open() -> None:
        path = tmp_path / ("chats.db" if cancelled else "missing/chats.db")
        with anyio.CancelScope() as scope:
            if cancelled:
                scope.cancel()
            with contextlib.nullcontext() if cancelled else pytest.raises(StoreError, match="cannot be opened"):
                await Connection.open(str(path), lambda _: None)
        left.extend(thread for thread in {*threading.enumerate()} - before if "_connection_worker" in thread.name)

    for _ in range(20):
        anyio.run(fail_to_open)
    assert not left


async def test_a_file_that_was_closed_before_a_fork_may_be_opened_after_it(tmp_path: Path) -> None:
    path = str(tmp_path / "chats.db")
    opened = await Connection.open(path, lambda _: None)
    with pytest.MonkeyPatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StoreError, match="was forked from one that has it open"):
            _check_not_inherited(path)
    await opened.close()
    with pytest.MonkeyPatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        _check_not_inherited(path)
