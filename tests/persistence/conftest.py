"""A real PostgreSQL server for the tests, with a schema for each of them."""

import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
from tests.persistence import poisoned_chat
from tests.persistence.s3_server import S3Server

from support.processes.postgres_server import Server
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.protocol import ChatStore
from turnwise.testing.clock import ManualClock

_SERIAL = itertools.count()
Pair = tuple[ChatStore, ChatStore]
OpenStore = Callable[..., Awaitable[PostgresStore]]


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> str:
    """Return the URL of a server: that of `TURNWISE_TEST_POSTGRES`, else of the tests' own."""
    named = os.environ.get("TURNWISE_TEST_POSTGRES")
    if named:
        return named
    server: Server = request.getfixturevalue("postgres")
    return server.address


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        yield server


@asynccontextmanager
async def _schema_on(server: str) -> AsyncIterator[str]:
    schema = f"test_{os.getpid()}_{next(_SERIAL)}"
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    connection = await asyncpg.connect(server)
    await connection.execute("SET client_min_messages = warning")
    await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    await connection.close()


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncIterator[str]:
    """Return the URL of a schema for one test, which is dropped afterwards."""
    async with _schema_on(postgres_server) as url:
        yield url


@pytest.fixture
async def open_store(postgres_url: str) -> AsyncIterator[OpenStore]:
    """Open stores on the test's schema, as that many processes would."""
    async with AsyncExitStack() as stack:

        async def opened(**options: Any) -> PostgresStore:
            store = PostgresStore(postgres_url, **options)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield opened


@pytest.fixture
async def store(open_store: OpenStore) -> PostgresStore:
    return await open_store()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
async def either_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Return the URL of a SQLite file and, in a deep test, of a schema on PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'chats.db'}"
        return
    async with _schema_on(request.getfixturevalue("postgres_server")) as url:
        yield url


@pytest.fixture
async def pair(either_url: str) -> AsyncIterator[Pair]:
    """Return the stores of two processes with stopped clocks, so no poll becomes due."""
    now = ManualClock().now
    async with AsyncExitStack() as until:
        stores = [store_from_url(either_url, durability="normal", now=now) for _ in range(2)]
        for store in stores:
            await store.open()
            until.push_async_callback(store.close)
        yield stores[0], stores[1]


@pytest.fixture
async def beside(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Return a plain connection to the test's schema."""
    server, _, schema = postgres_url.rpartition("schema=")
    connection = await asyncpg.connect(server.rstrip("?&"), server_settings={"search_path": schema})
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lived") / "chats.db"
    anyio.run(poisoned_chat.live, path)
    return path
