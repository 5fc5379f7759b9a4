"""Makes the dumps of older stores: `python tests/persistence/upgrades/make_dumps.py`, or with the names of some.

For each schema that a commit has ended with, the code of the last such commit is taken from git's history, lives
(`lives.py`), is killed, and its store is dumped, beside what that version saw of it. It needs the whole history, so
what it makes is committed; the tests only load it. Before a new migration, add the newest of those that there are to
`MADE_BY` with the last commit, and run this with its name, such as `sqlite-0010_files`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]
DUMPS: Final = Path(__file__).with_name("dumps")
SCHEMA: Final = "lived_before"

MADE_BY: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {
        "0001_chats": "d6235ed",
        "0002_leaner_rows": "2738779",
        "0005_lease_lengths": "92d9220",
        "0006_listing": "73df253",
        "0007_deletion": "cce235d",
        "0008_agents": "84ca347",
        "0009_families": "4b20d81",
        "0010_files": "c756bbd",
    },
    "postgres": {
        "0001_chats": "c210835",
        "0002_workers": "2738779",
        "0004_quarantine": "92d9220",
        "0005_listing": "73df253",
        "0006_deletion": "cce235d",
        "0007_agents": "84ca347",
        "0008_families": "4b20d81",
        "0009_files": "c756bbd",
    },
}
"""The last migration of each schema, and the last commit whose schema it was. Some migrations came with the next."""


def make(dialect: str, migration: str, commit: str, server: Any) -> None:
    """Let the code of a commit live on a new store, and keep what is left."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "code")
        code.mkdir()
        archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", code], input=archive, check=True)
        path = Path(folder, "chats.db")
        url = f"sqlite:///{path}" if dialect == "sqlite" else server.url(SCHEMA)
        run(code, "live", url)
        seen = json.loads(run(code, "leave", url))
        if dialect == "sqlite":
            lines = list(sqlite_dump(path))
        else:
            lines = list(postgres_dump(server))
            server.sql(f"DROP SCHEMA {SCHEMA} CASCADE")
        keep(f"{dialect}-{migration}.sql", "".join(f"{line}\n" for line in lines))
        keep(f"{dialect}-{migration}.json", json.dumps(seen, indent=1, sort_keys=True))


def run(code: Path, word: str, url: str) -> str:
    """Run the lives with the code of a folder, and return what they printed; the first of them kills itself."""
    environment = {**os.environ, "PYTHONPATH": str(code / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, Path(__file__).with_name("lives.py"), word, url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=code)
    if done.returncode != (-9 if word == "live" else 0):
        sys.exit(f"{word} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def sqlite_dump(path: Path) -> Iterator[str]:
    """Yield a database as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        yield f"PRAGMA application_id = {application_id};"
        yield from connection.iterdump()


def postgres_dump(server: Any) -> Iterator[str]:
    """Yield a schema as SQL that any client may run, not psql alone."""
    command = [server.program("pg_dump"), "--inserts", "--no-owner", f"--schema={SCHEMA}", server.address]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    yield from (line for line in said.splitlines() if line and not line.startswith(("--", "\\", "SET ")))


def keep(name: str, text: str) -> None:
    """Keep a text, compressed, so that the same text is the same file."""
    assert not re.search(r"/(tmp|root|home|work)/", text), f"{name} names a path of this machine"
    with gzip.GzipFile(DUMPS / f"{name}.gz", "wb", mtime=0) as file:
        file.write(text.encode())
    sys.stderr.write(f"{name}: {(DUMPS / f'{name}.gz').stat().st_size} bytes\n")


def main() -> None:
    """Make the dumps whose migrations were named, or all."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.processes.postgres_server import Server  # noqa: PLC0415 - it stands beside the tests

    DUMPS.mkdir(exist_ok=True)
    with Server.running() as server:
        for dialect, commits in MADE_BY.items():
            for migration, commit in commits.items():
                if not sys.argv[1:] or f"{dialect}-{migration}" in sys.argv[1:]:
                    make(dialect, migration, commit, server)


if __name__ == "__main__":
    main()
