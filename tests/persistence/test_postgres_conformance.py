"""The conformance suite over PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from turnwise.persistence.conformance import StoreConformance
from turnwise.persistence.postgres.store import PostgresStore


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


class TestPostgres(StoreConformance):
    pass
