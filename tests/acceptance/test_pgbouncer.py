"""Chats behind PgBouncer, pooling by session: the store needs nothing that the pooler takes away."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.postgres_server import Server
from turnwise import Engine, tool
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
CONFIGURATION = """
[databases]
postgres = host={server} user=postgres
[pgbouncer]
pool_mode = session
auth_type = any
auth_file = {folder}/users.txt
unix_socket_dir = {folder}
listen_port = 6432
"""
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed (Debian: apt install pgbouncer)"),
]


@pytest.fixture
def pooled(postgres: Server) -> Iterator[str]:
    """Run PgBouncer in front of the server, and return its URL.

    It runs as the server's user, who alone reaches the server's socket; its files lie where this user may read them.
    """
    with tempfile.TemporaryDirectory(prefix="turnwise-") as name:
        folder = Path(name)
        configuration = CONFIGURATION.format(server=postgres.socket, folder=folder)
        (folder / "pgbouncer.ini").write_text(configuration)
        (folder / "users.txt").write_text('"postgres" ""\n')
        folder.chmod(0o777)
        switch = ["--user", Path(postgres.socket).owner()] if os.getuid() == 0 else []
        with subprocess.Popen([str(PGBOUNCER), "--quiet", *switch, str(folder / "pgbouncer.ini")]) as pooler:
            try:
                while not (folder / ".s.PGSQL.6432").exists():
                    assert pooler.poll() is None
                    time.sleep(0.01)
                yield f"postgresql://postgres@/postgres?host={folder}&port=6432&schema=pooled"
            finally:
                pooler.terminate()


async def test_chats_run_behind_a_session_pooler(pooled: str) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "a parcel"

    model = ScriptedModel([Reply(calls=[Call("look", {})]), "It is a parcel."])
    async with Engine(PostgresStore(pooled), model=model, tools=[look]) as engine:
        chat = await engine.create_chat()
        sent = await engine.send_message(chat.id, "What is there?")
        kinds = []
        async for event in engine.events(chat.id, after=sent.seq):
            kinds.append(event.kind)
            if event.kind == "turn_finished":
                break
        assert {"message", "part", "tool_result"} <= set(kinds)
        assert (await engine.verify(chat.id)).ok
