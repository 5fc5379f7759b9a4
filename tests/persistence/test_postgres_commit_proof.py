"""A commit checks what it read: a chat that another process changed is read again, never overwritten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from tests.persistence.conftest import OpenStore

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Renamed
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part


@pytest.fixture
async def stores(open_store: OpenStore) -> tuple[PostgresStore, PostgresStore]:
    """Return the stores of two processes."""
    return await open_store(), await open_store()


def rename(title: str) -> plans.Plan:
    return plans.plan(plans.move(Renamed(title=title)))


async def test_concurrent_append_reuses_no_event_number(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    """Parts change neither version, hash, state nor token: only the number of the last event differs."""
    holder, other = stores
    await plans.created(holder, "chat", plans.send("hello"), plans.claim())
    await other.change("chat", rename("first"))  # it remembers the chat under its lease from now on
    for number in range(3):
        await holder.append_events("chat", 1, ChatState.streaming, [part(str(number)), part("and")])
        await other.change("chat", rename(f"after {number}"))
    await holder.change("chat", plans.plan(plans.reply("hi")))
    events = await holder.events("chat", after=0, limit=100)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.part.delta for event in await holder.shown("chat", 1, 1)] == ["0", "and", "1", "and", "2", "and"]
    assert (await holder.facts("chat")).profile.title == "after 2"


async def test_lost_commit_is_recognised_by_its_hash(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends before the commit arrives, and another process commits that version with another hash."""
    one, other = stores
    await plans.created(one, "chat")
    ask, left = asyncpg.Connection.fetch, ["once"]

    async def overtaken(connection: asyncpg.Connection, query: str, *args: Any, **options: Any) -> Any:
        if left and query.startswith("-- name: commit"):
            left.clear()
            await other.change("chat", plans.plan(plans.send("from elsewhere")))
            connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return await ask(connection, query, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", overtaken)
    committed = await one.change("chat", rename("from here"))
    assert committed.facts.version == 3
    assert (await one.facts("chat")).profile.title == "from here"
    assert [message.text for message in await one.history("chat")] == ["from elsewhere"]
    assert verify_records(await one.audit("chat")).ok


READS: dict[str, Callable[[PostgresStore], Awaitable[Any]]] = {
    "a chat with its history": lambda store: store.snapshot("chat"),
    "the rows for a check": lambda store: store.rows("chat"),
    "the rows for an export": lambda store: store.raw_rows("chat"),
}


@pytest.mark.parametrize("read", READS)
async def test_reads_see_one_snapshot(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Another process commits between the first query and the rest."""
    one, other = stores
    await plans.created(one, "chat", plans.send("hello"), plans.claim())
    before = await READS[read](one)
    ask, left = asyncpg.Connection.fetch, ["once"]

    async def disturbed(connection: asyncpg.Connection, query: str, *args: Any, **options: Any) -> Any:
        answer = await ask(connection, query, *args, **options)
        if left and "profile" in query + str(answer):
            left.clear()
            await other.change("chat", plans.plan(plans.reply("hi")))
        return answer

    monkeypatch.setattr(asyncpg.Connection, "fetch", disturbed)
    assert await READS[read](one) == before
    assert not left
    assert await READS[read](one) != before


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE chats SET event_seq = 9223372036854775807 WHERE id = 'full'",
        "UPDATE chats SET version = 9223372036854775807 WHERE id = 'full'",
        "UPDATE facts SET body = '{\"fence\":9223372036854775807,' || substr(body, 2) WHERE chat = 2",
        # Whatever else the server refuses to store for one chat: here the next row of its log.
        "ALTER TABLE audit ADD CHECK (chat <> 2 OR version < 3) NOT VALID",
        "ALTER TABLE audit ADD CHECK (chat <> 2 OR version < 3 OR 1 / (3 - version) > 0) NOT VALID",
    ],
    ids=["events", "versions", "tokens", "a constraint", "a value"],
)
async def test_claim_skips_a_chat_that_the_server_refuses(
    stores: tuple[PostgresStore, PostgresStore],
    beside: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    """Also if this process caches the chat."""
    one, other = stores
    chats = ["before", "full", "after"]
    for chat_id in chats:
        await plans.created(one, chat_id, plans.send("hello"))
    await beside.execute(damage)
    for store, left in ((one, ["before", "after"]), (other, [])):
        claimed = await store.claim(plans.plan(plans.claim("worker")), runs=plans.RUNS, limit=10)
        assert [committed.facts.chat_id for committed in claimed] == left
    assert "claim_refused chat_id=full" in caplog.text


@pytest.mark.parametrize(
    ("column", "forged", "found"),
    [
        ("state", "'interrupted'", lambda before: before.state == ChatState.interrupted),
        ("version", "7", lambda before: before.version == 7),
        ("event_seq", "9", lambda before: before.last_seq == 9),
    ],
)
async def test_cached_row_is_compared_column_by_column(
    stores: tuple[PostgresStore, PostgresStore],
    beside: asyncpg.Connection,
    column: str,
    forged: str,
    found: Callable[[Facts], bool],
) -> None:
    """A commit based on the cache alone would overwrite manual changes of the row."""
    one, _ = stores
    await plans.created(one, "chat")
    await one.change("chat", rename("remembered"))
    await beside.execute(f"UPDATE chats SET {column} = {forged} WHERE id = 'chat'")  # noqa: S608 - ours
    committed = await one.change("chat", rename("again"))
    assert found(committed.before)
    assert committed.facts.profile.title == "again"
