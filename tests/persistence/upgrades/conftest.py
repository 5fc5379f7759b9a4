"""Where the stores of older versions are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of nothing yet: of a SQLite file or a schema on PostgreSQL, as the name of a dump says."""
    url: str = (
        request.getfixturevalue("postgres_url") if name.startswith("postgres") else f"sqlite:///{tmp_path}/chats.db"
    )
    return url
