"""A store's URL as people may see it."""

from __future__ import annotations

import anyio.to_thread
import pytest

from turnwise.cli import migrate
from turnwise.persistence.store_url import check_password, without_password
from turnwise.states.errors import SettingsError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://jane:hunter2@host:5/db?schema=a", "postgresql://jane:***@host:5/db?schema=a"),
        ("postgresql://jane@host/db", "postgresql://jane@host/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://host/db?user=jane&password=hunter2&x=1", "postgresql://host/db?user=jane&password=***&x=1"),
        ("postgresql://jane:hun@ter2@host/db", "postgresql://jane:***@host/db"),
        ("postgresql://jane:hunter2@one:5,two:6/db", "postgresql://jane:***@one:5,two:6/db"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_only_the_password_is_masked(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://jane:a%2Cb@one:5432,two:5433/db?target_session_attrs=primary",
        "postgresql://one,two:5433/db",
        "postgresql://jane@[::1]:5432,two/db",
        "postgresql:///db?host=one,two",
    ],
)
def test_a_url_may_name_several_servers(url: str) -> None:
    """As those that take over from one another are given to whoever uses them."""
    check_password(url)


@pytest.mark.parametrize("servers", ["one:port,two:5432", "one:5432,two:port", "one:5432,two:99999"])
def test_a_port_of_any_of_them_that_is_none_is_refused(servers: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        check_password(f"postgresql://jane@{servers}/db")


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
