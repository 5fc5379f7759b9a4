"""A killed upgrade leaves the store as it was, two that begin at once are one, and every schema has its dump."""

# ruff: noqa: ASYNC220, ASYNC221 - a test may block its own loop

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.older_stores import DUMPS, NAMES, OLDEST, load, migrations_of, schema_of, seen
from turnwise.persistence.migrations import migrations
from turnwise.persistence.postgres.migrate import migrate

TOGETHER = {
    "sqlite": {"0003_bound_content", "0004_quarantine", "0011_needs_of_before"},
    "postgres": {"0003_bound_content"},
}
"""Migrations that came with the next one, or after it: no version ended with them."""

KILLED = """
import json, os, shutil, signal, sqlite3, sys
from turnwise.persistence.migrations import migrations
from turnwise.persistence.sqlite.migrate import migrate

def upgrade(path, last):
    met = 0
    def count(statement):
        nonlocal met
        if met == last:
            os.kill(os.getpid(), signal.SIGKILL)
        met += 1
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")  # so that pages of the transaction are in the file before it ends
    connection.set_trace_callback(count)
    migrate(connection, path, migrations("sqlite"))
    connection.close()
    return met

def found(path):
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM turnwise_migrations ORDER BY name")]
    (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    return {"names": names, "sound": sound}

path, whole = sys.argv[1], f"{sys.argv[1]}.whole"
shutil.copy(path, whole)
statements = upgrade(whole, -1)
print(json.dumps({"code": 0, **found(whole)}))
for last in range(statements - 1, -1, -3):
    shutil.copy(path, whole)
    child = os.fork()
    if child == 0:
        upgrade(whole, last)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"code": code, **found(whole)}))
"""
"""Upgrades copies of a database, each time killed before an earlier statement, and tells what is left of each."""

OPENS = """
import sys, anyio
from turnwise import Engine, Settings

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with Engine(sys.argv[1], model="demo", settings=Settings(run_worker=False)) as engine:
        print(len((await engine.list_chats(limit=100)).items))

anyio.run(main)
"""


@pytest.fixture(params=OLDEST)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of the oldest store of each kind."""
    oldest: str = request.param
    return oldest


@pytest.fixture
async def oldest(name: str, place: str) -> tuple[str, str]:
    """Return the name and the URL of the oldest store of each kind."""
    await load(name, place)
    return name, place


async def test_an_upgrade_that_is_killed_has_not_begun(tmp_path: Path) -> None:
    """SQLite: `kill -9` before the `COMMIT`, and before every third statement."""
    path = tmp_path / "chats.db"
    await load("sqlite-0001_chats", f"sqlite:///{path}")
    told = subprocess.run([sys.executable, "-c", KILLED, path], check=True, capture_output=True, text=True).stdout
    whole, *killed = [json.loads(line) for line in told.splitlines()]
    assert len(killed) > 10
    assert {(one["code"], *one["names"], one["sound"]) for one in killed} == {(-9, "0001_chats", "ok")}
    assert whole == {"code": 0, "names": [one.name for one in migrations("sqlite")], "sound": "ok"}


async def test_an_upgrade_whose_connection_is_cut_has_not_begun(postgres_url: str) -> None:
    """PostgreSQL: the server ends the connection right after a migration, as it does when the process dies."""
    await load("postgres-0001_chats", postgres_url)
    before = await schema_of(postgres_url)
    known = migrations("postgres")
    for last in known[1:]:
        cut = last.sql.rstrip().removesuffix(";") + "\n; SELECT pg_terminate_backend(pg_backend_pid())"
        server, _, schema = postgres_url.rpartition("schema=")
        connection = await asyncpg.connect(server.rstrip("?&"), server_settings={"search_path": schema})
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await migrate(connection, schema, tuple(one._replace(sql=cut) if one is last else one for one in known))
        assert await migrations_of(postgres_url) == ["0001_chats"]
        assert await schema_of(postgres_url) == before


async def test_two_processes_that_upgrade_at_once_both_find_every_chat(oldest: tuple[str, str]) -> None:
    """One upgrades, the other waits for it."""
    name, url = oldest
    command = [sys.executable, "-c", OPENS, url]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in both:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    told = [one.communicate() for one in both]
    assert told == [(f"{len(seen(name))}\n", "")] * 2
    dialect: Any = name.partition("-")[0]
    assert await migrations_of(url) == [migration.name for migration in migrations(dialect)]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_schema_that_there_was_has_a_dump(dialect: Any) -> None:
    """The newest is what every other test writes; the one before it needs a dump, see `make_dumps.py`."""
    *before, newest = (migration.name for migration in migrations(dialect))
    dumped = {known.partition("-")[2] for known in NAMES if known.startswith(dialect)}
    assert dumped - {newest} == set(before) - TOGETHER[dialect]
    assert all(file.stat().st_size < 100_000 for file in DUMPS.iterdir())
