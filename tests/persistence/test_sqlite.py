"""The SQLite store where its own nature shows: shared files, killed processes, full disks, indexes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.migrations import migrations
from turnwise.persistence.protocol import Committed, DuplicateReceipt, Expiry, Pruned
from turnwise.persistence.sqlite import pruning, queries, transactions, write_rows
from turnwise.persistence.sqlite.group_commit import GroupCommit
from turnwise.persistence.sqlite.migrate import migrate
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import SettingsError, StoreError
from turnwise.states.names import ChatState
from turnwise.states.triggers import Renamed
from turnwise.testing import ManualClock

WRITE_FOR_EVER = """
import anyio, sys
from turnwise.persistence.conformance import plans
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.triggers import Renamed

async def main(path, count):
    store = SQLiteStore(path)
    await store.open()
    while count:
        committed = await store.change("chat", plans.plan(plans.move(Renamed(title=str(count)))))
        print(committed.facts.version, flush=True)
        count -= 1
    await store.close()

anyio.run(main, sys.argv[1], int(sys.argv[2]))
"""

FORK = """
import anyio, asyncio, gc, multiprocessing, os, sys
from turnwise.persistence.conformance import plans
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import SettingsError, StoreError
from turnwise.states.triggers import Renamed

RENAME = plans.plan(plans.move(Renamed(title="other")))

async def attempt(what, work):
    try:
        await work
        print(f"{what}: opened")
    except StoreError as error:
        print(f"{what}: {error}".replace("another.db", "chats.db"))

async def use(store, path, beside):
    with anyio.fail_after(60):
        await attempt("read", store.facts("chat"))
        await attempt("change", store.change("chat", RENAME))
        await attempt("open it", store.open())
        await attempt("open", SQLiteStore(path).open())
        os.symlink(path, path.replace("chats.db", "another.db"))
        await attempt("open by another name", SQLiteStore(path.replace("chats.db", "another.db")).open())
        await store.close()
        print("closed")
        for what, other in ("another file", SQLiteStore(beside)), ("in memory", SQLiteStore(None)):
            await attempt(what, other.open())
            await other.close()
        inherited.clear()
        del store
        gc.collect()
        await attempt("open again", SQLiteStore(path).open())

inherited = []

def forked(*paths):
    asyncio.run(use(inherited[0], *paths))

async def main(path, beside):
    async with anyio.create_task_group():
        memory, store = SQLiteStore(None), SQLiteStore(path)
        await memory.open()
        await store.open()
        inherited.append(store)
        await plans.created(store, "chat")
        child = multiprocessing.get_context("fork").Process(target=forked, args=(path, beside))
        child.start()
        await anyio.to_thread.run_sync(child.join)
        print("the first process:", (await store.change("chat", RENAME)).facts.version)
        await store.close()
        await memory.close()

anyio.run(main, *sys.argv[1:])
"""

FORGET_TO_CLOSE = """
import anyio, gc, sys
from turnwise.persistence.sqlite.store import SQLiteStore

store = SQLiteStore(sys.argv[1])
anyio.run(store.open)
if sys.argv[2] == "lost":
    del store
    gc.collect()
