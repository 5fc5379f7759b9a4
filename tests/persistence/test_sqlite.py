"""The SQLite store itself: shared files, killed processes, full disks, indexes."""

import asyncio
import contextlib
import gc
import logging
import random
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from support.sql_by_hand import raw
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.chat_cache import SkippedChats
from turnwise.persistence.sql.migrations import migrations
from turnwise.persistence.sqlite import connection
from turnwise.persistence.sqlite import store as scrub
from turnwise.persistence.sqlite.connection import Durability, SQLiteConnection, meaning_of, retry_while_busy
from turnwise.persistence.sqlite.database import SQL
from turnwise.persistence.sqlite.migrate import migrate
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import ChatUnreadable, StoreError
from turnwise.states.triggers import Renamed
from turnwise.testing.conformance import plans

FORK = """
import anyio, asyncio, multiprocessing, sys
from turnwise.testing.conformance import plans
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import StoreError

async def attempt(what, work):
    try:
        await work
        print(f"{what}: opened", flush=True)
    except StoreError as error:
        print(f"{what}: {error}", flush=True)

async def use(path, beside):
    await attempt("read", inherited[0].facts("chat"))
    await attempt("open", SQLiteStore(path).open())
    other = SQLiteStore(beside)
    await attempt("another file", other.open())
    await other.close()

inherited = []

def forked(*paths):
    asyncio.run(use(*paths))

async def main(path, beside):
    store = SQLiteStore(path)
    await store.open()
    inherited.append(store)
    await plans.created(store, "chat")
    child = multiprocessing.get_context("fork").Process(target=forked, args=(path, beside))
    child.start()
    await anyio.to_thread.run_sync(child.join)
    print("the first process:", (await store.facts("chat")).version)
    await store.close()

anyio.run(main, *sys.argv[1:])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@asynccontextmanager
async def opened(path: Path | None, **options: Any) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def rename(title: str) -> plans.Plan:
    return plans.plan(plans.move(Renamed(title=title)))


async def test_two_writing_stores_see_no_lock_errors(path: Path) -> None:
    async with opened(path) as one, opened(path) as other, anyio.create_task_group() as tasks:
        await plans.created(one, "chat")
        for number in range(40):
            tasks.start_soon((one, other)[number % 2].change, "chat", rename(str(number)))
    async with opened(path) as store:
        assert (await store.facts("chat")).version == 41
        assert verify_records(await store.audit("chat")).ok


async def test_commit_of_another_process_wakes_the_watcher(path: Path) -> None:
    async with opened(path) as store, opened(path) as other, anyio.create_task_group() as tasks:
        hints: list[str | None] = []

        async def watch() -> None:
            async for hint in store.watch():
                hints.append(hint)
                listens.set()
                if len(hints) == 2:
                    return

        listens = anyio.Event()
        tasks.start_soon(watch)
        await listens.wait()
        await anyio.wait_all_tasks_blocked()
        assert hints == [None], "what was committed before may have been missed; nothing else has happened"
        await plans.created(other, "theirs")
    assert hints == [None, None]


async def test_failed_commit_is_not_cached(path: Path) -> None:
    def orphan(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA defer_foreign_keys = ON")
        connection.execute("INSERT INTO events (chat, seq, kind, body) VALUES (9, 1, 'status', '{}')")

    async with opened(path) as store, opened(path) as other:
        await plans.created(store, "chat")
        failed, also_failed = await asyncio.gather(
            store.change("chat", rename("lost")), store._submit(orphan), return_exceptions=True
        )
        assert isinstance(failed, StoreError)
        assert isinstance(also_failed, StoreError)
        theirs = await other.change("chat", rename("theirs"))
        assert (await store.change("chat", plans.idle)).facts == theirs.facts


async def test_full_disk_is_named_and_survived(path: Path) -> None:
    async with opened(path) as store:
        await plans.created(store, "chat")
        await store._opened().writer.run(lambda on: on.execute("PRAGMA max_page_count = 1").fetchone())
        with pytest.raises(StoreError, match="disk is full"):
            await store.change("chat", plans.plan(plans.send("a long story " * 10_000)))
        await store._opened().writer.run(lambda on: on.execute("PRAGMA max_page_count = 1000000").fetchone())
        assert (await store.change("chat", plans.plan(plans.send("a long story " * 10_000)))).facts.version == 2


@pytest.mark.parametrize("migrates", [True, False])
@pytest.mark.parametrize(("folder", "why"), [("missing", "there is no folder"), ("x" * 300, "File name too long")])
async def test_unreadable_folder_is_named(tmp_path: Path, folder: str, why: str, *, migrates: bool) -> None:
    """So is one below a folder that this user may not search."""
    with pytest.raises(StoreError, match=why):
        await SQLiteStore(tmp_path / folder / "chats.db", migrates=migrates).open()


async def test_read_only_file_is_named(path: Path) -> None:
    async with opened(path) as store:
        await store._opened().writer.run(lambda on: on.execute("PRAGMA query_only = ON"))
        with pytest.raises(StoreError, match="read-only"):
            await plans.created(store, "chat")


@pytest.mark.deep
async def test_forked_process_cannot_use_the_store(path: Path) -> None:
    """SQLite's locks are not inherited, so acknowledged commits would be lost."""
    beside = path.with_name("beside.db")
    with anyio.fail_after(120):
        done = await anyio.run_process([sys.executable, "-W", "ignore", "-c", FORK, str(path), str(beside)])
    refused = f"the store {str(path)!r}: this process was forked from one that has it open"
    expected = [f"read: {refused}", f"open: {refused}", "another file: opened", "the first process: 1"]
    assert [line.partition(": SQLite")[0] for line in done.stdout.decode().splitlines()] == expected


