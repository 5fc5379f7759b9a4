"""One chat that cannot be read, on PostgreSQL: found, named, passed over, repaired."""

from __future__ import annotations

import asyncpg
import pytest

from support.poisoned_chat import look
from turnwise import ChatUnreadable, Engine
from turnwise.persistence.conformance import plans
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.names import ChatState

POISONS = {
    "facts.body": "UPDATE facts SET body = '{' WHERE chat_id = 'poisoned'",
    "profiles.body": "DELETE FROM profiles WHERE chat_id = 'poisoned'",
    "messages.body": "UPDATE messages SET body = 'poison' WHERE chat_id = 'poisoned' AND position = 2",
    "messages.format": "UPDATE messages SET format = 99 WHERE chat_id = 'poisoned'",
    "queue.body": "UPDATE queue SET body = '[]' WHERE chat_id = 'poisoned'",
    "calls.body": "UPDATE calls SET body = '{}' WHERE chat_id = 'poisoned'",
    "events.body": "UPDATE events SET body = '{}' WHERE chat_id = 'poisoned' AND seq = 1",
    "chats.head": "UPDATE chats SET head = 'poison' WHERE id = 'poisoned'",
    "chats.version": "UPDATE chats SET version = 1 WHERE id = 'poisoned'",
    "chats.worker": "UPDATE chats SET worker = NULL WHERE id = 'poisoned'",
    "chats.token": "UPDATE chats SET token = NULL WHERE id = 'poisoned'",
    "chats.event_seq": "UPDATE chats SET event_seq = 1 WHERE id = 'poisoned'",
    "receipts.body": "UPDATE receipts SET body = 'null' WHERE chat_id = 'poisoned'",
    "usage.body": "UPDATE usage SET body = '7' WHERE chat_id = 'poisoned'",
}


@pytest.mark.parametrize("column", POISONS)
async def test_a_poisoned_row_is_one_chats_trouble(postgres_url: str, beside: asyncpg.Connection, column: str) -> None:
    """Every other chat lives and verifies, and the chat can be repaired."""
    store = PostgresStore(postgres_url)
    await store.open()
    asked = (*plans.turn("one", "1"), plans.send("two"), plans.claim("nobody", lease=0), plans.start())
    for chat_id in ("poisoned", "sound"):
        called = (plans.reply("", local=["a"]), plans.send("three", client_id="c1"))
        await plans.created(store, chat_id, *asked, *called)
    await plans.created(store, "waiting for a worker", plans.send("hello"))
    await store.close()
    assert not (await beside.execute(POISONS[column])).endswith(" 0")
    async with Engine(postgres_url, model=ScriptedModel([Reply("hi")] * 9), tools=[look]) as engine:
        assert len((await engine.list_chats()).items) == 3
        for chat_id in ("waiting for a worker", "sound"):
            assert (await engine.wait(chat_id, timeout=60)).state is ChatState.waiting
            assert (await engine.verify(chat_id)).ok
        if column in {"facts.body", "profiles.body", "queue.body", "calls.body", "chats.worker", "chats.token"}:
            with pytest.raises(ChatUnreadable, match=column):
                await engine.get_chat("poisoned")
            with pytest.raises(ChatUnreadable, match=column):
                await engine.rename("poisoned", "a title")
        found = [diagnosis async for diagnosis in engine.diagnose()]
        assert [diagnosis.chat_id for diagnosis in found] == ["poisoned"]
        assert column in {flaw.column for diagnosis in found for flaw in diagnosis.flaws}
        assert (await engine.repair("poisoned")).state is ChatState.error
        assert [diagnosis async for diagnosis in engine.diagnose()] == []


async def test_rows_of_no_chat_are_told_by_table_and_id(postgres_url: str, beside: asyncpg.Connection) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    await plans.created(store, "chat", *plans.turn("one", "1"))
    assert await store.orphans() == []
    await beside.execute("SET session_replication_role = replica; UPDATE messages SET chat_id = 'gone'")
    (flaw,) = await store.orphans()
    await store.close()
    assert (flaw.column, "2 row(s) of 'gone'" in flaw.problem) == ("messages.chat_id", True)
