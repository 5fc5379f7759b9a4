"""What the tests of the inspector share: both stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.postgres_server import Server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with Server.running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    server: Server = request.getfixturevalue("postgres")
    return server.url(f"inspected_{request.node.originalname}"[:60])