@pytest.mark.parametrize(
    "name",
    [
        "current",
        "pending",
        "unsettled",
        "strays",
        "deadlines",
        "first_parts",
        "prune_chat",
        "expired_leases",
        "parts",
        "at_work",
    ],
)
def test_frequent_queries_use_an_index(name: str) -> None:
    """No query of a worker's loop may cost more as the store fills."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, ":memory:", migrations("sqlite"))
        values = [None] * SQL[name].count("?") or dict.fromkeys(re.findall(r":(\w+)", SQL[name]), 0)
        rows = connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", values).fetchall()
    # Left out: an array of one row, or of a parameter, what steps along an index have found, and the few that settle.
    found = ("SCAN first", "SCAN stored", "SCAN chats USING INDEX chats_unsettled")
    steps = [detail for *_, detail in rows if "json_each" not in detail and detail not in found]
    assert all("USING" in step for step in steps if step.startswith(("SCAN", "SEARCH"))), steps
    assert not any(step.startswith("SCAN") for step in steps), steps
    assert name == "strays" or not any("TEMP B-TREE" in step for step in steps), steps
    assert name != "at_work" or "COVERING INDEX" in steps[0], steps


def test_commits_under_a_lease_write_no_index_of_leases() -> None:
    """SQLite rewrites an index entry for every column that is set, changed or not."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, ":memory:", migrations("sqlite"))
        pages = dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'index'").fetchall())
        update = SQL["update_chat"].replace("{more}", "")
        steps = connection.execute(f"EXPLAIN {update}", [None] * update.count("?")).fetchall()
    written = {page for _, step, _, page, *_ in steps if step == "OpenWrite"}
    assert pages["chats_by_change"] in written
    assert not written & {pages["chats_leased"], pages["chats_by_expiry"]}


# Its files


SPELLED = {1: "normal", 2: "full"}


