"""Opening a database: turnwise's own is brought up to date, every other is left as it was."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import json
import logging
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.json import encode
from msgspec.structs import replace
from pydantic import TypeAdapter

from turnwise import Event
from turnwise.persistence.audit.record import to_json
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.conformance import plans
from turnwise.persistence.migrations import Migration, migrations
from turnwise.persistence.sqlite.migrate import APPLICATION_ID, migrate
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.arguments import Erasing
from turnwise.states.errors import StoreError
from turnwise.states.names import ChatState
from turnwise.states.triggers import CallStarted, MessageErased


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
    """Return why a database is refused, having checked that nothing was written."""
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        await opened(path, migrates=migrates)
    assert path.read_bytes() == before
    return caught.value.problem


async def test_a_new_database_says_whose_it_is_and_how_it_was_made(path: Path) -> None:
    await opened(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        applied = connection.execute("SELECT name, checksum FROM turnwise_migrations ORDER BY name").fetchall()
    assert applied == [(migration.name, migration.checksum) for migration in migrations("sqlite")]
    assert applied


async def test_an_empty_file_is_taken_and_an_open_twice_changes_nothing(path: Path) -> None:
    path.touch()
    await opened(path)
    before = path.read_bytes()
    await opened(path)
    assert path.read_bytes() == before


async def test_whoever_migrates_nothing_is_refused_what_is_no_store_of_this_version(path: Path) -> None:
    path.touch()
    assert "there is no store in" in await refusal_of(path, migrates=False)
    *older, latest = migrations("sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, str(path), tuple(older))
    refused = await refusal_of(path, migrates=False)
    assert f"an older version of turnwise (migrations that it lacks: {latest.name})" in refused
    await opened(path)
    await opened(path, migrates=False)


@pytest.mark.parametrize("size", [10_000, 60_000, 150_000])
async def test_a_disk_without_room_to_make_a_database_is_named(path: Path, size: int) -> None:
    """SQLite may have rolled back by itself then."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"a limit on the size of files is reached .* nothing was written"):
            await opened(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await opened(path)


async def test_another_programs_database_is_refused(path: Path) -> None:
    execute(path, "CREATE TABLE recipes (name TEXT)")
    assert "another program" in await refusal_of(path)


async def test_another_programs_empty_database_is_refused(path: Path) -> None:
    """It has put its mark on it, and no table yet."""
    execute(path, "PRAGMA application_id = 7")
    assert "another program (application id 0x7, tables: none)" in await refusal_of(path)


async def test_another_programs_application_id_is_refused(path: Path) -> None:
    execute(path, "PRAGMA application_id = 42", "CREATE TABLE turnwise_migrations (name TEXT)")
    assert "0x2a" in await refusal_of(path)


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("Dear diary, " * 100)
    assert "not a SQLite database" in await refusal_of(path)


async def test_a_newer_versions_database_is_refused(path: Path) -> None:
    await opened(path)
    execute(path, "INSERT INTO turnwise_migrations VALUES ('9999_dreams', 'x', 'tomorrow')")
    problem = await refusal_of(path)
    assert "newer version" in problem
    assert "9999_dreams" in problem


def awaited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "migration_awaited" in record.getMessage()]


def test_who_waits_for_another_process_that_upgrades_says_so_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And goes on as soon as that is done; a database that has the schema is not waited for."""
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


async def test_another_process_that_upgrades_for_too_long_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store may take it later, and nothing was written."""
    caplog.set_level(logging.INFO, "turnwise")
    monkeypatch.setattr("turnwise.persistence.sqlite.connection.PATIENCE", 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreError, match=r"schema of this version yet, .* most likely to upgrade it: try"
        ) as caught:
            await opened(path)
    assert caught.value.passing
    assert len(awaited(caplog)) == 1
    await opened(path)


async def test_a_migration_that_was_applied_in_another_form_is_refused(path: Path) -> None:
    await opened(path)
    execute(path, "UPDATE turnwise_migrations SET checksum = 'tampered'")
    assert "another form" in await refusal_of(path)


