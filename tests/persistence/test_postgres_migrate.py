"""Opening a schema: turnwise's own is migrated beside running workers, every other is left unchanged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import asyncpg
import pytest

from turnwise.persistence.postgres import migrate, store
from turnwise.persistence.postgres.database import SQL
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.sql.migrations import Migration, migrations
from turnwise.states.errors import SettingsError, StoreError

KNOWN = migrations("postgres")
NEXT = Migration("9999_next", "ALTER TABLE chats ADD COLUMN later text; CREATE TABLE more (id text)")


@pytest.fixture
def schema(postgres_url: str) -> str:
    return postgres_url.rpartition("schema=")[2]


async def opened(url: str, *, migrates: bool = True) -> None:
    store = PostgresStore(url, migrates=migrates)
    try:
        await store.open()
    finally:
        await store.close()


async def tables(connection: asyncpg.Connection) -> set[str]:
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    return {row["tablename"] for row in rows}


def knowing(monkeypatch: pytest.MonkeyPatch, *known: Migration) -> None:
    monkeypatch.setattr(store, "migrations", lambda _: known)


async def test_new_schema_records_its_migrations(postgres_url: str, beside: asyncpg.Connection) -> None:
    """Opening the schema again changes nothing."""
    for _ in range(2):
        await opened(postgres_url)
        applied = await beside.fetch("SELECT name, checksum FROM turnwise_migrations ORDER BY name")
        assert [tuple(row) for row in applied] == [(migration.name, migration.checksum) for migration in KNOWN]
    assert {"chats", "messages", "events", "audit"} <= await tables(beside)


async def test_migrates_false_refuses_missing_or_old_store(
    postgres_url: str, beside: asyncpg.Connection, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=f"there is no store in schema '{schema}'"):
        await opened(postgres_url, migrates=False)
    assert await beside.fetchval("SELECT to_regnamespace($1) IS NULL", schema)
    await opened(postgres_url)
    await opened(postgres_url, migrates=False)
    before = await tables(beside)
    knowing(monkeypatch, *KNOWN, NEXT)
    with pytest.raises(StoreError, match=r"an older version of turnwise \(migrations that it lacks: 9999_next\)"):
        await opened(postgres_url, migrates=False)
    assert await tables(beside) == before


async def test_concurrent_opens_migrate_once(postgres_url: str, beside: asyncpg.Connection) -> None:
    """One migrates, the others wait."""
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(opened, postgres_url)
    assert await beside.fetchval("SELECT count(*) FROM turnwise_migrations") == len(KNOWN)


async def test_newer_schema_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        knowing(newer, *KNOWN, NEXT)
        await opened(postgres_url)
    with pytest.raises(StoreError, match=r"newer version.*9999_next"):
        await opened(postgres_url)


@pytest.mark.parametrize("letter", ["t", "ä"])
async def test_schema_name_over_63_bytes_is_refused(
    postgres_server: str, beside: asyncpg.Connection, letter: str
) -> None:
    """Truncation could map two names to one schema; the longest valid name has a schema of its own."""
    fits = letter * (63 // len(letter.encode()))
    at = f"{postgres_server}{'&' if '?' in postgres_server else '?'}schema={fits}"
    store = PostgresStore(at)
    await store.open()
    await store.close()
    assert await beside.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", fits) == 1
    await beside.execute(f'DROP SCHEMA "{fits}" CASCADE')
    with pytest.raises(SettingsError, match="63 bytes"):
        PostgresStore(f"{at}{letter}")


async def test_schema_of_another_program_is_refused(postgres_url: str, schema: str, beside: asyncpg.Connection) -> None:
    await beside.execute(f"CREATE SCHEMA {schema}; CREATE TABLE invoices (id text)")
    with pytest.raises(StoreError, match=r"another program.*invoices.*\?schema="):
        await opened(postgres_url)
    assert await tables(beside) == {"invoices"}


async def test_failed_migration_leaves_nothing(
    postgres_url: str, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its own first half nor the migrations before it."""
    knowing(monkeypatch, *KNOWN, NEXT._replace(sql="CREATE TABLE half (id text); SELECT nonsense"))
    with pytest.raises(StoreError, match="nonsense"):
        await opened(postgres_url)
    assert await tables(beside) == set()


async def test_stray_query_uses_its_index(postgres_url: str, beside: asyncpg.Connection) -> None:
    await opened(postgres_url)
    await beside.execute("SET enable_seqscan = off")
    plan = await beside.fetch(f"EXPLAIN {SQL['strays']}".replace("$1", "'{waiting}'").replace("$2", "10"))
    assert any("chats_of_state" in row[0] for row in plan)
    assert not any("Seq Scan" in row[0] for row in plan)


async def test_migration_ignores_statement_and_command_timeouts(
    postgres_url: str, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every start would repeat and abort it."""
    await opened(postgres_url)
    settings = "current_setting('statement_timeout') AS statement, current_setting('lock_timeout') AS lock"
    knowing(monkeypatch, *KNOWN, NEXT._replace(sql=f"SELECT pg_sleep(1); CREATE TABLE late AS SELECT {settings}"))
    slow = PostgresStore(postgres_url)
    slow._pool._options["command_timeout"] = 0.5
    await slow.open()
    await slow.close()
    assert tuple(await beside.fetchrow("SELECT statement, lock FROM late")) == ("0", "1s")


@pytest.fixture
def tried_again(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """Return a function that waits until a store has tried three more times to migrate, with short lock timeouts."""
    changed, tries = anyio.Condition(), 0

    async def tried(*args: Any) -> bool:
        nonlocal tries
        async with changed:
            tries += 1
            changed.notify_all()
        return await migrate.migrate(*args)

    async def three_more() -> None:
        async with changed:
            wanted = tries + 3
            while tries < wanted:
                await changed.wait()

    monkeypatch.setattr(store, "migrate", tried)
    monkeypatch.setattr(store, "_BETWEEN_TRIES", 0)
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT", "10ms")
    return three_more


async def test_open_waits_for_a_migration_elsewhere(
    postgres_url: str, beside: asyncpg.Connection, tried_again: Callable[[], Awaitable[None]]
) -> None:
    """For any duration; a waiting caller may be cancelled."""
    await beside.execute("SELECT pg_advisory_lock($1)", migrate._LOCK)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opened, postgres_url)
            await tried_again()
            assert await tables(beside) == set()
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opened, postgres_url)
            await tried_again()
            await beside.execute("SELECT pg_advisory_unlock($1)", migrate._LOCK)
    assert {"chats", "messages"} <= await tables(beside)
