"""The chat and the store that were meant: by id, by its beginning, or as the last one; nothing is made by looking."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from turnwise import ChatNotFound, Engine, Settings, SettingsError, StoreError
from turnwise.cli.chat_argument import AmbiguousChat, attached, on_chat


def filled(path: Path, *chat_ids: str) -> str:
    """Make a store with those chats, oldest first, and return its URL."""
    url = f"sqlite:///{path}"

    async def fill() -> None:
        async with Engine(url, model="demo", settings=Settings(run_worker=False)) as engine:
            for _ in chat_ids:
                await engine.create_chat()

    anyio.run(fill)
    with closing(sqlite3.connect(path)) as on, on:
        tables = [name for (name,) in on.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: [row[1] for row in on.execute(f"PRAGMA table_info({name})")] for name in tables}
        on.execute("PRAGMA foreign_keys = OFF")
        made = [one for (one,) in on.execute("SELECT id FROM chats ORDER BY rowid")]
        for old, new in zip(made, chat_ids, strict=True):
            for table in tables:
                for column in ("id",) if table == "chats" else ("chat_id",):
                    if column in columns[table]:
                        on.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, old))  # noqa: S608 - of our own schema
    return url


def meant(url: str, name: str) -> str:
    async def same(_engine: Engine, chat_id: str) -> str:
        return chat_id

    return on_chat(url, name, same)


SEVERAL = (*(f"z{n}" for n in range(1, 7)), "abc1", "abc2", "abd", "ab", *(f"x{n}" for n in range(1, 8)), "x")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(tmp_path_factory.mktemp("store") / "chats.db", *SEVERAL)


def test_chat_is_found_by_id_or_unique_prefix(store: str) -> None:
    for name, chat_id in {"abc1": "abc1", "abd": "abd", "ab": "ab", "z6": "z6", "x": "x", "last": "x"}.items():
        assert meant(store, name) == chat_id
    for name in ("", "b", "abc12", "y"):
        with pytest.raises(ChatNotFound):
            meant(store, name)


def test_ambiguous_prefix_names_the_chats(store: str) -> None:
    with pytest.raises(AmbiguousChat, match="2 chats") as refused:
        meant(store, "abc")
    assert sorted(refused.value.chat_ids) == ["abc1", "abc2"]
    assert refused.value.prefix == "abc"
    with pytest.raises(AmbiguousChat, match="4 chats"):
        meant(store, "a")
    with pytest.raises(AmbiguousChat, match="more than 5 chats") as refused:
        meant(store, "z")
    assert str(refused.value).count("z") == 6
    assert len(refused.value.chat_ids) == 6
    assert ", …;" in str(refused.value)


def test_empty_store_has_no_last_chat(tmp_path: Path) -> None:
    with pytest.raises(ChatNotFound, match="last"):
        meant(filled(tmp_path / "chats.db"), "last")


def test_unreadable_chat_is_found_by_prefix(tmp_path: Path) -> None:
    url = filled(tmp_path / "chats.db", "x", "x1", "x2", "x3", "x4", "x5", "x6")
    with closing(sqlite3.connect(tmp_path / "chats.db")) as on, on:
        on.execute("UPDATE chats SET facts = 'broken' WHERE id = 'x'")
    assert [meant(url, name) for name in ("x", "x3")] == ["x", "x3"]


async def test_reading_opens_no_worker_and_creates_no_store(tmp_path: Path) -> None:
    there, empty = f"sqlite:///{tmp_path}/there.db", f"sqlite:///{tmp_path}/empty.db"
    (tmp_path / "empty.db").touch()
    async with Engine(there, model="demo"):
        pass
    async with attached(there) as engine:
        assert not engine.settings.run_worker
    before = sorted([path.name async for path in anyio.Path(tmp_path).iterdir()])
    for store, problem in (
        ("sqlite:///", "names no file"),
        (f"sqlite:///{tmp_path}/missing.db", "there is no file"),
        (f"sqlite:///{tmp_path}", "--store"),
        (empty, "there is no store in"),
        ("sqlite://", "there is no store in"),
    ):
        with pytest.raises((SettingsError, StoreError), match=problem):
            async with attached(store):
                pass
    assert sorted([path.name async for path in anyio.Path(tmp_path).iterdir()]) == before
