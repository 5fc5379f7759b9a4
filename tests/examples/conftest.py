"""What the tests of the examples share: a PostgreSQL of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes.postgres_server import Server


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with Server.running() as server:
        yield server
