"""What SQLite is asked to do with its files: how safely it writes and deletes, what it reads, and if they are there."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from turnwise.persistence.conformance import plans
from turnwise.persistence.sqlite.connection import Connection, Durability, EagerConnection
from turnwise.persistence.sqlite.database_file import DatabaseFile
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import ChatUnreadable, StoreError
from turnwise.states.triggers import Renamed

pytestmark = pytest.mark.anyio

SPELLED = {1: "normal", 2: "full"}


def test_what_is_deleted_is_overwritten_however_sqlite_was_built(tmp_path: Path) -> None:
    """Some builds of SQLite do so of themselves, others leave what was erased in the file."""
    with closing(sqlite3.connect(tmp_path / "chats.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        SQLiteStore(tmp_path / "chats.db").prepare(connection)
        assert connection.execute("PRAGMA secure_delete").fetchone() == (1,)


def test_the_write_ahead_log_is_moved_to_the_database_every_sixteen_megabytes(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "chats.db", isolation_level=None)) as connection:
        SQLiteStore(tmp_path / "chats.db").prepare(connection)
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (4000,)


@pytest.mark.parametrize("durability", ["full", "normal"])
async def test_every_connection_writes_as_durably_as_was_asked_for(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take what was acknowledged, unless the application has chosen that."""
    found: list[str] = []
    opened = Connection.open

    async def spied(path: str, prepare: Any) -> Connection:
        connection = await opened(path, prepare)
        found.append(SPELLED[(await connection.run(lambda on: on.execute("PRAGMA synchronous").fetchone()))[0]])
        return connection

    monkeypatch.setattr(Connection, "open", spied)
    store = SQLiteStore(tmp_path / "chats.db", durability=durability)
    await store.open()
    await store.close()
    assert found == [durability, durability]


async def test_a_read_that_failed_leaves_later_reads_in_the_present(tmp_path: Path) -> None:
    """Whoever keeps the error, and with it every frame of the reading, holds no snapshot open."""
    path = tmp_path / "chats.db"
    store = SQLiteStore(path)
    await store.open()
    for chat_id in ("broken", "sound"):
        await plans.created(store, chat_id, *plans.turn("one", "1"), *plans.turn("two", "2"))
    with closing(sqlite3.connect(path)) as on, on:
        on.execute("UPDATE messages SET body = '{' WHERE chat_id = 'broken' AND position = 2")
    kept: list[ChatUnreadable] = []
    for question in (store.history, store.prompt, lambda chat_id: store.events(chat_id, after=0, limit=99)):
        try:
            await question("broken")
        except ChatUnreadable as error:
            kept.append(error)
    assert [error.column for error in kept] == ["messages.body"] * 3
    await store.change("sound", plans.plan(plans.send("three")))
    assert [message.text for message in await store.history("sound")][-1] == "three"
    assert (await store.facts("sound")).state == "pending"
    await store.close()


def test_a_statement_that_nobody_reads_to_its_end_holds_nothing(tmp_path: Path) -> None:
    """Whatever is written on such a connection in time to come: a cursor that is kept keeps no snapshot."""
    path = tmp_path / "chats.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE words (word)")
        writer.executemany("INSERT INTO words VALUES (?)", [("one",), ("two",)])
        with closing(sqlite3.connect(path, isolation_level=None, factory=EagerConnection)) as reader:
            reader.execute("BEGIN")
            kept = reader.execute("SELECT word FROM words")
            assert next(kept) == ("one",)
            reader.execute("ROLLBACK")
            writer.execute("INSERT INTO words VALUES ('three')")
            assert reader.execute("SELECT count(*) FROM words").fetchone() == (3,)
            assert kept.fetchall() == [("two",)]


@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_what_is_written_to_a_file_that_was_taken_away_is_not_acknowledged(
    tmp_path: Path, part: str, *, replaced: bool
) -> None:
    """It would be lost: nobody finds that file again."""
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


@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_goes_before_anything_was_asked_of_it_is_noticed(
    tmp_path: Path, part: str, *, replaced: bool
) -> None:
    path = tmp_path / "chats.db"
    store = SQLiteStore(path)
    await store.open()
    taken = path.with_name(f"{path.name}{part}")
    shutil.move(taken, tmp_path / "elsewhere")
    if replaced:
        shutil.copy(tmp_path / "elsewhere", taken)
    with pytest.raises(StoreError, match="replaced" if replaced else "deleted"):
        await plans.created(store, "chat")
    await store.close()


async def test_a_file_that_goes_while_it_is_written_to_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look comes after the commit, before the acknowledgement: nobody knows then what is kept."""
    path, check = tmp_path / "chats.db", DatabaseFile.check

    def taken(file: DatabaseFile, *, committed: bool = False) -> None:
        if committed:
            path.rename(tmp_path / "elsewhere")
        check(file, committed=committed)

    store = SQLiteStore(path)
    await store.open()
    await plans.created(store, "chat")
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseFile, "check", taken)
        with pytest.raises(StoreError, match=r"deleted.*it is not known whether") as doubt:
            await store.change("chat", plans.plan(plans.move(Renamed(title="kept"))))
    assert doubt.value.written == "unknown"
    (tmp_path / "elsewhere").rename(path)
    await store.close()
    await store.open()
    assert (await store.facts("chat")).profile.title == "kept"
    await store.close()


async def test_a_copy_is_put_back_as_the_guide_says(tmp_path: Path) -> None:
    """What is in the write-ahead log of the file before would be written into it, and damage it."""
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