print("open")
"""


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("path", [b"chats.db", 5, "", "a\0b", Path("a\0b")]),
        ("durability", ["often", "off", "extra", "FULL", None]),
        ("now", [5]),
        ("sync", ["full"]),
    ],
)
def test_a_store_refuses_what_it_cannot_keep_to(argument: str, wrong: list[object]) -> None:
    """SQLite takes other words than `full` and `normal`, too, and means less by them, or what it likes."""
    for value in wrong:
        with pytest.raises(SettingsError) as refused:
            SQLiteStore(**{"path": None} | {argument: value})
        assert refused.value.field == argument


async def test_a_lease_runs_no_longer_than_it_was_given_for_when_the_clock_is_set_back(tmp_path: Path) -> None:
    """Or the chats of a worker that froze before would wait for as long as the clock was set back."""
    clock = ManualClock()
    store = SQLiteStore(tmp_path / "chats.db", now=clock.now)
    await store.open()
    try:
        await plans.created(store, "frozen", plans.send("hello"), plans.claim())
        expiry = await store.lease_expiry("frozen")
        assert expiry is not None
        lasts = expiry.expires - expiry.now
        clock.step(-3600)
        await store.renew("another worker", 10)
        assert await store.lease_expiry("frozen") == Expiry(clock.now() + lasts, clock.now())
        clock.step(lasts.total_seconds() - 1)
        assert (await store.overdue(limit=10)).leases == ()
        clock.step(1)
        assert [chat_id for chat_id, _ in (await store.overdue(limit=10)).leases] == ["frozen"]
    finally:
        await store.close()


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


async def test_two_stores_on_one_file_see_each_others_changes(path: Path) -> None:
    """What a store remembers of a chat is worth nothing once another process has changed it."""
    async with opened(path) as one, opened(path) as other:
        await plans.created(one, "chat")
        for _ in range(5):
            await one.change("chat", rename("one"))
            committed = await other.change("chat", rename("other"))
        assert committed.facts.version == 11
        assert await one.facts("chat") == committed.facts
        assert verify_records(await one.audit("chat")).ok


async def test_two_stores_writing_at_once_are_never_told_of_locks(path: Path) -> None:
    async with opened(path) as one, opened(path) as other, anyio.create_task_group() as tasks:
        await plans.created(one, "chat")
        for number in range(40):
            tasks.start_soon((one, other)[number % 2].change, "chat", rename(str(number)))
    async with opened(path) as store:
        assert (await store.facts("chat")).version == 41
        assert verify_records(await store.audit("chat")).ok


async def test_processes_writing_at_once_are_never_told_of_locks(path: Path) -> None:
    async with opened(path) as store:
        await plans.created(store, "chat")
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(anyio.run_process, [sys.executable, "-c", WRITE_FOR_EVER, str(path), "100"])
            for number in range(100):
                await store.change("chat", rename(str(number)))
        assert (await store.facts("chat")).version == 301
        assert verify_records(await store.audit("chat")).ok


async def test_a_killed_process_leaves_what_it_acknowledged(path: Path) -> None:
    async with opened(path) as store:
        await plans.created(store, "chat")
    for _ in range(3):
        async with await anyio.open_process([sys.executable, "-c", WRITE_FOR_EVER, str(path), "-1"]) as process:
            assert process.stdout is not None
            acknowledged = b""
            while acknowledged.count(b"\n") < 20:
                acknowledged += await process.stdout.receive()
            process.kill()
        last = int(acknowledged[: acknowledged.rindex(b"\n")].split()[-1])
        async with opened(path) as store:
            facts = await store.facts("chat")
            records = await store.audit("chat")
            assert facts.version >= last
            assert [record.version for record in records] == list(range(1, facts.version + 1))
            assert verify_records(records).ok
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_change_waits_for_a_stranger_that_holds_the_file(path: Path) -> None:
    async with opened(path) as store:
        await plans.created(store, "chat")
        with closing(sqlite3.connect(path, isolation_level=None)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            change = asyncio.create_task(store.change("chat", rename("patient")))
            assert (await store.facts("chat")).version == 1
            assert not change.done()
            stranger.execute("ROLLBACK")
        assert (await change).facts.version == 2


async def test_only_other_connections_commits_are_noticed(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        seen = await store._foreign_commits()
        await plans.created(store, "mine")
        assert await store._foreign_commits() == seen
        await plans.created(other, "theirs")
        assert await store._foreign_commits() != seen


async def test_a_watcher_is_woken_by_another_process(path: Path) -> None:
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


async def test_facts_of_a_commit_that_failed_are_not_remembered(path: Path) -> None:
    def orphan(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA defer_foreign_keys = ON")
        connection.execute("INSERT INTO events (chat_id, seq, kind, body) VALUES ('nobody', 1, 'status', '{}')")

    async with opened(path) as store, opened(path) as other:
        await plans.created(store, "chat")
        failed, also_failed = await asyncio.gather(
            store.change("chat", rename("lost")), store._write(orphan), return_exceptions=True
        )
        assert isinstance(failed, StoreError)
        assert isinstance(also_failed, StoreError)
        theirs = await other.change("chat", rename("theirs"))
        assert (await store.change("chat", plans.idle)).facts == theirs.facts


async def test_a_batch_that_is_done_again_does_not_believe_what_it_wrote_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the clock stands still, another process may have left the same row, but for the hash of its record."""
    clock, undo = ManualClock(), GroupCommit._undo

    async def send(client_id: str, text: str) -> None:
        async with opened(path, now=clock.now) as other:
            await other.change("chat", plans.plan(plans.send(text, client_id=client_id)))

    def undo_and_be_late(connection: sqlite3.Connection) -> None:
        undo(connection)
        if not late:
            late.append(threading.Thread(target=anyio.run, args=(send, "theirs", "kept")))
            late[0].start()
            late[0].join()

    late: list[threading.Thread] = []
    async with opened(path, now=clock.now) as store:
        await plans.created(store, "chat", plans.send("first"), plans.claim(), plans.start())
        await plans.created(store, "other", plans.send("hi", client_id="once"))
    monkeypatch.setattr(GroupCommit, "_undo", staticmethod(undo_and_be_late))
    async with opened(path, now=clock.now) as store:
        mine, doubled = await asyncio.gather(
            store.change("chat", plans.plan(plans.send("mine"))),
            store.change("other", plans.plan(plans.send("again", client_id="once"))),
            return_exceptions=True,
        )
        assert isinstance(doubled, DuplicateReceipt)
        assert isinstance(mine, Committed)
        assert [queued.text for queued in mine.facts.queue] == ["kept", "mine"]
        assert await store.facts("chat") == mine.facts


