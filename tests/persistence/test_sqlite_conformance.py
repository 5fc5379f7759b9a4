"""The conformance suite over SQLite, in a file and in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from turnwise.persistence.conformance import StoreConformance
from turnwise.persistence.sqlite.store import SQLiteStore


@pytest.fixture(params=["file", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "chats.db" if request.param == "file" else None, durability="normal")
    await store.open()
    yield store
    await store.close()


class TestSQLite(StoreConformance):
    pass
