"""The conformance suite over SQLite, in a file and in memory, and over PostgreSQL.

The latter also on hash partitions, and behind a transaction pooler.
"""

import math
import traceback
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from support.processes.pgbouncer import needs_pgbouncer, pooler
from support.processes.postgres_server import Server
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.persistence.store_url import check_password, without_password
from turnwise.states.errors import InvalidArgument, SettingsError, StoreError
from turnwise.testing.conformance import StoreConformance


async def opened(url: str) -> AsyncIterator[ChatStore]:
    store = store_from_url(url, durability="normal", now=None)
    await store.open()
    yield store
    await store.close()


class TestSQLite(StoreConformance):
    @pytest.fixture(params=["file", "memory"])
    async def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatStore]:
        async for store in opened(f"sqlite:///{tmp_path}/chats.db" if request.param == "file" else "sqlite://"):
            yield store


class TestPostgres(StoreConformance):
    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[ChatStore]:
        async for store in opened(postgres_url):
            yield store


PARTITIONED = ("facts", "profiles", "messages", "boundaries", "calls", "queue", "receipts", "usage", "audit", "events")
PARTITION = """
ALTER TABLE {table} RENAME TO {table}_whole;
CREATE TABLE {table} (LIKE {table}_whole INCLUDING ALL) PARTITION BY HASH ({key});
CREATE {unlogged} TABLE {table}_0 PARTITION OF {table} FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE {unlogged} TABLE {table}_1 PARTITION OF {table} FOR VALUES WITH (MODULUS 2, REMAINDER 1);
DROP TABLE {table}_whole;
"""


@pytest.mark.deep
class TestPartitions(StoreConformance):
    @pytest.fixture
    async def store(self, postgres_url: str, beside: asyncpg.Connection) -> AsyncIterator[ChatStore]:
        async for store in opened(postgres_url):
            for table in (*PARTITIONED, "chat_files"):
                await beside.execute(
                    PARTITION.format(table=table, unlogged="", key="chat_id" if table == "chat_files" else "chat")
                )
            await beside.execute(PARTITION.format(table="partial_events", unlogged="UNLOGGED", key="chat"))
            yield store


@pytest.fixture(scope="module")
def pooled(postgres: Server) -> Iterator[str]:
    with pooler(postgres, "transaction") as url:
        yield url


@pytest.mark.deep
@needs_pgbouncer
class TestTransactionPooling(StoreConformance):
    @pytest.fixture
    async def store(self, pooled: str, postgres: Server) -> AsyncIterator[ChatStore]:
        schema = postgres.new_url("pooled").rpartition("&")[2]
        async for store in opened(f"{pooled}&{schema}&direct_url={quote(postgres.address, safe='')}"):
            yield store


# A store's URL says which store; a wrong one is answered with a right one


def located(url: str) -> SQLiteStore:
    return store_from_url(url, durability="full", now=lambda: datetime.now(UTC))


@pytest.mark.parametrize(
    "url",
    ["chats.db", "mysql://host/db", "sqlite", "sqlite:chats.db", "sqlite://chats.db", "sqlite:///", "sqlite:////", ""],
)
def test_invalid_store_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"sqlite:///chats\.db") as caught:
        located(url)
    assert caught.value.field == "store"


def test_option_in_sqlite_url_is_refused() -> None:
    """Otherwise a mistyped option would open a different, empty store."""
    with pytest.raises(SettingsError, match=r"takes no options: write 'sqlite:///chats\.db'") as caught:
        located("sqlite:///chats.db?mode=ro")
    assert caught.value.field == "store"


async def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no folder") as caught:
        await located(f"sqlite:///{tmp_path}/missing/chats.db").open()
    assert f"{tmp_path}/missing" in caught.value.problem


