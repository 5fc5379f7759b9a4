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
from turnwise.persistence.sqlite.connection import Connection, Durability
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import StoreError
from turnwise.states.triggers import Renamed

pytestmark = pytest.mark.anyio

SPELLED = {1: "normal", 2: "full"}


def test_secure_delete_is_on(tmp_path: Path) -> None:
    """Some builds of SQLite do so of themselves, others leave what was erased in the file."""
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


@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_write_to_a_removed_file_is_not_acknowledged(tmp_path: Path, part: str, *, replaced: bool) -> None:
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


async def test_restore_follows_the_guide(tmp_path: Path) -> None:
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
