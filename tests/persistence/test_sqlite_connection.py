"""A connection waits for whoever holds the database, as long as it is patient, and for nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import time
from pathlib import Path

import anyio
import pytest

from turnwise.persistence.sqlite import connection
from turnwise.persistence.sqlite.connection import Connection, meaning_of, patiently
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
def test_busy_error_is_retried(code: int, pauses: list[float]) -> None:
    attempts = Attempts(code, failures=12)
    assert patiently(attempts) == "done"
    assert attempts.made == 13
    assert len(pauses) == 12
    longest = [min(0.001 * 2**number, 0.1) for number in range(12)]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True)), "it backs off"


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_CORRUPT])
def test_other_error_is_not_retried(code: int, pauses: list[float]) -> None:
    attempts = Attempts(code, failures=1)
    with pytest.raises(sqlite3.OperationalError):
        patiently(attempts)
    assert (attempts.made, pauses) == (1, [])


def test_retries_end(pauses: list[float]) -> None:
    with pytest.raises(sqlite3.OperationalError):
        patiently(Attempts(sqlite3.SQLITE_BUSY, failures=float("inf")))
    assert connection.PATIENCE <= sum(pauses) < connection.PATIENCE + 1


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
def test_error_codes_are_classified_as_passing(code: int, *, passes: bool) -> None:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    assert meaning_of(error, "chats.db").passing is passes


async def test_closed_connection_is_refused(tmp_path: Path) -> None:
    done: list[sqlite3.Connection] = []
    opened = await Connection.open(str(tmp_path / "chats.db"), done.append)
    await opened.close()
    await opened.close()
    for work in (opened.do, opened.run):
        with pytest.raises(StoreError, match=r"chats\.db' is closed; nothing was written"):
            await work(done.append)
    assert len(done) == 1


async def test_cancelled_open_closes_what_it_opened(tmp_path: Path) -> None:
    """Python 3.13 and newer warn of a database that is not closed, and warnings fail the test."""
    for turns in range(8):
        opening = asyncio.create_task(Connection.open(str(tmp_path / "chats.db"), lambda _on: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()
    gc.collect()


async def test_close_finishes_before_a_cancelled_caller_continues(tmp_path: Path) -> None:
    """The last one to close tidies up: whoever copies or deletes the file next finds it whole."""
    path = tmp_path / "chats.db"
    opened = await Connection.open(str(path), lambda on: on.execute("PRAGMA journal_mode = WAL"))
    await opened.run(lambda on: on.execute("CREATE TABLE one (two)"))
    assert path.with_name("chats.db-wal").exists()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await opened.close()
    assert not path.with_name("chats.db-wal").exists()
