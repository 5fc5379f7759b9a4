"""Group commit: jobs are isolated, and share one commit."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from turnwise.persistence.sqlite.connection import SQLiteConnection
from turnwise.persistence.sqlite.database_file import DatabaseFile
from turnwise.persistence.sqlite.group_commit import GroupCommit
from turnwise.states.errors import StoreError

Note = Callable[[sqlite3.Connection], None]


class Bench:
    """A writer over a table of notes, and a gate that holds its thread."""

    def __init__(self, connection: SQLiteConnection) -> None:
        self.connection = connection
        self.group_commit = GroupCommit(connection, file=DatabaseFile(None))
        self.reached = threading.Event()
        self.gate = threading.Event()

    def hold(self, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO notes VALUES ('held')")
        self.reached.set()
        self.gate.wait(timeout=120)

    async def notes(self) -> list[str]:
        rows = await self.connection.run(lambda on: on.execute("SELECT text FROM notes").fetchall())
        return [text for (text,) in rows]


def note(text: str) -> Note:
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))

    return write


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE notes (text TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE replies (text TEXT REFERENCES notes DEFERRABLE INITIALLY DEFERRED)")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(await SQLiteConnection.open(str(tmp_path / "notes.db"), _prepare))
    yield bench
    bench.gate.set()
    await bench.group_commit.close()
    await bench.connection.close()


async def test_concurrent_jobs_share_a_commit(bench: Bench) -> None:
    commits: list[str] = []
    await bench.connection.run(lambda on: on.set_trace_callback(commits.append))
    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(bench.group_commit.submit, note(str(number)))
    assert commits.count("COMMIT") == 1
    assert len(await bench.notes()) == 100


async def test_failing_job_rolls_back_only_itself(bench: Bench) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        note("undone")(connection)
        raise LookupError("mine")

    answers = await asyncio.gather(
        bench.group_commit.submit(note("before")),
        bench.group_commit.submit(fail),
        bench.group_commit.submit(note("after")),
        return_exceptions=True,
    )
    assert [repr(answer) for answer in answers] == ["None", "LookupError('mine')", "None"]
    assert await bench.notes() == ["before", "after"]


async def test_database_error_becomes_a_store_error(bench: Bench) -> None:
    await bench.group_commit.submit(note("once"))
    with pytest.raises(StoreError, match="UNIQUE") as caught:
        await bench.group_commit.submit(note("once"))
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)


async def test_failed_commit_fails_every_job(bench: Bench) -> None:
    def orphan(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO replies VALUES ('to nothing')")

    answers = await asyncio.gather(
        bench.group_commit.submit(note("innocent")), bench.group_commit.submit(orphan), return_exceptions=True
    )
    assert all(isinstance(answer, StoreError) for answer in answers)
    assert await bench.notes() == []
    await bench.group_commit.submit(note("next"))
    assert await bench.notes() == ["next"]


async def test_cancelled_submitter_withdraws_a_waiting_job(bench: Bench) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.group_commit.submit, bench.hold)
        await anyio.to_thread.run_sync(bench.reached.wait)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(bench.group_commit.submit, note("withdrawn"))
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        bench.gate.set()
    assert await bench.notes() == ["held"]


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_cancelled_submitter_awaits_a_running_job(bench: Bench, times: int) -> None:
    """For any number of cancellations: the caller must find what was committed."""
    task = asyncio.create_task(bench.group_commit.submit(bench.hold))
    await anyio.to_thread.run_sync(bench.reached.wait)
    for _ in range(times):
        task.cancel()
        await anyio.wait_all_tasks_blocked()
        assert not task.done()
    bench.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await bench.notes() == ["held"]


async def test_close_finishes_accepted_jobs_and_refuses_others(bench: Bench) -> None:
    task = asyncio.create_task(bench.group_commit.submit(note("accepted")))
    await asyncio.sleep(0)
    await bench.group_commit.close()
    assert task.done()
    assert await bench.notes() == ["accepted"]
    with pytest.raises(StoreError, match="closed"):
        await bench.group_commit.submit(note("late"))
