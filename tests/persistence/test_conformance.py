"""The conformance suite over SQLite, in a file and in memory, and over PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from turnwise.persistence.conformance import StoreConformance
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore


async def opened(url: str) -> AsyncIterator[ChatStore]:
    store = store_from_url(url, durability="normal", now=None)
    await store.open()
    yield store
    await store.close()


class TestSQLite(StoreConformance):
    @pytest.fixture(params=["file", "memory"])
    async def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatStore]:
        async for store in opened(f"sqlite:///{tmp_path}/chats.db" if request.param == "file" else "sqlite://"):
            yield store


class TestPostgres(StoreConformance):
    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[ChatStore]:
        async for store in opened(postgres_url):
            yield store
