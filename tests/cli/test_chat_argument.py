"""The chat and the store that were meant: by id, by its beginning, or as the last one; nothing is made by looking."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.served import served
from turnwise import ChatNotFound, Engine, FolderFiles, Settings, SettingsError, StoreError
from turnwise.cli.chat_argument import AmbiguousChat, attached, chosen_id, every_chat, on_chat
from turnwise.persistence.migrations import Migration, migrations
from turnwise.persistence.sqlite.migrate import migrate
from turnwise.persistence.sqlite.store import SQLiteStore


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


SEVERAL = (
    "z1",
    "z2",
    "z3",
    "z4",
    "z5",
    "z6",
    "abc1",
    "abc2",
    "abd",
    "ab",
    "x1",
    "x2",
    "x3",
    "x4",
    "x5",
    "x6",
    "x7",
    "x",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(tmp_path_factory.mktemp("store") / "chats.db", *SEVERAL)


@pytest.mark.parametrize(
    ("name", "chat_id"), [("abc1", "abc1"), ("abd", "abd"), ("ab", "ab"), ("x7", "x7"), ("x", "x"), ("last", "x")]
)
def test_a_chat_is_meant_by_its_id_or_by_enough_of_it(store: str, name: str, chat_id: str) -> None:
    assert meant(store, name) == chat_id


@pytest.mark.parametrize("name", ["abc1", "ab", "x"])
def test_where_the_whole_id_is_typed_nothing_is_looked_for_that_begins_with_it(
    store: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """On PostgreSQL all chats would be read, unless the collation of the database is `C`."""

    async def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("looked for")

    monkeypatch.setattr(SQLiteStore, "ids", refuse)
    assert meant(store, name) == name


@pytest.mark.parametrize("name", ["", "b", "abc12", "y"])
def test_what_no_chat_begins_with_is_not_found(store: str, name: str) -> None:
    with pytest.raises(ChatNotFound):
        meant(store, name)


def test_what_several_chats_begin_with_is_refused_with_their_names(store: str) -> None:
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


@pytest.mark.parametrize("who", ["ada", "operator"])
async def test_no_more_ids_are_asked_of_a_service_than_are_told(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Also where whoever asks may only list chats of its own."""
    monkeypatch.setenv("TURNWISE_TOKEN", f"{who}-token")
    async with served(Engine("sqlite://", model="demo")) as service, attached(service.url) as chats:
        for _ in range(8):
            await service.engine.create_chat(owner="ada")
        with pytest.raises(AmbiguousChat, match="more than 5 chats") as refused:
            await chosen_id(chats, "c")
    assert len(refused.value.chat_ids) == 6


def test_there_is_no_last_chat_of_an_empty_store(tmp_path: Path) -> None:
    with pytest.raises(ChatNotFound, match="last"):
        meant(filled(tmp_path / "chats.db"), "last")


def test_a_chat_that_cannot_be_read_is_meant_all_the_same(tmp_path: Path) -> None:
    ids = ("x", "x1", "x2", "x3", "x4", "x5", "x6")
    url = filled(tmp_path / "chats.db", *ids)
    with closing(sqlite3.connect(tmp_path / "chats.db")) as on, on:
        on.execute("UPDATE chats SET facts = 'broken' WHERE id = 'x'")
    assert meant(url, "x") == "x"
    assert meant(url, "x3") == "x3"


@pytest.mark.parametrize("kind", ["missing", "folder"])
async def test_a_store_that_is_no_file_is_refused_and_not_made(tmp_path: Path, kind: str) -> None:
    path = tmp_path if kind == "folder" else tmp_path / "missing.db"
    with pytest.raises(SettingsError, match="--store"):
        async with attached(f"sqlite:///{path}"):
            pass
    assert [found async for found in anyio.Path(tmp_path).iterdir()] == []


async def test_lookup_does_not_migrate_an_older_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of the older version could not start again."""
    path = tmp_path / "chats.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as on:
        migrate(on, str(path), migrations("sqlite"))
        newer = (*migrations("sqlite"), Migration("9999_next", "CREATE TABLE more (x);"))
        monkeypatch.setattr("turnwise.persistence.sqlite.store.migrations", lambda _: newer)
        before = path.read_bytes()
        with pytest.raises(StoreError, match="an older version"):
            async with attached(f"sqlite:///{path}"):
                pass
    assert path.read_bytes() == before


def test_every_chat_is_told_newest_first_over_any_number_of_pages(store: str) -> None:
    async def told() -> list[Any]:
        async with attached(store) as engine:
            return [chat.id async for chat in every_chat(engine)]

    assert sorted(anyio.run(told)) == sorted(SEVERAL)


def test_a_name_is_looked_up_in_the_engine_that_is_open(store: str) -> None:
    async def looked_up() -> str:
        async with attached(store) as engine:
            assert isinstance(engine, Engine)
            assert not engine.settings.run_worker
            return await chosen_id(engine, "abd")

    assert anyio.run(looked_up) == "abd"


def test_as_many_chats_as_are_shown_are_all_named() -> None:
    assert (
        str(AmbiguousChat("w", ["w1", "w2", "w3", "w4", "w5"]))
        == "'w' begins the ids of 5 chats: w1, w2, w3, w4, w5; type more"
    )


async def test_a_folder_that_holds_the_files_of_another_store_is_refused_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    for name in ("mine", "others"):
        files, settings = FolderFiles(tmp_path / name), Settings(run_worker=False)
        async with Engine(f"sqlite:///{tmp_path}/{name}.db", model="demo", files=files, settings=settings) as engine:
            chat = await engine.create_chat()
            await engine.put_file(chat.id, b"a page" * 1000, media_type="image/png")
    with pytest.raises(SettingsError, match="--file-folder"):
        async with attached(f"sqlite:///{tmp_path}/mine.db", tmp_path / "others"):
            raise AssertionError
    async with attached(f"sqlite:///{tmp_path}/mine.db", tmp_path / "mine") as chats:
        assert await chats.chat_ids()


@pytest.mark.parametrize(
    ("count", "told"), [(5, "5 chats: a, b, c, d, e;"), (6, "more than 5 chats: a, b, c, d, e, …;")]
)
def test_of_many_chats_that_begin_alike_five_are_named(count: int, told: str) -> None:
    error = AmbiguousChat("c", [*"abcdefgh"][:count])
    assert str(error) == f"'c' begins the ids of {told} type more"
    assert (error.prefix, error.chat_ids) == ("c", [*"abcdefgh"][:count])
