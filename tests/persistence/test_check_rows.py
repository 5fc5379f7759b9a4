"""What is stored is what the log says: every column of every table is rewritten, one by one, and the place is named."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.rich_chat import engine_on, live
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.conformance import plans
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.triggers import PromoteQueued

HINTS = {
    "chats.number": "the order of creation, for lists only",
    "leases.expires": "renewed without a transition: the token is the fence",
    "leases.lasts": "the same: how long the last renewal asked for",
    "chats.expires": "the same, where the lease stands in the chat's row",
    "chats.rested": "by this retention finds chats; an upgrade sets it for those that were at rest",
    "queue.rank": "the order is compared, the number is free",
    "partial_events": "work under way: pruned later, and a finished message says what it said",
    "quarantine": "what a repair found unreadable and put aside, so what the log does not say",
    "chat_files": "which files a chat holds; what its messages refer to is bound with them, and by its digest",
    "loose_files": "files to be removed: of the store, of no chat",
    "file_store": "where files are kept: of the store, of no chat",
    "blobs": "files, each under the digest of its bytes: of the store, of no chat",
    "blob_pieces": "the same",
    "blob_remains": "what is left of uploads: of the store, of no chat",
    "workers": "who lives: of the store, of no chat",
    "tombstones": "what is left of deleted chats: of the store, of no chat",
    "turnwise_migrations": "of the store, of no chat",
}
"""What no record binds, and why. The guide of the audit log lists the same."""

EMPTY = {
    "leases.chat_id",
    "leases.worker",
    "leases.token",
    "chats.worker",
    "chats.needs",
    "chats.token",
    "events.step",
    "events.attempt",
    "quarantine.chat_id",
    "quarantine.version",
    "quarantine.origin",
    "quarantine.problem",
    "quarantine.row",
}
"""Columns that are empty in a chat at rest, but for the events of work under way, and in one that needed no repair."""

TRUTHS = {"settled", "archived", "erased"}
"""Columns that SQLite keeps as 0 and 1."""

Rows = list[tuple[Any, ...]]
Ask = Callable[..., Awaitable[Rows]]
Check = Callable[[str], Awaitable[Verdict]]


def _other(value: Any) -> Any:  # noqa: PLR0911 - one line for each type
    """Return another value of the same type, as one who rewrites a row would choose it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1000
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1, *value[1:]])
    if isinstance(value, list) and value:
        return [*value, value[-1]]
    if isinstance(value, datetime):
        return value.replace(year=value.year + 1)
    if not isinstance(value, str) or value in {"{}", "[]"}:
        return value
    if value[:1] in {"{", "["}:
        return _other_json(json.loads(value))
    return value[:-1] + ("1" if value[-1:] == "0" else "0")


def _other_json(found: Any) -> str:
    if isinstance(found, list):
        return json.dumps([*found, found[-1]])
    texts = [name for name, value in found.items() if isinstance(value, str) and not value[:4].isdigit()]
    name = (texts or [*found])[-1]
    return json.dumps({**found, name: _other(found[name])}, separators=(",", ":"))