@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
@pytest.mark.parametrize("name", ["chats.db", "link.db"])
async def test_a_file_that_is_deleted_while_it_is_open_takes_no_commit_by_whatever_name(
    path: Path, name: str, part: str
) -> None:
    """SQLite keeps its log beside the file itself, not beside a link to it."""
    path.with_name("link.db").symlink_to(path)
    async with opened(path.with_name(name)) as store:
        await plans.created(store, "chat")
        path.with_name(f"chats.db{part}").unlink()
        deleted = f"chats.db{part}" if part else name
        with pytest.raises(StoreError, match=f"its file '{deleted}' was deleted while it was open"):
            await store.change("chat", rename("lost"))


async def test_a_full_disk_is_named_and_survived(path: Path) -> None:
    async with opened(path) as store:
        await plans.created(store, "chat")
        await store._opened().writer.run(lambda on: on.execute("PRAGMA max_page_count = 1").fetchone())
        with pytest.raises(StoreError, match="disk is full"):
            await store.change("chat", plans.plan(plans.send("a long story " * 10_000)))
        await store._opened().writer.run(lambda on: on.execute("PRAGMA max_page_count = 1000000").fetchone())
        assert (await store.change("chat", plans.plan(plans.send("a long story " * 10_000)))).facts.version == 2


@pytest.mark.parametrize("migrates", [True, False])
@pytest.mark.parametrize(("folder", "why"), [("missing", "there is no folder"), ("x" * 300, "File name too long")])
async def test_a_folder_that_cannot_be_looked_at_is_told_like_one_that_is_not_there(
    tmp_path: Path, folder: str, why: str, *, migrates: bool
) -> None:
    """So is one below a folder that this user may not search."""
    with pytest.raises(StoreError, match=why):
        await SQLiteStore(tmp_path / folder / "chats.db", migrates=migrates).open()


async def test_a_read_only_file_is_named(path: Path) -> None:
    async with opened(path) as store:
        await store._opened().writer.run(lambda on: on.execute("PRAGMA query_only = ON"))
        with pytest.raises(StoreError, match="read-only"):
            await plans.created(store, "chat")


async def test_a_body_that_something_else_wrote_is_a_store_error(path: Path) -> None:
    async with opened(path) as store:
        await plans.created(store, "chat", *plans.turn("hello", "hi"))
        with closing(sqlite3.connect(path)) as stranger, stranger:
            stranger.execute("UPDATE messages SET body = '{}' WHERE position = 1")
            stranger.execute("UPDATE chats SET facts = '{\"turn\": 7}'")
            stranger.execute("UPDATE audit SET body = '[]'")
        for call in (store.history("chat"), store.facts("chat"), store.audit("chat")):
            with pytest.raises(StoreError, match="cannot be read"):
                await call


async def test_a_message_of_a_newer_format_is_refused(path: Path) -> None:
    async with opened(path) as store:
        await plans.created(store, "chat", plans.send("hello"))
        with closing(sqlite3.connect(path)) as stranger, stranger:
            stranger.execute("UPDATE messages SET format = 2")
        with pytest.raises(StoreError, match="format 2"):
            await store.history("chat")


async def test_a_store_that_was_never_opened_says_so() -> None:
    with pytest.raises(StoreError, match="not open"):
        await SQLiteStore(None).facts("chat")


async def test_many_stores_in_memory_are_strangers() -> None:
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(opened(None)) for _ in range(2)]
        await plans.created(one, "chat")
        assert await other.chats(owner=None, state=None, limit=10, after=None) == []


