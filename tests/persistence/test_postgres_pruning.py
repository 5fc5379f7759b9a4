"""Pruning PostgreSQL: many workers do it at once, beside chats that go on, and never by reading every event."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest

from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.postgres import pruning
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.protocol import Pruned
from turnwise.states.names import ChatState

CHATS = 20


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


async def streaming(store: PostgresStore, chat_id: str, parts: int) -> None:
    """Let a chat show something."""
    await plans.created(store, chat_id, plans.send("hello"), plans.claim(), plans.start())
    await store.journal(chat_id, 1, ChatState.streaming, [part(str(number)) for number in range(parts)])


async def prune(store: PostgresStore, deleted: list[int]) -> None:
    """Look at all chats, a few at a time, until nothing is left; note what each call deleted."""
    left = True
    while left:
        left, after = False, ""
        while True:
            pruned = await store.prune(keep=0, after=after, limit=7)
            deleted.append(pruned.parts)
            left = left or pruned.parts > 0
            if pruned.after is None:
                break
            after = pruned.after


async def go_on(store: PostgresStore, chat_id: str) -> None:
    for number in range(5):
        await store.journal(chat_id, 1, ChatState.streaming, [part(str(number))])


async def test_workers_prune_at_once_and_chats_go_on_meanwhile(store: PostgresStore) -> None:
    """Each part goes once, nobody waits for anybody, and what is shown meanwhile stays."""
    for number in range(CHATS):
        await streaming(store, f"over-{number}", 10)
        await store.change(f"over-{number}", plans.plan(plans.reply("hi")))
        await streaming(store, f"live-{number}", 3)
    deleted: list[int] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(prune, store, deleted)
        for number in range(CHATS):
            tasks.start_soon(go_on, store, f"live-{number}")
    assert sum(deleted) == 10 * CHATS
    for number in range(CHATS):
        shown = await store.shown(f"live-{number}", 1, 1)
        assert [event.part.delta for event in shown] == ["0", "1", "2", "0", "1", "2", "3", "4"]


@pytest.mark.parametrize("body", ["'torn'", f"""replace(body, '"number":1', '"number":{2**63 - 1}')"""])
async def test_a_chat_that_cannot_be_read_keeps_no_other_from_being_pruned(
    store: PostgresStore, beside: asyncpg.Connection, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    """It is told, and its parts stay for whoever mends it."""
    for chat_id in ("a", "b"):
        await streaming(store, chat_id, 1)
        await store.change(chat_id, plans.plan(plans.reply("hi")))
    await beside.execute(f"UPDATE facts SET body = {body} WHERE chat_id = 'a'")  # noqa: S608 - ours
    assert await store.prune(keep=0, after="", limit=10) == Pruned(1, None)
    assert [len(await store.shown(chat_id, 1, 1)) for chat_id in ("a", "b")] == [1, 0]
    assert "prune_refused chat_id=a" in caplog.text


async def test_parts_of_no_chat_keep_no_other_from_being_pruned(
    store: PostgresStore, beside: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever deleted a chat by hand may have left them."""
    await streaming(store, "chat", 1)
    await store.change("chat", plans.plan(plans.reply("hi")))
    await beside.execute(
        "INSERT INTO partial_events SELECT 'a ghost', seq, kind, step, attempt, at, body FROM partial_events"
    )
    assert await store.prune(keep=0, after="", limit=10) == Pruned(1, None)
    assert await beside.fetchval("SELECT chat_id FROM partial_events") == "a ghost"
    assert "prune_refused" in caplog.text


async def test_what_is_old_is_found_by_the_index_of_parts(store: PostgresStore, postgres_url: str) -> None:
    """Whatever else there is, and as whoever prunes asks it: with a plan for any value."""
    server, _, schema = postgres_url.rpartition("schema=")
    options = {"search_path": schema, "plan_cache_mode": "force_generic_plan"}
    connection = await asyncpg.connect(server.rstrip("?&"), server_settings=options)
    await connection.execute(
        "INSERT INTO partial_events SELECT 'chat-' || n % 50, n, 'part', n / 500, 1, now(), '{}'"
        " FROM generate_series(1, 20000) AS n; ANALYZE partial_events"
    )
    for sql, types in (
        (pruning._SQL["first_parts"], "text, timestamptz, float8, bigint"),
        (pruning._SQL["delete"], "text, bigint, bigint, bigint, timestamptz, float8"),
    ):
        await connection.execute(f"PREPARE asked ({types}) AS {sql}")
        nothing = ", ".join("NULL" for _ in types.split(","))
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE asked ({nothing})"))
        assert "partial_events_parts" in plan
        assert "Seq Scan" not in plan, plan
        await connection.execute("DEALLOCATE asked")
    await connection.close()