@asynccontextmanager
async def opened(store: SQLiteStore) -> AsyncIterator[SQLiteStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _rewrite_everything(columns: Rows, ask: Ask, check: Check, chat_id: str) -> set[str]:
    """Rewrite every column, one by one; return those that hold nothing to rewrite."""
    empty, unseen = set(), []
    for table, column in columns:
        if table in HINTS or f"{table}.{column}" in HINTS:
            continue
        key = "id" if table == "chats" else "chat_id"
        which = " AND kind NOT IN ('part', 'tool_progress')" if table == "events" else ""
        rows = await ask(f"SELECT DISTINCT {column} FROM {table} WHERE {key} = $1{which}", chat_id)  # noqa: S608
        value = next((value for (value,) in rows if _other(value) != value), None)
        if value is None:
            empty.add(f"{table}.{column}")
            continue
        other = 1 - value if column in TRUTHS and isinstance(value, int) else _other(value)
        other = bool(other) if isinstance(value, bool) else other
        change = f"UPDATE {table} SET {column} = $1 WHERE {column} = $2"  # noqa: S608 - names of our own
        await ask(change + ("" if column == key else f" AND {key} = $3"), other, value, *([chat_id] * (column != key)))
        verdict = await check(other if (table, column) == ("chats", "id") else chat_id)
        if verdict.ok or verdict.position is None:
            unseen.append(f"{table}.{column} was rewritten from {value!r} to {other!r}, and nobody saw it")
        elif table != "audit" and (table, column) != ("chats", "id") and not _names(verdict.place, table, column):
            unseen.append(f"{table}.{column} was rewritten, and the verdict is {verdict}")
        await ask(change + ("" if column == key else f" AND {key} = $3"), value, other, *([chat_id] * (column != key)))
        assert await check(chat_id) == Verdict(ok=True), f"{table}.{column} is back"
    assert unseen == []
    return empty


def _names(place: str | None, table: str, column: str) -> bool:
    """Whether a place names the column; or the row, where what identifies it was changed."""
    row, _, columns = (place or "").partition(".")
    told = [name.rpartition(".")[2] for name in columns.split("|")]
    return (row.partition("[")[0] == table or f"{table}." in columns) and (not columns or column in {"chat_id", *told})


async def test_every_column_of_every_table_of_sqlite_is_bound(tmp_path: Path) -> None:
    """A new column fails this test until the log binds it, or it is listed as a hint."""
    path = tmp_path / "chats.db"
    async with engine_on(SQLiteStore(path)) as engine:
        chat_id = await live(engine)
    store = SQLiteStore(path)
    await store.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as on:
        on.execute("PRAGMA foreign_keys = OFF")

        async def ask(sql: str, *values: Any) -> Rows:
            return on.execute(re.sub(r"\$\d", "?", sql), values).fetchall()

        async def check(chat: str) -> Verdict:
            return verify_stored(chat, await store.rows(chat))

        tables = await ask("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        columns = [
            (table, row[1]) for (table,) in tables for row in on.execute(f"PRAGMA table_info({table})").fetchall()
        ]
        assert await check(chat_id) == Verdict(ok=True)
        empty = await _rewrite_everything(columns, ask, check, chat_id)
    await store.close()
    assert empty <= EMPTY


async def test_every_column_of_every_table_of_postgresql_is_bound(
    postgres_url: str, beside: asyncpg.Connection
) -> None:
    """The same on PostgreSQL."""
    async with engine_on(PostgresStore(postgres_url)) as engine:
        chat_id = await live(engine)
    store = PostgresStore(postgres_url)
    await store.open()

    async def ask(sql: str, *values: Any) -> Rows:
        return [tuple(row) for row in await beside.fetch(sql, *values)]

    async def check(chat: str) -> Verdict:
        return verify_stored(chat, await store.rows(chat))

    columns = await ask(
        "SELECT table_name::text, column_name::text FROM information_schema.columns"
        " WHERE table_schema = current_schema()"
    )
    columns = [place for place in columns if place != ("chats", "number")]
    assert await check(chat_id) == Verdict(ok=True)
    empty = await _rewrite_everything(columns, ask, check, chat_id)
    await store.close()
    assert empty <= EMPTY


async def test_a_lease_that_was_given_to_another_is_found(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with opened(SQLiteStore(path)) as store:
        await plans.created(store, "chat", plans.send("hi"), plans.claim())
        assert verify_stored("chat", await store.rows("chat")) == Verdict(ok=True)
        with closing(sqlite3.connect(path, isolation_level=None)) as on:
            for column, other, value in (("worker", "thief", "worker"), ("token", 7, 1)):
                on.execute(f"UPDATE leases SET {column} = ?", (other,))  # noqa: S608 - two names
                assert verify_stored("chat", await store.rows("chat")).place == f"leases.{column}"
                on.execute(f"UPDATE leases SET {column} = ?", (value,))  # noqa: S608
            on.execute("DELETE FROM leases")
            assert verify_stored("chat", await store.rows("chat")).place == "leases"


@pytest.mark.parametrize("column", ["chats.rested", "leases.expires", "leases.lasts"])
async def test_what_no_record_binds_is_found_if_it_cannot_be_read(tmp_path: Path, column: str) -> None:
    """Any time will do, but no poison."""
    path, (table, name) = tmp_path / "chats.db", column.split(".")
    async with opened(SQLiteStore(path)) as store:
        await plans.created(store, "chat", plans.send("hi"), plans.claim())
        with closing(sqlite3.connect(path, isolation_level=None)) as on:
            on.execute(f"UPDATE {table} SET {name} = 1")  # noqa: S608 - names of our own
            assert verify_stored("chat", await store.rows("chat")) == Verdict(ok=True)
            on.execute(f"UPDATE {table} SET {name} = 'poison'")  # noqa: S608
        verdict = verify_stored("chat", await store.rows("chat"))
        assert (verdict.ok, verdict.place) == (False, column)
        assert "belongs here" in str(verdict.problem)


@pytest.mark.parametrize(("waiting", "promoted"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
async def test_the_order_of_the_queue_is_the_one_that_was_last_asked_for(
    tmp_path: Path, waiting: int, promoted: int
) -> None:
    """Whichever message was moved to the head; and an order that nobody asked for is found."""
    path = tmp_path / "chats.db"
    async with opened(SQLiteStore(path)) as store:
        sent = [plans.send(f"later {number}") for number in range(waiting)]
        await plans.created(store, "chat", plans.send("hi"), plans.claim(), plans.start(), *sent)
        queue = [queued.id for queued in (await store.facts("chat")).queue]
        moved = queue.pop(promoted - 1)
        facts = (await store.change("chat", plans.plan(plans.move(PromoteQueued(queued_id=moved))))).facts
        assert [queued.id for queued in facts.queue] == [moved, *queue]
        assert verify_stored("chat", await store.rows("chat")) == Verdict(ok=True)
        if waiting > 1:
            with closing(sqlite3.connect(path, isolation_level=None)) as on:
                on.execute("UPDATE queue SET rank = -rank")
            verdict = verify_stored("chat", await store.rows("chat"))
            assert (verdict.ok, verdict.place) == (False, "queue.rank")


@pytest.mark.parametrize("version", [1, 3, 28])
async def test_a_record_that_was_taken_out_is_named(tmp_path: Path, version: int) -> None:
    """Not the version at which something comes of it."""
    path = tmp_path / "chats.db"
    async with engine_on(SQLiteStore(path)) as engine:
        chat_id = await live(engine)
        with closing(sqlite3.connect(path, isolation_level=None)) as on:
            on.execute("DELETE FROM audit WHERE version = ?", (version,))
        assert (await engine.verify(chat_id)).position == version


@pytest.mark.parametrize("does", ["DELETE FROM audit", "UPDATE audit SET body = '{'"])
async def test_of_a_broken_chain_and_a_rewritten_message_the_earlier_is_named(tmp_path: Path, does: str) -> None:
    """What was rewritten before the chain breaks is not hidden by the break, and nothing sound is called wrong."""
    path = tmp_path / "chats.db"
    async with engine_on(SQLiteStore(path)) as engine:
        chat_id = await live(engine)
        with closing(sqlite3.connect(path, isolation_level=None)) as on:
            on.execute(f"{does} WHERE version = 20")
            assert (await engine.verify(chat_id)).position == 20
            (added, place) = on.execute("SELECT added, position FROM messages WHERE NOT erased LIMIT 1").fetchone()
            on.execute("UPDATE messages SET body = replace(body, ',', ', ') WHERE position = ?", (place,))
        verdict = await engine.verify(chat_id)
        assert verdict.position == added < 20
        assert verdict.place is not None
        assert verdict.place.startswith("messages[")