def test_secure_delete_is_on(tmp_path: Path) -> None:
    """Some builds of SQLite set it by default, others leave erased content in the file."""
    with closing(sqlite3.connect(tmp_path / "chats.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        SQLiteStore(tmp_path / "chats.db").prepare(connection)
        assert connection.execute("PRAGMA secure_delete").fetchone() == (1,)


def test_checkpoint_every_sixteen_megabytes(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "chats.db", isolation_level=None)) as connection:
        SQLiteStore(tmp_path / "chats.db").prepare(connection)
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (4000,)


@pytest.mark.parametrize("durability", ["full", "normal"])
async def test_every_connection_uses_the_durability(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not lose acknowledged commits, unless the application has chosen that."""
    found: list[str] = []
    opened = SQLiteConnection.open

    async def spied(path: str, prepare: Any) -> SQLiteConnection:
        connection = await opened(path, prepare)
        found.append(SPELLED[(await connection.run(lambda on: on.execute("PRAGMA synchronous").fetchone()))[0]])
        return connection

    monkeypatch.setattr(SQLiteConnection, "open", spied)
    store = SQLiteStore(tmp_path / "chats.db", durability=durability)
    await store.open()
    await store.close()
    assert found == [durability, durability]


@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_write_to_a_removed_file_is_not_acknowledged(tmp_path: Path, part: str, *, replaced: bool) -> None:
    """The write would be lost with the file."""
    path = tmp_path / "chats.db"
    store = SQLiteStore(path)
    await store.open()
    await plans.created(store, "chat")
    taken = Path(f"{path}{part}")
    shutil.move(taken, tmp_path / "elsewhere")
    if replaced:
        shutil.copy(tmp_path / "elsewhere", taken)
    rename = plans.plan(plans.move(Renamed(title="lost")))
    word = "replaced" if replaced else "deleted"
    for attempt in (lambda: store.change("chat", rename), lambda: store.create("new", plans.plan(plans.create()))):
        with pytest.raises(StoreError, match=word) as raised:
            await attempt()
        assert f"chats.db{part}" in raised.value.problem
    if not part:
        with pytest.raises(StoreError, match=word):
            await store.facts("chat")
    if not replaced:  # and if it comes back, nothing was lost
        shutil.move(tmp_path / "elsewhere", taken)
        assert (await store.change("chat", rename)).facts.version == 2
    await store.close()


async def test_restore_follows_the_guide(tmp_path: Path) -> None:
    """The old write-ahead log would be applied to the new file, and damage it."""
    path, copy, killed = tmp_path / "chats.db", tmp_path / "copy.db", tmp_path / "killed"
    store = SQLiteStore(path)
    await store.open()
    await plans.created(store, "chat")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    for number in range(50):
        await plans.created(store, f"later{number}")
    shutil.copytree(tmp_path, killed, ignore=shutil.ignore_patterns("copy.db"))  # as a kill leaves the three files
    await store.close()
    guide = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
    for part in re.findall(r"remove `chats\.db(-wal)` and `chats\.db(-shm)`", guide)[0]:
        (killed / f"chats.db{part}").unlink()
    shutil.copy(copy, killed / "chats.db")
    restored = SQLiteStore(killed / "chats.db")
    await restored.open()
    assert [chat_id for _, chat_id in await restored.chat_ids(after=0, limit=100)] == ["chat"]
    await restored.close()


# Chats that could not be handled


class _Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at


def _unreadable(problem: str = "bad") -> ChatUnreadable:
    return ChatUnreadable("messages.body", problem, chat_id="chat")


def _pause(skipped: SkippedChats, clock: _Clock) -> float:
    """Move the clock until the chat may be tried again; return the seconds."""
    start = clock.at
    while skipped.skips("chat", 3):
        clock.at += 0.5
    return clock.at - start


def test_retry_pause_doubles_up_to_a_minute() -> None:
    clock = _Clock()
    skipped = SkippedChats(clock.now)
    assert not skipped.skips("chat", 3)
    pauses = []
    for _ in range(9):
        skipped.note("claim_refused", "chat", _unreadable(), version=3)
        assert not skipped.skips("another", 3)
        pauses.append(_pause(skipped, clock))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    skipped.forget("chat")
    skipped.forget("never noted")
    skipped.note("claim_refused", "chat", _unreadable(), version=3)
    assert _pause(skipped, clock) == 1


def test_commit_ends_the_penalty() -> None:
    clock = _Clock()
    skipped = SkippedChats(clock.now)
    for _ in range(4):
        skipped.note("claim_refused", "chat", _unreadable(), version=3)
    assert skipped.skips("chat", 3)
    assert not skipped.skips("chat", 4)
    skipped.note("claim_refused", "chat", _unreadable(), version=4)
    assert not skipped.skips("chat", 5)
    clock.at += 1
    assert not skipped.skips("chat", 4)


def test_each_problem_is_logged_once_per_chat(caplog: pytest.LogCaptureFixture) -> None:
    skipped = SkippedChats(_Clock().now)

    def logged(error: Exception, chat_id: str = "chat") -> list[str]:
        caplog.clear()
        skipped.note("claim_refused", chat_id, error)
        assert all(record.levelno == logging.ERROR for record in caplog.records)
        assert all(chat_id in record.getMessage() for record in caplog.records)
        assert all("claim_refused" in record.getMessage() for record in caplog.records)
        assert all(str(error) in record.getMessage().replace("\\'", "'") for record in caplog.records)
        return [record.getMessage() for record in caplog.records]

    assert len(logged(_unreadable())) == 1
    assert logged(_unreadable()) == []
    assert len(logged(_unreadable("worse"))) == 1
    assert len(logged(OSError("full"))) == 1
    assert logged(OSError("full")) == []
    assert len(logged(_unreadable(), "another")) == 1
    skipped.forget("chat")
    assert len(logged(OSError("full"))) == 1


# What is deleted leaves no byte


def reshaped(path: Path, seed: int) -> None:
    """Write rows that grow and shrink, so that SQLite moves them between pages; no last row contains the word."""
    drawn = random.Random(seed)  # noqa: S311 - shapes pages, guards no secret
    ids = [f"chat-{number}" for number in range(200)]
    drawn.shuffle(ids)
    bodies = ["hunter2 " * drawn.randrange(1, 120) for _ in range(800)]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO receipts (chat, client_id, body) VALUES (99, ?, ?)", zip(ids, bodies, strict=False)
        )
        changes = [(body, drawn.choice(ids)) for body in bodies[200:]]
        connection.executemany("UPDATE receipts SET body = ? WHERE client_id = ?", changes)
        connection.execute("COMMIT")
        connection.execute("DELETE FROM receipts WHERE client_id >= 'chat-2'")
        connection.execute("UPDATE receipts SET body = 'kept'")


def size_of(path: Path) -> int:
    """Return the size of the database, the effect of its write-ahead log included."""
    with closing(sqlite3.connect(path)) as connection:
        pages, size = (connection.execute(f"PRAGMA page_{what}").fetchone()[0] for what in ("count", "size"))
    return int(pages * size)


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


@pytest.mark.parametrize("seed", range(8))
async def test_moved_rows_leave_no_byte(tmp_path: Path, seed: int) -> None:
    """`secure_delete` overwrites deleted rows, but not the copies that moves leave."""
    path = tmp_path / "chats.db"
    store, beside = SQLiteStore(path, durability="normal"), SQLiteStore(path, durability="normal")
    await store.open()
    await beside.open()
    try:
        reshaped(path, seed)
        assert await store.scrub()
        assert b"hunter2" not in raw(path)
        assert b"kept" in raw(path)
        assert not log_size(path)
        await plans.created(beside, "other")
        assert (await store.facts("other")).chat_id == "other"
    finally:
        await beside.close()
        await store.close()


async def test_large_database_is_not_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would block other writers; an operator does it at a quiet time."""
    path = tmp_path / "chats.db"
    store = SQLiteStore(path, durability="normal")
    await store.open()
    try:
        reshaped(path, 0)
        assert scrub.VACUUMED == 32 * 2**20, "as the docs say"
        monkeypatch.setattr(scrub, "VACUUMED", size_of(path) - 1)
        assert not await store.scrub()
        assert not log_size(path), "the log is emptied all the same"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert b"hunter2" not in raw(path)
        monkeypatch.setattr(scrub, "VACUUMED", size_of(path))
        assert await store.scrub()
    finally:
        await store.close()


@pytest.mark.parametrize("stays", [0, 1, 2])
async def test_scrub_waits_for_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: int) -> None:
    """The write-ahead log cannot be emptied during a read."""
    path, pauses = tmp_path / "chats.db", 0
    store = SQLiteStore(path, durability="normal")
    await store.open()
    try:
        reshaped(path, 0)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT body FROM profiles LIMIT 1").fetchone()

            async def pause(_: float) -> None:
                nonlocal pauses
                if pauses == stays:
                    reader.execute("COMMIT")
                pauses += 1

            monkeypatch.setattr(scrub, "anyio", SimpleNamespace(sleep=pause))
            monkeypatch.setattr(scrub, "_ATTEMPTS", 2)
            assert await store.scrub() is (stays == 0)
            assert bool(log_size(path)) is (stays > 0)
    finally:
        await store.close()


# Connections


class Attempts:
    """Fails a given number of times, and counts its calls."""

    def __init__(self, code: int, failures: float) -> None:
        self.code = code
        self.failures = failures
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self.count > self.failures:
            return "done"
        error = sqlite3.OperationalError("no")
        error.sqlite_errorcode = self.code
        raise error


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses, which end at once."""
    slept: list[float] = []
    start = time.monotonic()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: start + sum(slept))
    return slept


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_SNAPSHOT, sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_LOCKED]
)
def test_busy_error_is_retried(code: int, pauses: list[float]) -> None:
    attempts = Attempts(code, failures=12)
    assert retry_while_busy(attempts) == "done"
    assert attempts.count == 13
    assert len(pauses) == 12
    longest = [min(0.001 * 2**number, 0.1) for number in range(12)]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True)), "it backs off"


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_CORRUPT])
def test_other_error_is_not_retried(code: int, pauses: list[float]) -> None:
    attempts = Attempts(code, failures=1)
    with pytest.raises(sqlite3.OperationalError):
        retry_while_busy(attempts)
    assert (attempts.count, pauses) == (1, [])


def test_retries_end(pauses: list[float]) -> None:
    with pytest.raises(sqlite3.OperationalError):
        retry_while_busy(Attempts(sqlite3.SQLITE_BUSY, failures=float("inf")))
    assert connection.BUSY_TIMEOUT_S <= sum(pauses) < connection.BUSY_TIMEOUT_S + 1


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
    opened = await SQLiteConnection.open(str(tmp_path / "chats.db"), done.append)
    await opened.close()
    await opened.close()
    with pytest.raises(StoreError, match=r"chats\.db' is closed; nothing was written"):
        opened.post(done.append)
    with pytest.raises(StoreError, match=r"chats\.db' is closed; nothing was written"):
        await opened.run(done.append)
    assert len(done) == 1


async def test_cancelled_open_closes_what_it_opened(tmp_path: Path) -> None:
    """Python 3.13 and newer warn about unclosed databases, and warnings fail the test."""
    for turns in range(8):
        opening = asyncio.create_task(SQLiteConnection.open(str(tmp_path / "chats.db"), lambda _on: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()
    gc.collect()


async def test_close_finishes_before_a_cancelled_caller_continues(tmp_path: Path) -> None:
    """The last close tidies up, and the caller may copy or delete the file next."""
    path = tmp_path / "chats.db"
    opened = await SQLiteConnection.open(str(path), lambda on: on.execute("PRAGMA journal_mode = WAL"))
    await opened.run(lambda on: on.execute("CREATE TABLE one (two)"))
    assert path.with_name("chats.db-wal").exists()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await opened.close()
    assert not path.with_name("chats.db-wal").exists()