async def test_a_forked_process_neither_uses_a_store_that_was_open_nor_opens_its_file_again(path: Path) -> None:
    """SQLite's locks are not inherited, and it does not know: commits that were acknowledged would be lost."""
    beside = path.with_name("beside.db")
    with anyio.fail_after(120):
        done = await anyio.run_process([sys.executable, "-W", "ignore", "-c", FORK, str(path), str(beside)])
    refused = f"the store {str(path)!r}: this process was forked from one that has it open"
    assert [line.partition(": SQLite")[0] for line in done.stdout.decode().splitlines()] == [
        *(f"{what}: {refused}" for what in ("read", "change", "open it", "open", "open by another name")),
        "closed",
        "another file: opened",
        "in memory: opened",
        f"open again: {refused}",
        "the first process: 2",
    ]


@pytest.mark.parametrize("warnings", ["ignore", "error"])
@pytest.mark.parametrize("store", ["kept", "lost"])
async def test_a_forgotten_close_does_not_keep_the_interpreter_from_exiting(
    path: Path, warnings: str, store: str
) -> None:
    with anyio.fail_after(120):
        done = await anyio.run_process([sys.executable, "-W", warnings, "-c", FORGET_TO_CLOSE, str(path), store])
    assert done.stdout == b"open\n"


@pytest.mark.parametrize("facts", ["'torn'", f"""replace(facts, '"number":1', '"number":{2**63 - 1}')"""])
async def test_a_chat_that_cannot_be_read_keeps_no_other_from_being_pruned(
    path: Path, caplog: pytest.LogCaptureFixture, facts: str
) -> None:
    async with opened(path) as store:
        for chat_id in ("a", "b"):
            await plans.created(store, chat_id, plans.send("hello"), plans.claim(), plans.start())
            await store.journal(chat_id, 1, ChatState.streaming, [part("hi")])
            await store.change(chat_id, plans.plan(plans.reply("hi")))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE chats SET facts = {facts} WHERE id = 'a'")  # noqa: S608 - ours
        assert await store.prune(keep=0, after="", limit=10) == Pruned(1, None)
        assert [len(await store.shown(chat_id, 1, 1)) for chat_id in ("a", "b")] == [1, 0]
    assert "prune_refused chat_id=a" in caplog.text


@pytest.mark.parametrize(
    "question",
    [
        transactions._SQL["standing"],
        transactions._SQL["pending"],
        transactions._SQL["unsettled"],
        queries._STRAYS,
        queries._DEADLINES,
        pruning._SQL["next_chat"],
        pruning._SQL["over"],
        "SELECT chat_id, token FROM leases WHERE expires <= ? ORDER BY expires LIMIT ?",
        queries._SQL["parts"],
    ],
)
def test_what_is_asked_often_is_answered_from_an_index(question: str) -> None:
    """No question of a worker's loop may cost more as the store fills."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, ":memory:", migrations("sqlite"))
        rows = connection.execute(f"EXPLAIN QUERY PLAN {question}", [None] * question.count("?")).fetchall()
    steps = [detail for *_, detail in rows if "json_each" not in detail]  # an array of one row, or of a parameter
    assert all("USING" in step for step in steps if step.startswith(("SCAN", "SEARCH"))), steps
    assert not any(step.startswith("SCAN") and "chats_stray" not in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps


@pytest.mark.parametrize(
    "statement",
    [
        write_rows._UPDATE_AS_FOUND,
        *(sql for name, sql in write_rows._SQL.items() if name != "as_found"),
    ],
)
def test_a_commit_makes_no_table_of_its_own(statement: str) -> None:
    """A list of three words or more in the condition of an index would be made into one, for each row."""
    names = dict.fromkeys(re.findall(r":(\w+)", statement))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, ":memory:", migrations("sqlite"))
        steps = connection.execute(f"EXPLAIN {statement}", names or [None] * statement.count("?")).fetchall()
    assert not [step for _, step, *_ in steps if step == "OpenEphemeral"]


async def test_a_cursor_is_freed_while_its_connection_waits_for_whoever_frees_it(path: Path) -> None:
    """A collection of garbage frees what other connections left, in whatever thread it happens."""
    begun, left = threading.Event(), []

    def leave(connection: sqlite3.Connection) -> None:
        cursor = sqlite3.Cursor(connection)
        left.append(cursor.execute("SELECT 1 UNION SELECT 2"))

    def free(_: sqlite3.Connection) -> None:
        begun.wait()
        time.sleep(0.1)  # meanwhile the other one has begun to wait
        left.clear()

    async with opened(path) as holder, opened(path) as waiting, anyio.create_task_group() as tasks:
        await plans.created(holder, "chat", plans.send("hello"))
        await waiting._opened().writer.do(leave)
        tasks.start_soon(holder._opened().group_commit.submit, free)
        await anyio.sleep(0.05)
        begun.set()
        committed = await waiting.change("chat", rename("other"))
        assert committed.facts.profile.title == "other"
