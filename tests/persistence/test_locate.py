"""A store's URL says which store; a wrong one is answered with a right one."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from turnwise.persistence.locate import store_from_url
from turnwise.persistence.postgres import PostgresStore
from turnwise.persistence.sqlite import SQLiteStore
from turnwise.states.errors import SettingsError, StoreError


def located(url: str) -> SQLiteStore:
    store = store_from_url(url, durability="full", now=lambda: datetime.now(UTC))
    assert isinstance(store, SQLiteStore)
    return store


async def test_three_slashes_name_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = located("sqlite:///chats.db")
    await store.open()
    await store.close()
    assert (tmp_path / "chats.db").is_file()


async def test_four_slashes_name_a_path_from_the_root(tmp_path: Path) -> None:
    store = located(f"sqlite:///{tmp_path / 'chats.db'}")
    await store.open()
    await store.close()
    assert (tmp_path / "chats.db").is_file()


async def test_no_path_is_a_database_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = located("sqlite://")
    await store.open()
    await store.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["chats.db", "mysql://host/db", "sqlite:chats.db", "sqlite://chats.db", "sqlite:///", ""]
)
def test_what_is_no_url_of_a_store_is_answered_with_one(url: str) -> None:
    with pytest.raises(SettingsError, match=r"sqlite:///chats\.db") as caught:
        located(url)
    assert caught.value.field == "store"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgresql_is_a_store(scheme: str) -> None:
    store = store_from_url(f"{scheme}://user@host/db", durability="full", now=None)
    assert isinstance(store, PostgresStore)


def test_without_its_extra_postgresql_is_answered_with_the_extras_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("turnwise.persistence.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("turnwise.persistence.postgres")
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(SettingsError, match=r"pip install 'turnwise\[postgres\]'") as caught:
        store_from_url("postgresql://host/db", durability="full", now=None)
    assert caught.value.field == "store"


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no folder") as caught:
        await located(f"sqlite:///{tmp_path}/missing/chats.db").open()
    assert f"{tmp_path}/missing" in caught.value.problem
