"""PgBouncer in front of a PostgreSQL server of the tests."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import pytest

from support.processes.postgres_server import Server

_PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
_CONFIGURATION: Final = """
[databases]
postgres = host={server} user=postgres
[pgbouncer]
pool_mode = {mode}
auth_type = any
auth_file = {folder}/users.txt
unix_socket_dir = {folder}
listen_port = 6432
"""
needs_pgbouncer = pytest.mark.skipif(
    _PROGRAM is None, reason="PgBouncer is not installed (Debian: apt install pgbouncer)"
)

Mode = Literal["session", "transaction"]


@contextmanager
def pooler(postgres: Server, mode: Mode) -> Iterator[str]:
    """Run PgBouncer in front of the server, and return its URL.

    It runs as the server's user, who alone reaches the server's socket; its files lie where this user may read them.
    """
    with tempfile.TemporaryDirectory(prefix="turnwise-") as name:
        folder = Path(name)
        (folder / "pgbouncer.ini").write_text(_CONFIGURATION.format(server=postgres.socket, folder=folder, mode=mode))
        (folder / "users.txt").write_text('"postgres" ""\n')
        folder.chmod(0o777)
        switch = ["--user", Path(postgres.socket).owner()] if os.getuid() == 0 else []
        with subprocess.Popen([str(_PROGRAM), "--quiet", *switch, str(folder / "pgbouncer.ini")]) as process:
            try:
                while not (folder / ".s.PGSQL.6432").exists():
                    assert process.poll() is None
                    time.sleep(0.01)
                yield f"postgresql://postgres@/postgres?host={folder}&port=6432"
            finally:
                process.terminate()
