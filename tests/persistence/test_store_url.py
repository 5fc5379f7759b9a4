"""A store's URL as people may see it."""

from __future__ import annotations

import anyio.to_thread
import pytest

from turnwise.cli import migrate
from turnwise.persistence.store_url import without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://jane:hunter2@host:5/db?schema=a", "postgresql://jane:***@host:5/db?schema=a"),
        ("postgresql://jane@host/db", "postgresql://jane@host/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://host/db?user=jane&password=hunter2&x=1", "postgresql://host/db?user=jane&password=***&x=1"),
        ("postgresql://jane:hun@ter2@host/db", "postgresql://jane:***@host/db"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_only_the_password_is_masked(url: str, shown: str) -> None:
    assert without_password(url) == shown


async def test_a_store_that_was_migrated_is_named_without_its_password(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the one command that says where it was, and it runs in deployment logs."""
    name, at, rest = postgres_url.partition("@")
    await anyio.to_thread.run_sync(lambda: migrate.migrate(store=f"{name}:hunter2{at}{rest}"))
    told = capsys.readouterr().out
    assert "has the schema" in told
    assert "hunter2" not in told
    assert "***" in told
