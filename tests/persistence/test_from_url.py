"""A store's URL says which store; a wrong one is answered with a right one."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest

from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.sqlite.connection import Durability
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import SettingsError, StoreError
from turnwise.testing import ManualClock


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
    "url",
    ["chats.db", "mysql://host/db", "sqlite", "sqlite:chats.db", "sqlite://chats.db", "sqlite:///", "sqlite:////", ""],
)
def test_what_is_no_url_of_a_store_is_answered_with_one(url: str) -> None:
    with pytest.raises(SettingsError, match=r"sqlite:///chats\.db") as caught:
        located(url)
    assert caught.value.field == "store"


def test_an_option_is_not_taken_for_a_part_of_the_files_name() -> None:
    """Or who writes it would look at an empty store, and find no chat of the one that was meant."""
    with pytest.raises(SettingsError, match=r"takes no options: write 'sqlite:///chats\.db'") as caught:
        located("sqlite:///chats.db?mode=ro")
    assert caught.value.field == "store"


@pytest.mark.parametrize("path", [None, "chats.db"])
@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1)])
async def test_a_store_is_as_durable_as_was_asked_for_and_keeps_the_time_that_it_was_given(
    tmp_path: Path, path: str | None, durability: Durability, synchronous: int
) -> None:
    clock = ManualClock()
    url = "sqlite://" if path is None else f"sqlite:///{tmp_path / path}"
    store = store_from_url(url, durability=durability, now=clock.now)
    assert isinstance(store, SQLiteStore)
    await store.open()
    found = await store._opened().writer.run(lambda on: on.execute("PRAGMA synchronous").fetchone())
    assert found == (synchronous,)
    assert (await plans.created(store, "chat")).at == clock.now()
    await store.close()


async def test_a_store_on_postgresql_keeps_the_time_that_it_was_given(postgres_url: str) -> None:
    clock = ManualClock()
    store = store_from_url(postgres_url, durability="full", now=clock.now)
    await store.open()
    assert (await plans.created(store, "chat")).at == clock.now()
    await store.close()


def test_any_other_module_that_is_missing_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the extra must not be told to install it."""
    monkeypatch.delattr("turnwise.persistence.postgres")
    monkeypatch.setitem(sys.modules, "turnwise.persistence.postgres.store", None)
    with pytest.raises(ModuleNotFoundError, match=r"postgres\.store"):
        store_from_url("postgresql://host/db", durability="full", now=None)


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
    assert caught.value.field == "turnwise.persistence.postgres"


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no folder") as caught:
        await located(f"sqlite:///{tmp_path}/missing/chats.db").open()
    assert f"{tmp_path}/missing" in caught.value.problem


SECRETS = {
    "plain": "postgresql://jane:{}@127.0.0.1:1/db",
    "no store's scheme": "postgers://jane:{}@127.0.0.1:1/db",
    "too few slashes": "postgresql:/jane:{}@127.0.0.1:1/db",
    "a bad option": "postgresql://jane:{}@127.0.0.1:1/db?sslmode=none",
    "a bad port": "postgresql://jane:{}@127.0.0.1:port/db",
    "as an option": "postgresql://jane@127.0.0.1:port/db?password={}",
}


@pytest.mark.parametrize("form", SECRETS)
@pytest.mark.parametrize(
    "password",
    [
        "hunter2",
        "100%hunter2",
        "hun/ter2",
        "hun@ter2",
        "hun#ter2",
        "hun?ter2",
        "hun:ter2",
        "1/hunter2",
        "1?hunter2",
        "1,2/hunter2",
    ],
)
async def test_no_error_shows_the_password_of_a_store(
    form: str, password: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors end in logs, in tickets and on shared screens; so do the errors that they were raised from."""
    monkeypatch.setattr("turnwise.persistence.postgres.pool.PATIENCE", 0.01)
    with pytest.raises((SettingsError, StoreError)) as caught:
        await store_from_url(SECRETS[form].format(password), durability="full", now=None).open()
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    shown = told.replace('File "', "")
    assert [part for part in ("hun", "ter2") if part in shown] == []
    assert "jane" in str(caught.value) or "postgresql" in str(caught.value)
