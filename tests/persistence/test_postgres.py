"""Many stores on one PostgreSQL database: conflicts, waits, and the rest after a crash of the server."""

from __future__ import annotations

from datetime import timedelta

import anyio
import asyncpg
import pytest
from tests.persistence.conftest import OpenStore
from tests.persistence.poisoned_chat import look

from support.exploring import few
from turnwise import ChatUnreadable, Engine, Settings
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres.database import prompts
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.errors import StoreError
from turnwise.states.names import ChatState
from turnwise.states.triggers import ClearContext, Renamed
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import contents, part


def rename(title: str) -> plans.Plan:
    return plans.plan(plans.move(Renamed(title=title)))


async def test_scrub_reports_rows_left_to_the_server(open_store: OpenStore) -> None:
    assert await (await open_store()).scrub() is False


async def test_statement_timeout_refuses_the_change(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """Another transaction holds the chat: the change is refused with a reason, and writes nothing."""
    store = await open_store(statement_timeout=1)
    await plans.created(store, "chat")
    before = await contents(store, "chat")
    async with beside.transaction():
        await beside.execute("SELECT FROM chats FOR UPDATE")
        with pytest.raises(StoreError, match="statement_timeout"):
            await store.change("chat", rename("late"))
    assert await contents(store, "chat") == before
    assert (await store.change("chat", rename("now"))).facts.version == 2


@pytest.mark.deep
async def test_cut_connections_lose_and_double_nothing(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """The server ends connections repeatedly, and every change happens once."""
    store = await open_store(pool_size=4)
    async with anyio.create_task_group() as tasks:
        for chat in range(4):
            tasks.start_soon(plans.created, store, f"chat-{chat}", plans.send("hello"), plans.claim())
    before = (await store.facts("chat-0")).version
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'turnwise' AND pid <> pg_backend_pid()"
    )

    async def write(chat_id: str) -> None:
        for number in range(10):
            await store.change(chat_id, rename(str(number)))
            await store.append_events(chat_id, 1, ChatState.streaming, [part(str(number))])

    async with anyio.create_task_group() as writers:
        for chat in range(4):
            writers.start_soon(write, f"chat-{chat}")
        for _ in range(5):
            await beside.fetchval(cut)
            await store.facts("chat-0")
    for chat in range(4):
        records = await store.audit(f"chat-{chat}")
        assert len(records) == before + 10
        assert verify_records(records).ok
        shown = await store.shown(f"chat-{chat}", 1, 1)
        assert [event.part.delta for event in shown] == [str(number) for number in range(10)]
        events = await store.events(f"chat-{chat}", after=0, limit=1000)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_time_comes_from_the_database(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """The clocks of the connected machines do not matter."""
    store = await open_store()
    before = await beside.fetchval("SELECT clock_timestamp()")
    held = await plans.created(store, "chat", plans.send("hello"), plans.claim(lease=30))
    expiry = await store.lease_expiry("chat")
    after = await beside.fetchval("SELECT clock_timestamp()")
    time = (await store.overdue(limit=1)).at
    assert before < held.at < after
    assert time is not None
    assert after < time < await beside.fetchval("SELECT clock_timestamp()")
    assert expiry is not None
    assert expiry.expires == held.at + timedelta(seconds=30)
    assert before < expiry.now < after


async def test_unreachable_server_is_named_without_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RETRY_S", 1)
    store = PostgresStore("postgresql://me:secret@127.0.0.1:1/db")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1.*cannot be reached") as caught:
        await store.open()
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreError, match="not open"):
        await store.facts("chat")


async def test_prompts_of_several_chats_stay_apart(store: PostgresStore) -> None:
    """Also for a repeated chat, and for an unknown one."""
    await plans.created(store, "b", *plans.turn("one", "1"), plans.move(ClearContext()), plans.send("two"))
    await plans.created(store, "a", *plans.turn("three", "3"))
    found = await store._pool.run(lambda on: prompts(on, ["b", "none", "a", "b"]))
    assert [[message.text for message in prompt] for prompt in found] == [["two"], [], ["three", "3"], ["two"]]


POISONS = {
    "facts.body": "UPDATE facts SET body = '{' WHERE chat = 1",
    "profiles.body": "DELETE FROM profiles WHERE chat = 1",
    "messages.body": "UPDATE messages SET body = 'poison' WHERE chat = 1 AND position = 2",
    "messages.format": "UPDATE messages SET format = 99 WHERE chat = 1",
    "queue.body": "UPDATE queue SET body = '[]' WHERE chat = 1",
    "calls.body": "UPDATE calls SET body = '{}' WHERE chat = 1",
    "events.body": "UPDATE events SET body = '{}' WHERE chat = 1 AND seq = 1",
    "chats.head": "UPDATE chats SET head = 'poison' WHERE id = 'poisoned'",
    "chats.version": "UPDATE chats SET version = 1 WHERE id = 'poisoned'",
    "chats.worker": "UPDATE chats SET worker = NULL WHERE id = 'poisoned'",
    "chats.token": "UPDATE chats SET token = NULL WHERE id = 'poisoned'",
    "chats.event_seq": "UPDATE chats SET event_seq = 1 WHERE id = 'poisoned'",
    "receipts.body": "UPDATE receipts SET body = 'null' WHERE chat = 1",
    "usage.body": "UPDATE usage SET body = '7' WHERE chat = 1",
}


async def test_contradicting_owner_raises_a_typed_error(postgres_url: str, beside: asyncpg.Connection) -> None:
    """The column names no owner with a budget, the chat's profile does: no commit ever fits."""
    async with Engine(postgres_url, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        await engine.set_budget(owner="ann", tokens=9, per="day")
        chat = await engine.create_chat(owner="ann")
        await beside.execute("UPDATE chats SET owner = 'bob'")
        with pytest.raises(StoreError, match=r"contradicts itself.*nothing was written"):
            await engine.rename(chat.id, "a title")
        (found,) = [diagnosis async for diagnosis in engine.diagnose()]
        assert (found.chat_id, {issue.column for issue in found.issues}) == (chat.id, {"chats.owner"})


@pytest.mark.parametrize("column", few(POISONS, 3))
async def test_poisoned_row_affects_one_chat(postgres_url: str, beside: asyncpg.Connection, column: str) -> None:
    """Every other chat works and verifies, and the chat can be repaired."""
    store = PostgresStore(postgres_url)
    await store.open()
    asked = (*plans.turn("one", "1"), plans.send("two"), plans.claim("nobody", lease=0))
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
        assert column in {issue.column for diagnosis in found for issue in diagnosis.issues}
        assert (await engine.repair("poisoned")).state is ChatState.error
        assert [diagnosis async for diagnosis in engine.diagnose()] == []