def test_missing_migrations_are_applied_together_or_not_at_all(path: Path) -> None:
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


def test_migrations_are_the_files_of_sql_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "schema").mkdir()
    for name in ("0010_c.sql", "0002_b.sql", "0001_a.sql", "0001_a.sql~", ".0002_b.sql.swp", "notes.md"):
        (tmp_path / "schema" / name).write_text(name)
    monkeypatch.setattr("importlib.resources.files", lambda _package: tmp_path)
    assert [(found.name, found.sql) for found in migrations.__wrapped__("sqlite")] == [
        (name, f"{name}.sql") for name in ("0001_a", "0002_b", "0010_c")
    ]


def test_the_schema_knows_every_state() -> None:
    """The index of strays lists the states; one that is missing there would be swept as a stray's."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, ":memory:", migrations("sqlite"))
        (index,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'chats_stray'").fetchone()
    assert all(f"'{state}'" in index for state in ChatState)
    assert index.count("'") == 2 * len(ChatState)


async def test_rows_written_before_the_leaner_ones_are_read_as_ever(path: Path) -> None:
    """A file of the first schema: bodies that say everything, no `hash` and no `at`."""
    store = SQLiteStore(path)
    await store.open()
    try:
        moves = [*plans.turn("hello", "hi"), plans.send("more"), plans.claim(), plans.start()]
        moves += [
            plans.send("later"),
            plans.reply("so", local=["a"], client=["b"]),
            plans.move(CallStarted(token=plans.HOLDER, call_id="a")),
        ]
        await plans.created(store, "chat", *moves, plans.finish("a"))
        written = await store.audit("chat"), await store.events("chat", after=0, limit=100)
        with closing(sqlite3.connect(path)) as connection, connection:
            for record in written[0]:
                values = (to_json(record), record.version)
                connection.execute("UPDATE audit SET hash = NULL, body = ? WHERE version = ?", values)
            for event in written[1]:
                told = TypeAdapter(Event).dump_python(event, mode="json")
                body = json.dumps(
                    {name: value for name, value in told.items() if (event.kind, name) != ("message", "message")}
                )
                connection.execute("UPDATE events SET at = NULL, body = ? WHERE seq = ?", (body, event.seq))
            connection.execute("UPDATE events SET position = NULL WHERE kind = 'tool_result'")
        assert (await store.audit("chat"), await store.events("chat", after=0, limit=100)) == written
        await store.change("chat", plans.plan(plans.tools_finished()))
        records = await store.audit("chat")
        assert verify_records(records).ok
        assert records[:-1] == written[0]
        for message in await store.history("chat"):
            blank = replace(message, parts=(), erased=True)
            await store.change("chat", plans.plan(plans.move(MessageErased(erasing=Erasing(messages=(blank,))))))
        said = "".join(encode(event).decode() for event in await store.events("chat", after=0, limit=100))
        assert not any(word in said for word in ("hello", '"hi"', '"saw"'))
    finally:
        await store.close()


async def test_chats_that_rest_count_from_the_upgrade_on_for_retention(path: Path) -> None:
    """Nobody could tell any more when a label was changed last; none is deleted early. One that works does not rest."""
    before = [one for one in migrations("sqlite") if one.name < "0007"]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, str(path), tuple(before))
        for state, settled in (("waiting", 1), ("interrupted", 1), ("interrupted", 0), ("streaming", 1)):
            connection.execute(
                "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls, facts)"
                " VALUES (?, ?, ?, 0, 1, 1, '', 1000, '[]', '{}')",
                (f"{state} {settled}", state, settled),
            )
    store = SQLiteStore(path)
    await store.open()
    try:
        assert await store.rested(archived=False, seconds=3600, limit=10) == []
        assert await store.rested(archived=False, seconds=-3600, limit=10) == ["waiting 1", "interrupted 1"]
    finally:
        await store.close()
