"""Opening a database: turnwise's own is migrated, every other is left unchanged."""

# ruff: noqa: ASYNC240 - a test may block its own loop

import logging
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from turnwise.persistence.sql.migrations import Migration, migrations
from turnwise.persistence.sqlite.migrate import APPLICATION_ID, migrate
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


async def opened(path: Path, *, migrates: bool = True) -> None:
    store = SQLiteStore(path, migrates=migrates)
    try:
        await store.open()
    finally:
        await store.close()


async def refusal_of(path: Path, *, migrates: bool = True) -> str:
    """Return the refusal of a database; assert that nothing was written."""
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        await opened(path, migrates=migrates)
    assert path.read_bytes() == before
    return caught.value.problem


async def test_new_database_records_its_migrations(path: Path) -> None:
    await opened(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        applied = connection.execute("SELECT name, checksum FROM turnwise_migrations ORDER BY name").fetchall()
    assert applied == [(migration.name, migration.checksum) for migration in migrations("sqlite")]
    assert applied


async def test_second_open_changes_nothing(path: Path) -> None:
    path.touch()
    await opened(path)
    before = path.read_bytes()
    await opened(path)
    assert path.read_bytes() == before


async def test_migrates_false_refuses_missing_or_old_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch()
    assert "there is no store in" in await refusal_of(path, migrates=False)
    await opened(path)
    await opened(path, migrates=False)
    newer = (*migrations("sqlite"), Migration("9999_next", "CREATE TABLE more (x);"))
    monkeypatch.setattr("turnwise.persistence.sqlite.store.migrations", lambda _: newer)
    refused = await refusal_of(path, migrates=False)
    assert "an older version of turnwise (migrations that it lacks: 9999_next)" in refused


@pytest.mark.parametrize("size", [10_000, 60_000, 150_000])
async def test_full_disk_during_creation_is_reported(path: Path, size: int) -> None:
    """SQLite may have rolled back by itself."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"a limit on the size of files is reached .* nothing was written"):
            await opened(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await opened(path)


async def test_database_of_another_program_is_refused(path: Path) -> None:
    execute(path, "CREATE TABLE recipes (name TEXT)")
    assert "another program" in await refusal_of(path)


async def test_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("Dear diary, " * 100)
    assert "not a SQLite database" in await refusal_of(path)


async def test_newer_schema_is_refused(path: Path) -> None:
    await opened(path)
    execute(path, "INSERT INTO turnwise_migrations VALUES ('9999_dreams', 'x', 'tomorrow')")
    problem = await refusal_of(path)
    assert "newer version" in problem
    assert "9999_dreams" in problem


def awaited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "migration_awaited" in record.getMessage()]


def test_waiting_for_another_migration_is_logged_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The open continues as soon as the other migration ends; a current database is not waited for."""
    caplog.set_level(logging.INFO, "turnwise")
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as other,
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as own,
    ):
        other.execute("BEGIN IMMEDIATE")
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                other.execute("COMMIT")

        monkeypatch.setattr("turnwise.persistence.sqlite.connection.time.sleep", pause)
        migrate(own, str(path), migrations("sqlite"))
        assert len(awaited(caplog)) == 1
        assert str(path) in awaited(caplog)[0]
        other.execute("BEGIN IMMEDIATE")
        migrate(own, str(path), migrations("sqlite"))
        assert len(awaited(caplog)) == 1


async def test_too_long_migration_elsewhere_is_a_passing_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store may take it later, and nothing was written."""
    caplog.set_level(logging.INFO, "turnwise")
    monkeypatch.setattr("turnwise.persistence.sqlite.connection.BUSY_TIMEOUT_S", 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreError, match=r"schema of this version yet, .* most likely to upgrade it: try"
        ) as caught:
            await opened(path)
    assert caught.value.passing
    assert len(awaited(caplog)) == 1
    await opened(path)


async def test_migration_with_other_checksum_is_refused(path: Path) -> None:
    await opened(path)
    execute(path, "UPDATE turnwise_migrations SET checksum = 'tampered'")
    assert "another form" in await refusal_of(path)


def test_missing_migrations_apply_in_one_transaction(path: Path) -> None:
    first = Migration("0001_a", "CREATE TABLE a (x);")
    broken = Migration("0002_b", "CREATE TABLE b (x);\nCREATE TABLE a (x);")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, str(path), (first, broken))
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        migrate(connection, str(path), (first,))
        migrate(connection, str(path), (first, Migration("0002_b", "CREATE TABLE b (x);")))
        names = connection.execute("SELECT name FROM turnwise_migrations ORDER BY name").fetchall()
    assert names == [("0001_a",), ("0002_b",)]
