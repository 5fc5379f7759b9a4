"""Chats under a lease share statements: the neighbours of one that is refused, locked or changed do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import asyncpg
import pytest

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres.group_commit import GroupCommit, Unanswered
from turnwise.persistence.postgres.pool import Refused
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.protocol import DuplicateReceipt
from turnwise.states.errors import BrokenPromise, StaleLease, StoreError
from turnwise.states.names import ChatState
from turnwise.states.writes import RecordReceipt

CHATS = [f"chat-{number}" for number in range(20)]


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    async with anyio.create_task_group() as tasks:
        for chat_id in CHATS:
            tasks.start_soon(plans.created, store, chat_id, plans.send("hello"), plans.claim(), plans.start())
    yield store
    await store.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the first lines of the statements that are fetched from now on."""
    heard: list[str] = []
    fetch = asyncpg.Connection.fetch

    async def listening(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
        heard.append(query.partition("\n")[0])
        return await fetch(connection, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", listening)
    return heard


def say(text: str) -> plans.Plan:
    return plans.plan(plans.send(text))


async def test_chats_under_a_lease_are_committed_by_one_statement_and_not_read_again(
    store: PostgresStore, asked: list[str]
) -> None:
    """Twenty commits wait for two flushes of the disk at most, and for no answer to a question."""
    async with anyio.create_task_group() as tasks:
        for chat_id in CHATS:
            tasks.start_soon(store.change, chat_id, plans.plan(plans.reply("hi")))
    assert len(asked) <= 2
    assert all(line.startswith("-- name: commit") for line in asked)
    for chat_id in CHATS:
        assert [message.text for message in await store.history(chat_id)] == ["hello", "hi"]
        assert verify_records(await store.audit(chat_id)).ok


async def test_what_is_shown_of_many_jobs_is_journalled_by_one_statement(
    store: PostgresStore, asked: list[str]
) -> None:
    """Of a job that is over nothing is stored, and the others do not notice."""
    await store.change("chat-0", plans.plan(plans.reply("hi")))
    asked.clear()
    stale: list[str] = []

    async def show(chat_id: str) -> None:
        try:
            await store.journal(chat_id, 1, ChatState.streaming, [part("h"), part("i")])
        except StaleLease:
            stale.append(chat_id)

    async with anyio.create_task_group() as tasks:
        for chat_id in CHATS:
            tasks.start_soon(show, chat_id)
    assert stale == ["chat-0"]
    assert len([line for line in asked if line.startswith("-- name: journal")]) <= 2
    for chat_id in CHATS[1:]:
        assert [event.part.delta for event in await store.shown(chat_id, 1, 1)] == ["h", "i"]
    assert await store.shown("chat-0", 1, 1) == []


async def test_a_chat_that_is_refused_touches_no_neighbour(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message of a known `client_id` makes the whole statement fail: then each goes alone."""
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


@pytest.mark.parametrize("words", ["-- name: commit", "-- name: journal"])
async def test_a_chat_that_another_holds_locked_keeps_no_neighbour_waiting(
    store: PostgresStore, beside: asyncpg.Connection, asked: list[str], words: str
) -> None:
    """It waits alone, and is written once the lock is gone; no statement of the others was given up."""
    done: list[str] = []

    async def write(chat_id: str) -> None:
        if words == "-- name: commit":
            await store.change(chat_id, say("more"))
        else:
            await store.journal(chat_id, 1, ChatState.streaming, [part("h")])
        done.append(chat_id)

    async with anyio.create_task_group() as tasks, beside.transaction():
        await beside.execute("SELECT FROM chats WHERE id = 'chat-7' FOR UPDATE")
        async with anyio.create_task_group() as others:
            tasks.start_soon(write, "chat-7")
            for chat_id in CHATS:
                if chat_id != "chat-7":
                    others.start_soon(write, chat_id)
        assert sorted(done) == sorted(set(CHATS) - {"chat-7"})
        assert len([line for line in asked if line.startswith(words)]) <= 2
    assert done[-1] == "chat-7"


async def test_what_is_remembered_is_believed_only_if_the_database_says_the_same(
    store: PostgresStore, postgres_url: str, beside: asyncpg.Connection
) -> None:
    """Another process has changed the chat; or someone its row, by hand."""
    other = PostgresStore(postgres_url)
    await other.open()
    renamed = await other.change("chat-0", say("from elsewhere"))
    await other.close()
    committed = await store.change("chat-0", say("from here"))
    assert committed.facts.version == renamed.facts.version + 1
    assert [queued.text for queued in committed.facts.queue] == ["from elsewhere", "from here"]
    await beside.execute("UPDATE chats SET token = 9 WHERE id = 'chat-1'")
    with pytest.raises(BrokenPromise, match="lease_is_the_newest"):
        await store.change("chat-1", say("hello?"))


class Direct:
    """A pool whose connection is always there."""

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(None)


@pytest.mark.parametrize("times", [1, 3])
async def test_a_batch_goes_on_without_the_caller_that_began_it(times: int) -> None:
    """Its own item is stored with the rest of its batch; whoever came meanwhile is answered."""
    begun, go_on = anyio.Event(), anyio.Event()
    stored: list[list[str]] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        begun.set()
        await go_on.wait()
        stored.append([*items])
        return [item.upper() for item in items]

    batches: GroupCommit[str, str] = GroupCommit(Direct(), perform)  # type: ignore[arg-type]
    first = asyncio.create_task(batches.add("first"))
    beside = asyncio.create_task(batches.add("beside"))
    await begun.wait()
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


async def test_who_is_told_to_end_still_learns_what_became_of_an_item_and_closing_waits_for_it() -> None:
    """What is stored has to be told to those who follow, although its author is leaving."""
    begun, go_on = anyio.Event(), anyio.Event()
    answered: list[str] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        begun.set()
        await go_on.wait()
        return [item.upper() for item in items]

    batches: GroupCommit[str, str] = GroupCommit(Direct(), perform)  # type: ignore[arg-type]

    async def add() -> None:
        answered.append(await batches.add("item"))

    async def close() -> None:
        await batches.close()
        answered.append("closed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add)
        await begun.wait()
        tasks.start_soon(close)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        asyncio.get_running_loop().call_later(0.01, go_on.set)
    assert sorted(answered) == ["ITEM", "closed"]


async def test_whose_batch_somebody_cancels_has_to_find_out_what_became_of_it() -> None:
    """As an event loop does that ends; what came later is stored."""
    begun = anyio.Event()
    stored: list[str] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        if begun.is_set():
            stored.extend(items)
            return items
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    batches: GroupCommit[str, str] = GroupCommit(Direct(), perform)  # type: ignore[arg-type]
    first = asyncio.create_task(batches.add("first"))
    await begun.wait()
    later = asyncio.create_task(batches.add("later"))
    await anyio.wait_all_tasks_blocked()
    (commits,) = (task for task in asyncio.all_tasks() if task.get_name() == "turnwise commits")
    commits.cancel()
    with pytest.raises(Unanswered):
        await first
    assert await later == "later"
    assert stored == ["later"]
    await batches.close()


async def test_who_was_answered_joins_the_next_batch_of_those_who_wait() -> None:
    begun, go_on = anyio.Event(), anyio.Event()
    stored: list[list[str]] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        stored.append([*items])
        begun.set()
        await go_on.wait()
        return items

    batches: GroupCommit[str, str] = GroupCommit(Direct(), perform)  # type: ignore[arg-type]

    async def add_twice(name: str) -> None:
        await batches.add(f"{name} 1")
        await batches.add(f"{name} 2")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add_twice, "a")
        tasks.start_soon(add_twice, "b")
        await begun.wait()
        tasks.start_soon(batches.add, "c")
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    await batches.close()
    assert [sorted(batch) for batch in stored] == [["a 1", "b 1"], ["a 2", "b 2", "c"]]


async def test_closing_waits_for_all_that_was_accepted_even_when_it_is_cancelled() -> None:
    stored: list[str] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        await anyio.lowlevel.checkpoint()
        stored.extend(items)
        return items

    batches: GroupCommit[str, str] = GroupCommit(Direct(), perform)  # type: ignore[arg-type]
    await batches.close()
    adding = asyncio.create_task(batches.add("item"))
    await asyncio.sleep(0)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await batches.close()
    assert stored == ["item"]
    assert await adding == "item"


class Failing:
    """A pool that fails before, or after, it has called what it was given, and maybe calls it again."""

    def __init__(self, calls: int, error: Exception) -> None:
        self.calls = calls
        self.error = error

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        for _ in range(self.calls):
            await work(None)
        raise self.error


@pytest.mark.parametrize(
    ("calls", "error", "told"),
    [
        (0, StoreError("away"), StoreError),
        (0, ValueError("odd"), Unanswered),
        (1, StoreError("away"), Unanswered),
        (1, ValueError("odd"), Unanswered),
        (2, StoreError("away"), Unanswered),
    ],
)
async def test_nothing_was_stored_is_said_only_of_what_was_never_sent(
    calls: int, error: Exception, told: type[Exception]
) -> None:
    """And what was sent once is not sent again: its first statement may have been committed."""
    performed: list[str] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        performed.extend(items)
        return items

    batches: GroupCommit[str, str] = GroupCommit(Failing(calls, error), perform)  # type: ignore[arg-type]
    with pytest.raises(told):
        await batches.add("item")
    assert performed == ["item"] * min(calls, 1)


class Patient:
    """A pool that calls again, a number of times, while the server may only be read."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        for _ in range(self.calls - 1):
            with suppress(asyncpg.ReadOnlySQLTransactionError):
                return await work(None)
        try:
            return await work(None)
        except asyncpg.ReadOnlySQLTransactionError as error:
            raise Refused("this server is read-only", passing=True) from error


@pytest.mark.parametrize("refusals", [3, 4])
async def test_what_a_read_only_server_refused_is_sent_again_and_was_not_stored(refusals: int) -> None:
    tries: list[Sequence[str]] = []

    async def perform(_connection: Any, items: Sequence[str]) -> Sequence[str]:
        tries.append(items)
        if len(tries) <= refusals:
            raise asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction")
        return items

    batches: GroupCommit[str, str] = GroupCommit(Patient(4), perform)  # type: ignore[arg-type]
    if refusals == 3:
        assert await batches.add("item") == "item"
    else:
        with pytest.raises(Refused, match="nothing was written"):
            await batches.add("item")
    assert tries == [["item"]] * 4


@pytest.mark.parametrize("patience", [0.0, 0.3])
async def test_while_the_server_may_only_be_read_nothing_is_in_doubt(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """A failover takes longer than the patience: whoever runs the chat may try again, as nothing was stored."""
    monkeypatch.setattr(pool, "PATIENCE", patience)
    settings = store._pool._settings
    monkeypatch.setitem(settings, "default_transaction_read_only", "on")
    await store._pool._opened().expire_connections()
    for write in (
        partial(store.change, "chat-0", say("hello?")),
        partial(store.journal, "chat-0", 1, ChatState.streaming, [part("h")]),
    ):
        with pytest.raises(StoreError, match="read-only") as refused:
            await write()
        assert (refused.value.passing, refused.value.written) == (True, "no")
    monkeypatch.delitem(settings, "default_transaction_read_only")
    await store.journal("chat-0", 1, ChatState.streaming, [part("h")])
    await store.change("chat-0", say("hello?"))
    assert [queued.text for queued in (await store.facts("chat-0")).queue] == ["hello?"]
    assert [event.part.delta for event in await store.shown("chat-0", 1, 1)] == ["h"]
