"""What is deleted leaves no byte in a file that is not large; of a larger one it is said that it may."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.sql_by_hand import raw
from turnwise.persistence.conformance import plans
from turnwise.persistence.sqlite import scrub
from turnwise.persistence.sqlite.store import SQLiteStore


def reshaped(path: Path, seed: int) -> None:
    """Write rows that grow and shrink, so that SQLite moves them from page to page, then none that says the word."""
    drawn = random.Random(seed)  # noqa: S311 - shapes pages, guards no secret
    ids = [f"chat-{number}" for number in range(200)]
    drawn.shuffle(ids)
    bodies = ["hunter2 " * drawn.randrange(1, 120) for _ in range(800)]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO profiles (chat_id, body) VALUES (?, ?)", zip(ids, bodies, strict=False))
        changes = [(body, drawn.choice(ids)) for body in bodies[200:]]
        connection.executemany("UPDATE profiles SET body = ? WHERE chat_id = ?", changes)
        connection.execute("COMMIT")
        connection.execute("DELETE FROM profiles WHERE chat_id >= 'chat-2'")
        connection.execute("UPDATE profiles SET body = 'kept'")


def size_of(path: Path) -> int:
    """Return how large the database is, what its write-ahead log adds included."""
    with closing(sqlite3.connect(path)) as connection:
        pages, size = (connection.execute(f"PRAGMA page_{what}").fetchone()[0] for what in ("count", "size"))
    return int(pages * size)


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


@pytest.mark.parametrize("seed", range(8))
async def test_moved_rows_leave_no_byte(tmp_path: Path, seed: int) -> None:
    """`secure_delete` overwrites a row that is deleted, but not a copy of it that a page was left with."""
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
    """It would keep other writers waiting; an operator does it at a quiet time."""
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
    """The write-ahead log cannot be emptied while somebody reads from it."""
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