@pytest.mark.parametrize(
    ("kind", "argument", "right", "wrong"),
    [
        (SQLiteStore, "path", ["chats.db"], [b"chats.db", 5, "", "a\0b", Path("a\0b")]),
        (SQLiteStore, "durability", ["full"], ["off", "extra", "FULL", None]),
        (PostgresStore, "url", ["postgres://db.example"], [None, "", "db", "sqlite:///x.db"]),
        (PostgresStore, "pool_size", [1, 262_143], [0, 262_144, "5", 2.0, None]),
        (PostgresStore, "statement_timeout", [0.001, 2_147_483], [0.0009, 2_147_484, math.nan, "30", None]),
        (PostgresStore, "poll_interval", [0.001, 2_147_483], [0, -1, math.inf, "x", None]),
        (PostgresStore, "listen", [True, False, None], ["false", 1]),
        (PostgresStore, "direct_url", [None, "postgresql:///db"], ["sqlite:///x.db", 5]),
        (PostgresStore, "poolsize", [], [5]),
    ],
)
def test_invalid_option_is_refused(kind: Any, argument: str, right: list[Any], wrong: list[Any]) -> None:
    """The server would get the blame; SQLite gives weaker meanings to words other than `full` and `normal`."""
    usual = {"path": None} if kind is SQLiteStore else {"url": "postgresql:///db"}
    for value in right:
        kind(**usual | {argument: value})
    for value in wrong:
        with pytest.raises((InvalidArgument, SettingsError), match=f"^{argument}: "):
            kind(**usual | {argument: value})


SECRETS = {
    "plain": "postgresql://jane:{}@127.0.0.1:1/db",
    "no store's scheme": "postgers://jane:{}@127.0.0.1:1/db",
    "too few slashes": "postgresql:/jane:{}@127.0.0.1:1/db",
    "a bad option": "postgresql://jane:{}@127.0.0.1:1/db?sslmode=none",
    "a bad port": "postgresql://jane:{}@127.0.0.1:port/db",
    "as an option": "postgresql://jane@127.0.0.1:port/db?password={}",
    "of another address": "postgresql://127.0.0.1:1/db?direct_url=postgresql://jane:{}@127.0.0.1:port/db",
}


@pytest.mark.parametrize("form", SECRETS)
@pytest.mark.parametrize(
    "password",
    [
        "hunter2",
        "100%hunter2",
        "hun/ter2",
        "hun@ter2",
        "hun#ter2",
        "hun?ter2",
        "hun:ter2",
        "1/hunter2",
        "1?hunter2",
        "1,2/hunter2",
    ],
)
async def test_errors_hide_the_store_password(
    form: str, password: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors reach logs, tickets and shared screens; so do their causes."""
    monkeypatch.setattr("turnwise.persistence.postgres.pool.RETRY_S", 0.01)
    with pytest.raises((SettingsError, StoreError)) as caught:
        await store_from_url(SECRETS[form].format(password), durability="full", now=None).open()
    output = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    shown = output.replace('File "', "")
    assert [part for part in ("hun", "ter2") if part in shown] == []
    assert "jane" in str(caught.value) or "postgresql" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://jane:hunter2@host:5/db?schema=a", "postgresql://jane:***@host:5/db?schema=a"),
        ("postgresql://jane@host/db", "postgresql://jane@host/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://host/db?user=jane&password=hunter2&x=1", "postgresql://host/db?user=jane&password=***&x=1"),
        ("postgresql://jane:hun@ter2@host/db", "postgresql://jane:***@host/db"),
        ("postgresql://jane:hunter2@one:5,two:6/db", "postgresql://jane:***@one:5,two:6/db"),
        (
            "postgresql://jane@h/d?direct_url=x://a:hun@ter2@b&y=1",
            "postgresql://jane@h/d?direct_url=x%3A%2F%2Fa%3A***%40b&y=1",
        ),
        ("postgresql://h/d?direct_url=x%3A%2F%2Fa%3Ahunter2%40b", "postgresql://h/d?direct_url=x%3A%2F%2Fa%3A***%40b"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_only_the_password_is_masked_in_urls(url: str, shown: str) -> None:
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
def test_url_may_name_several_servers(url: str) -> None:
    """Such URLs list servers that take over from each other."""
    check_password(url)


@pytest.mark.parametrize("servers", ["one:port,two:5432", "one:5432,two:port", "one:5432,two:99999"])
def test_invalid_port_is_refused(servers: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        check_password(f"postgresql://jane@{servers}/db")
