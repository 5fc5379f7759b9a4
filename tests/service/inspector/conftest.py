"""Fixtures of the inspector's tests: both stores."""

from pathlib import Path

import pytest

from support.processes.postgres_server import Server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.deep)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    server: Server = request.getfixturevalue("postgres")
    return server.new_url(f"inspected_{request.node.originalname}")
