"""One chat that cannot be read, on PostgreSQL: found, named, passed over, repaired."""

from __future__ import annotations

from datetime import datetime

import asyncpg
import pytest

from support.poisoned_chat import LIFE, look
from turnwise import ChatDeleted, ChatUnreadable, Engine, Settings
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.files.protocol import Blob
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


TIMES = """
SELECT table_name, column_name FROM information_schema.columns AS these
WHERE table_schema = current_schema() AND data_type = 'timestamp with time zone' AND (table_name = 'chats' OR EXISTS (
    SELECT FROM information_schema.columns
    WHERE table_schema = these.table_schema AND table_name = these.table_name AND column_name = 'chat_id'))
"""


@pytest.mark.parametrize("time", ["294000-01-01", "0044-03-15 BC", "infinity", "-infinity"])
async def test_a_time_that_python_cannot_hold_is_one_chats_trouble(
    postgres_url: str, beside: asyncpg.Connection, time: str
) -> None:
    """In whichever column: it is named, the chat can be repaired, and no claim of another chat fails."""
    store = PostgresStore(postgres_url)
    await store.open()
    places = await beside.fetch(TIMES)
    for table, column in places:
        chat_id = f"{table}.{column}"
        await plans.created(store, chat_id, *LIFE[:3])
        await store.journal(chat_id, 1, ChatState.streaming, [part("1")])
        for move in LIFE[3:]:
            await store.change(chat_id, plans.plan(move))
        await store.note_file(chat_id, Blob("f" * 64, 1), kept_in="database")
        named = "id" if table == "chats" else "chat_id"
        done = await beside.execute(f"UPDATE {table} SET {column} = '{time}' WHERE {named} = '{chat_id}'")  # noqa: S608 - ours
        assert not done.endswith(" 0"), "the life leaves no such row"
    for chat_id in ("waits wrongly", "waits"):
        await plans.created(store, chat_id, plans.send("hello"))
    await beside.execute(f"UPDATE chats SET since = '{time}' WHERE id = 'waits wrongly'")  # noqa: S608 - ours
    damaged = [f"{table}.{column}" for table, column in places]
    assert {*damaged} >= {"chats.since", "chats.expires", "calls.deadline", "events.at", "partial_events.at"}
    assert all(isinstance(since, datetime) for since in (await store.waiting_since()).since.values())
    await store.close()
    async with Engine(postgres_url, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        assert len((await engine.list_chats()).items) == len(places) + 2
        found = {diagnosis.chat_id: diagnosis.flaws[0].column async for diagnosis in engine.diagnose()}
        assert found == {**{place: place for place in damaged}, "waits wrongly": "chats.since"}
        for chat_id in damaged:
            assert {flaw.column for flaw in (await engine.explain(chat_id)).unreadable} == {chat_id}
            assert (await engine.verify(chat_id)).ok is (chat_id == "chat_files.at")
            assert (await engine.repair(chat_id)).state is ChatState.error
    async with Engine(postgres_url, model=ScriptedModel([Reply("hi")] * 2)) as engine:
        for chat_id in ("waits wrongly", "waits"):
            assert (await engine.wait(chat_id, timeout=60)).state is ChatState.waiting
        assert [diagnosis async for diagnosis in engine.diagnose()] == []
        await engine.delete_chat("waits")
        await beside.execute(f"UPDATE tombstones SET created = '{time}', deleted = '{time}'")  # noqa: S608 - ours
        with pytest.raises(ChatDeleted):
            await engine.get_chat("waits")


async def test_rows_of_no_chat_are_told_by_table_and_id(postgres_url: str, beside: asyncpg.Connection) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    await plans.created(store, "chat", *plans.turn("one", "1"))
    assert await store.orphans() == []
    await beside.execute("SET session_replication_role = replica; UPDATE messages SET chat_id = 'gone'")
    (flaw,) = await store.orphans()
    await store.close()
    assert (flaw.column, "2 row(s) of 'gone'" in flaw.problem) == ("messages.chat_id", True)
