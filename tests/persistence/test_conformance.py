"""The conformance suite over SQLite, in a file and in memory, and over PostgreSQL.

There also on hash partitions, and behind a pooler that pools by transaction.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from support.processes.pgbouncer import needs_pgbouncer, pooler
from support.processes.postgres_server import Server
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


PARTITIONED = ("facts", "profiles", "messages", "boundaries", "calls", "queue", "receipts", "usage", "audit", "events")
PARTITION = """
ALTER TABLE {table} RENAME TO {table}_whole;
CREATE TABLE {table} (LIKE {table}_whole INCLUDING ALL) PARTITION BY HASH (chat_id);
CREATE {unlogged} TABLE {table}_0 PARTITION OF {table} FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE {unlogged} TABLE {table}_1 PARTITION OF {table} FOR VALUES WITH (MODULUS 2, REMAINDER 1);
DROP TABLE {table}_whole;
"""


@pytest.mark.deep
class TestPartitions(StoreConformance):
    @pytest.fixture
    async def store(self, postgres_url: str, beside: asyncpg.Connection) -> AsyncIterator[ChatStore]:
        async for store in opened(postgres_url):
            for table in (*PARTITIONED, "chat_files"):
                await beside.execute(PARTITION.format(table=table, unlogged=""))
            await beside.execute(PARTITION.format(table="partial_events", unlogged="UNLOGGED"))
            yield store


@pytest.fixture(scope="module")
def pooled(postgres: Server) -> Iterator[str]:
    with pooler(postgres, "transaction") as url:
        yield url


@pytest.mark.deep
@needs_pgbouncer
class TestTransactionPooling(StoreConformance):
    @pytest.fixture
    async def store(self, pooled: str, postgres: Server) -> AsyncIterator[ChatStore]:
        schema = postgres.new_url("pooled").rpartition("&")[2]
        async for store in opened(f"{pooled}&{schema}&direct_url={quote(postgres.address, safe='')}"):
            yield store
