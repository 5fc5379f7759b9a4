"""Group commit: each job for itself, the commit for all of them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnwise.persistence.sqlite.connection import Connection
from turnwise.persistence.sqlite.database_file import DatabaseFile
from turnwise.persistence.sqlite.group_commit import GroupCommit
from turnwise.states.errors import StoreError

Note = Callable[[sqlite3.Connection], None]


class Bench:
    """A writer over a table of notes, and a gate at which its thread can be held."""

    def __init__(self, connection: Connection) -> None:
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
    bench = Bench(await Connection.open(str(tmp_path / "notes.db"), _prepare))
    yield bench
    bench.gate.set()
    await bench.group_commit.close()
    await bench.connection.close()


async def test_jobs_that_come_together_share_a_commit(bench: Bench) -> None:
    commits: list[str] = []
    await bench.connection.run(lambda on: on.set_trace_callback(commits.append))
    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(bench.group_commit.submit, note(str(number)))
    assert commits.count("COMMIT") == 1
    assert len(await bench.notes()) == 100


async def test_jobs_that_come_during_a_commit_share_the_next(bench: Bench) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.group_commit.submit, bench.hold)
        await anyio.to_thread.run_sync(bench.reached.wait)
        commits: list[str] = []
        for number in range(5):
            tasks.start_soon(bench.group_commit.submit, note(str(number)))
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(bench.connection.run, lambda on: on.set_trace_callback(commits.append))
        await anyio.wait_all_tasks_blocked()
        bench.gate.set()
    assert commits.count("COMMIT") == 1
    assert len(await bench.notes()) == 6


async def test_the_next_job_of_who_was_answered_joins_those_that_wait_already(bench: Bench) -> None:
    commits: list[str] = []

    async def twice() -> None:
        await bench.group_commit.submit(bench.hold)
        await bench.group_commit.submit(note("next"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(twice)
        await anyio.to_thread.run_sync(bench.reached.wait)
        tasks.start_soon(bench.group_commit.submit, note("waiting"))
        tasks.start_soon(bench.connection.run, lambda on: on.set_trace_callback(commits.append))
        await anyio.wait_all_tasks_blocked()
        bench.gate.set()
    assert commits.count("COMMIT") == 1
    assert await bench.notes() == ["held", "waiting", "next"]


async def test_a_job_that_fails_takes_only_its_own_writes_with_it(bench: Bench) -> None:
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


async def test_a_job_that_is_alone_and_fails_after_it_has_written_commits_nothing(bench: Bench) -> None:
    said: list[str] = []
    await bench.connection.run(lambda on: on.set_trace_callback(said.append))

    def fail(connection: sqlite3.Connection) -> None:
        note("lost")(connection)
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await bench.group_commit.submit(fail)
    assert "COMMIT" not in said
    assert said.count("ROLLBACK") == 2
    assert await bench.notes() == []


async def test_a_job_that_fails_before_it_has_written_costs_the_others_nothing(bench: Bench) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("SELECT text FROM notes").fetchall()
        raise LookupError("mine")

    commands: list[str] = []
    await bench.connection.run(lambda on: on.set_trace_callback(commands.append))
    answers = await asyncio.gather(
        bench.group_commit.submit(note("before")), bench.group_commit.submit(fail), return_exceptions=True
    )
    assert [repr(answer) for answer in answers] == ["None", "LookupError('mine')"]
    assert commands.count("BEGIN IMMEDIATE") == 1
    assert "ROLLBACK" not in commands


async def test_a_job_that_raises_stop_iteration_is_answered(bench: Bench) -> None:
    """No future can carry a StopIteration: unanswered, its submitter would wait for ever."""

    def fail(connection: sqlite3.Connection) -> None:
        next(connection.execute("SELECT text FROM notes"))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await bench.group_commit.submit(fail)


async def test_a_database_error_of_a_job_becomes_a_store_error(bench: Bench) -> None:
    await bench.group_commit.submit(note("once"))
    with pytest.raises(StoreError, match="UNIQUE") as caught:
        await bench.group_commit.submit(note("once"))
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)


async def test_a_commit_that_fails_fails_every_job_of_the_batch(bench: Bench) -> None:
    def orphan(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO replies VALUES ('to nothing')")

    answers = await asyncio.gather(
        bench.group_commit.submit(note("innocent")), bench.group_commit.submit(orphan), return_exceptions=True
    )
    assert all(isinstance(answer, StoreError) for answer in answers)
    assert await bench.notes() == []
    await bench.group_commit.submit(note("next"))
    assert await bench.notes() == ["next"]


async def test_a_transaction_that_the_database_gave_up_fails_every_job_of_the_batch(bench: Bench) -> None:
    def give_up(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR ROLLBACK INTO notes VALUES ('innocent')")

    answers = await asyncio.gather(
        bench.group_commit.submit(note("innocent")), bench.group_commit.submit(give_up), return_exceptions=True
    )
    assert all(isinstance(answer, StoreError) for answer in answers)
    assert await bench.notes() == []


async def test_nothing_is_written_after_a_transaction_that_the_database_gave_up(bench: Bench) -> None:
    """Whoever came behind would write outside of any transaction, and be told that nothing was written."""

    def give_up(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    answers = await asyncio.gather(
        bench.group_commit.submit(give_up), bench.group_commit.submit(note("behind")), return_exceptions=True
    )
    assert all(isinstance(answer, StoreError) for answer in answers)
    assert await bench.notes() == []


async def test_a_commit_to_a_file_that_is_taken_away_meanwhile_is_not_acknowledged(
    bench: Bench, tmp_path: Path
) -> None:
    path = tmp_path / "notes.db"
    watched = GroupCommit(bench.connection, file=DatabaseFile(str(path)))

    def take_away(connection: sqlite3.Connection) -> None:
        note("lost")(connection)
        path.unlink()

    await watched.submit(note("kept"))
    with pytest.raises(StoreError, match="was deleted while it was open"):
        await watched.submit(take_away)
    await watched.close()


async def test_a_submitter_cancelled_before_its_job_was_taken_withdraws_it(bench: Bench) -> None:
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
async def test_a_submitter_cancelled_later_waits_for_the_outcome(bench: Bench, times: int) -> None:
    """However often it is cancelled: whoever goes on must not find less than what is then committed."""
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


async def test_a_submitter_cancelled_just_before_it_is_answered_does_not_wait_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = GroupCommit._answer

    def cancel_first(group_commit: GroupCommit, *args: Any) -> None:
        task.cancel()
        answer(group_commit, *args)

    monkeypatch.setattr(GroupCommit, "_answer", cancel_first)
    task = asyncio.create_task(bench.group_commit.submit(note("kept")))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await bench.notes() == ["kept"]


async def test_a_commit_that_somebody_cancels_is_answered_as_it_ended(bench: Bench) -> None:
    """As an event loop does that ends: what is committed nevertheless must not be told to have failed."""
    submitted = asyncio.create_task(bench.group_commit.submit(bench.hold))
    await anyio.to_thread.run_sync(bench.reached.wait)
    (commits,) = (task for task in asyncio.all_tasks() if task.get_name() == "turnwise commits")
    for _ in range(3):
        commits.cancel()
        await anyio.wait_all_tasks_blocked()
    later = asyncio.create_task(bench.group_commit.submit(note("later")))
    await anyio.wait_all_tasks_blocked()
    assert not submitted.done()
    bench.gate.set()
    await asyncio.gather(submitted, later)
    assert await bench.notes() == ["held", "later"]


async def test_closing_finishes_what_was_accepted_and_accepts_no_more(bench: Bench) -> None:
    task = asyncio.create_task(bench.group_commit.submit(note("accepted")))
    await asyncio.sleep(0)
    await bench.group_commit.close()
    assert task.done()
    assert await bench.notes() == ["accepted"]
    with pytest.raises(StoreError, match="closed"):
        await bench.group_commit.submit(note("late"))


async def test_closing_waits_for_what_was_accepted_even_if_it_is_cancelled(bench: Bench) -> None:
    submitted = asyncio.create_task(bench.group_commit.submit(bench.hold))
    await anyio.to_thread.run_sync(bench.reached.wait)
    with anyio.CancelScope() as impatient:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.group_commit.close)
            await anyio.wait_all_tasks_blocked()
            impatient.cancel()
            asyncio.get_running_loop().call_later(0.2, bench.gate.set)
    assert submitted.done()
    assert await bench.notes() == ["held"]
