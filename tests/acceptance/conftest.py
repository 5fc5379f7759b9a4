"""Fixtures of the tests with real processes."""

from pathlib import Path

import pytest

from support.processes.postgres_server import Server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    server: Server = request.getfixturevalue("postgres")
    return server.new_url("chats")
