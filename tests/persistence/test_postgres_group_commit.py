"""Chats under a lease share statements; a refused, locked or changed chat does not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import asyncpg
import pytest

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.postgres.group_commit import NoResponse, StatementBatches
from turnwise.persistence.postgres.refusals import Refused, Unreachable
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.protocol import DuplicateReceipt
from turnwise.states.budgets import StoredBudget
from turnwise.states.errors import BrokenInvariant, ChatDeleted, ChatExists, ChatNotFound, StaleLease, StoreError
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.writes import RecordReceipt
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part

CHATS = [f"chat-{number}" for number in range(20)]


@pytest.fixture
async def store(store: PostgresStore) -> PostgresStore:
    async with anyio.create_task_group() as tasks:
        for chat_id in CHATS:
            tasks.start_soon(plans.created, store, chat_id, plans.send("hello"), plans.claim())
    return store


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the first lines of the statements that are fetched from now on."""
    fetched: list[str] = []
    fetch = asyncpg.Connection.fetch

    async def listening(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
        fetched.append(query.partition("\n")[0])
        return await fetch(connection, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", listening)
    return fetched


def say(text: str) -> plans.Plan:
    return plans.plan(plans.send(text))


async def test_leased_chats_commit_in_one_statement(store: PostgresStore, statements: list[str]) -> None:
    """Twenty commits wait for at most two flushes of the disk, and for no read."""
    async with anyio.create_task_group() as tasks:
        for chat_id in CHATS:
            tasks.start_soon(store.change, chat_id, plans.plan(plans.reply("hi")))
    assert len(statements) <= 2
    assert all(line.startswith("-- name: commit") for line in statements)
    for chat_id in CHATS:
        assert [message.text for message in await store.history(chat_id)] == ["hello", "hi"]
        assert verify_records(await store.audit(chat_id)).ok


async def test_new_chats_are_created_in_one_statement(store: PostgresStore, statements: list[str]) -> None:
    """A taken or deleted id is refused alone, and an owner's budget is read; the others succeed."""
    await store.delete("chat-1", lambda _read, _at: None, actor="client")
    budget = StoredBudget(owner="spender", tokens=9)
    await store.change_budget(budget.key, lambda _stored, _at: budget)
    refused: dict[str, type[Exception]] = {}
    statements.clear()

    async def create(chat_id: str, owner: str | None = None) -> None:
        plan = plans.plan(plans.create(owner=owner))
        try:
            await store.create(chat_id, lambda facts, now, _funds=None: plan(facts, now))
        except (ChatExists, ChatDeleted) as error:
            refused[chat_id] = type(error)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(create, f"new-{number}")
        tasks.start_soon(create, "chat-0")
        tasks.start_soon(create, "chat-1")
        tasks.start_soon(create, "spent", "spender")
    assert refused == {"chat-0": ChatExists, "chat-1": ChatDeleted}
    assert len([line for line in statements if line.startswith("-- name: commit")]) <= 5
    for chat_id in ("spent", *(f"new-{number}" for number in range(20))):
        assert verify_records(await store.audit(chat_id)).ok


async def test_questions_about_chats_share_one_statement(store: PostgresStore, statements: list[str]) -> None:
    statements.clear()
    facts: dict[str, Facts] = {}

    async def ask(chat_id: str) -> None:
        facts[chat_id] = await store.facts(chat_id)
        await store.append_events(chat_id, 1, ChatState.streaming, ())

    async with anyio.create_task_group() as tasks:
        for chat_id in CHATS:
            tasks.start_soon(ask, chat_id)
    assert {chat_id: one.chat_id for chat_id, one in facts.items()} == {chat_id: chat_id for chat_id in CHATS}
    assert len(statements) <= 4
    with pytest.raises(StaleLease):
        await store.append_events("chat-0", 2, ChatState.streaming, ())
    with pytest.raises(ChatNotFound):
        await store.facts("nowhere")
    with pytest.raises(ChatNotFound):
        await store.append_events("nowhere", 1, ChatState.streaming, ())


async def test_parts_of_many_jobs_share_one_statement(store: PostgresStore, statements: list[str]) -> None:
    """Parts of a finished job are not stored; the others are."""
    await store.change("chat-0", plans.plan(plans.reply("hi")))
    statements.clear()
    stale: list[str] = []

    async def show(chat_id: str) -> None:
        try:
            await store.append_events(chat_id, 1, ChatState.streaming, [part("h"), part("i")])
        except StaleLease:
            stale.append(chat_id)

    async with anyio.create_task_group() as tasks:
        for chat_id in CHATS:
            tasks.start_soon(show, chat_id)
    assert stale == ["chat-0"]
    assert len([line for line in statements if line.startswith("-- name: append_events")]) <= 2
    for chat_id in CHATS[1:]:
        assert [event.part.delta for event in await store.shown(chat_id, 1, 1)] == ["h", "i"]
    assert await store.shown("chat-0", 1, 1) == []


async def test_refused_chat_does_not_affect_its_batch(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with a known `client_id` fails the whole statement; then each chat is sent alone."""
    await store.change("chat-0", plans.plan(plans.send("once", client_id="c1")))
    receipt = await store.receipt("chat-0", "c1")
    assert isinstance(receipt, RecordReceipt)
    refused: list[str] = []

    async def write(chat_id: str) -> None:
        try:
            await store.change(chat_id, plans.plan(plans.send("again", client_id="c1")))
        except DuplicateReceipt:
            refused.append(chat_id)

    async with anyio.create_task_group() as tasks:
        for chat_id in CHATS:
            tasks.start_soon(write, chat_id)
    assert refused == ["chat-0"]
    for chat_id in CHATS:
        assert [queued.text for queued in (await store.facts(chat_id)).queue] == (
            ["once"] if chat_id == "chat-0" else ["again"]
        )


@pytest.mark.parametrize("words", ["-- name: commit", "-- name: append_events"])
async def test_locked_chat_does_not_block_its_batch(
    store: PostgresStore, beside: asyncpg.Connection, statements: list[str], words: str
) -> None:
    """It waits alone, and is written once the lock is gone; no statement of the others was cancelled."""
    done: list[str] = []

    async def write(chat_id: str) -> None:
        if words == "-- name: commit":
            await store.change(chat_id, say("more"))
        else:
            await store.append_events(chat_id, 1, ChatState.streaming, [part("h")])
        done.append(chat_id)

    async with anyio.create_task_group() as tasks, beside.transaction():
        await beside.execute("SELECT FROM chats WHERE id = 'chat-7' FOR UPDATE")
        async with anyio.create_task_group() as others:
            tasks.start_soon(write, "chat-7")
            for chat_id in CHATS:
                if chat_id != "chat-7":
                    others.start_soon(write, chat_id)
        assert sorted(done) == sorted(set(CHATS) - {"chat-7"})
        assert len([line for line in statements if line.startswith(words)]) <= 2
    assert done[-1] == "chat-7"


async def test_cache_is_used_only_if_the_row_agrees(
    store: PostgresStore, postgres_url: str, beside: asyncpg.Connection
) -> None:
    """Another process or manual SQL has changed the row."""
    other = PostgresStore(postgres_url)
    await other.open()
    renamed = await other.change("chat-0", say("from elsewhere"))
    await other.close()
    committed = await store.change("chat-0", say("from here"))
    assert committed.facts.version == renamed.facts.version + 1
    assert [queued.text for queued in committed.facts.queue] == ["from elsewhere", "from here"]
    await beside.execute("UPDATE chats SET token = 9 WHERE id = 'chat-1'")
    with pytest.raises(BrokenInvariant, match="lease_is_the_newest"):
        await store.change("chat-1", say("hello?"))


class Direct:
    """A pool whose connection is always there."""

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(None)


@pytest.mark.parametrize("times", [1, 3])
async def test_batch_survives_its_cancelled_caller(times: int) -> None:
    """Its own item is stored with the rest of its batch; later callers get their answers."""
    started, go_on = anyio.Event(), anyio.Event()
    stored: list[list[str]] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        started.set()
        await go_on.wait()
        stored.append([*items])
        return [item.upper() for item in items]

    batches: StatementBatches[str, str] = StatementBatches(Direct(), perform)  # type: ignore[arg-type]
    first = asyncio.create_task(batches.add("first"))
    beside = asyncio.create_task(batches.add("beside"))
    await started.wait()
    later = asyncio.create_task(batches.add("later"))
    await anyio.wait_all_tasks_blocked()
    for _ in range(times):
        first.cancel()
        await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(beside, later) == ["BESIDE", "LATER"]
    with pytest.raises(asyncio.CancelledError):
        await first
    await batches.close()
    assert stored == [["first", "beside"], ["later"]]


class Failing:
    """A pool that fails before or after it calls the work, and may call it again."""

    def __init__(self, calls: int, error: Exception) -> None:
        self.calls = calls
        self.error = error

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        for _ in range(self.calls):
            await work(None)
        raise self.error


async def performed(failing: Failing, expected: type[Exception], *, reads: bool = False) -> list[str]:
    """Add one item, which must fail as expected; return it as often as it was performed."""
    seen: list[str] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        seen.extend(items)
        return items

    batches: StatementBatches[str, str] = StatementBatches(failing, perform, reads=reads)  # type: ignore[arg-type]
    with pytest.raises(expected):
        await batches.add("item")
    return seen


@pytest.mark.parametrize(
    ("calls", "error", "expected"),
    [
        (0, StoreError("away"), StoreError),
        (0, ValueError("odd"), NoResponse),
        (1, StoreError("away"), NoResponse),
        (1, ValueError("odd"), NoResponse),
        (2, StoreError("away"), NoResponse),
    ],
)
async def test_only_unsent_items_report_nothing_written(
    calls: int, error: Exception, expected: type[Exception]
) -> None:
    """Sent items are not sent again: their first statement may have been committed."""
    assert await performed(Failing(calls, error), expected) == ["item"] * min(calls, 1)


@pytest.mark.parametrize(
    ("error", "expected"), [(Unreachable("away", lost=True), Unreachable), (Refused("odd", lost=False), NoResponse)]
)
async def test_questions_are_sent_again(error: Exception, expected: type[Exception]) -> None:
    """After a refusal each caller's read is sent alone; an unreachable server is reported to all of them."""
    assert await performed(Failing(2, error), expected, reads=True) == ["item", "item"]


# Batches, and cancellations of their task


def cancel_commits() -> None:
    """Cancel the task of the batches, as a closing event loop does."""
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "turnwise commits")
    task.cancel()


@pytest.mark.parametrize("between", [False, True])
async def test_cancelled_task_is_replaced(*, between: bool) -> None:
    """Before its first batch, and between two of them."""
    done: list[list[int]] = []

    async def perform(_connection: Any, items: Sequence[int]) -> Sequence[int]:
        done.append([*items])
        if between and len(done) == 1:
            cancel_commits()
        return items

    batches: StatementBatches[int, int] = StatementBatches(Direct(), perform)  # type: ignore[arg-type]
    adding = [asyncio.create_task(batches.add(item)) for item in range(100)]
    await asyncio.sleep(0)
    if not between:
        cancel_commits()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await batches.close()
    assert done == [[*range(64)], [*range(64, 100)]]
    assert await asyncio.gather(*adding) == [*range(100)]
