"""The server commits and its answer is lost: callers still learn the outcome, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import anyio.lowlevel
import asyncpg
import pytest

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.blobs.protocol import Blob
from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.protocol import Committed
from turnwise.states.errors import StoreError
from turnwise.states.names import ChatState
from turnwise.states.triggers import Imported
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.importing import exported_lines, read_chat
from turnwise.testing.conformance.plans import part

Lose = Callable[..., None]


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Lose:
    """Lose the answer to the next statement with this start: it is executed, and the connection ends."""

    def losing(method: str, words: str, meanwhile: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint) -> None:
        left = [words]
        ask = getattr(asyncpg.Connection, method)

        async def asked(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
            answer = await ask(connection, query, *arguments, **options)
            if left and query.startswith(words):
                left.clear()
                await meanwhile()
                connection.terminate()
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
            return answer

        monkeypatch.setattr(asyncpg.Connection, method, asked)

    return losing


COMMIT, APPEND_EVENTS = "-- name: commit", "-- name: append_events"
BLOB: Final = Blob("0" * 64, 1)


async def test_change_with_lost_answer_commits_once(store: PostgresStore, lose: Lose) -> None:
    """The caller gets the result of the first commit."""
    await plans.created(store, "chat")
    lose("fetch", COMMIT)
    committed = await store.change("chat", plans.plan(plans.send("hello")))
    assert committed.facts == await store.facts("chat")
    assert committed.facts.version == 2
    assert [message.text for message in await store.history("chat")] == ["hello"]
    assert await store.events("chat", after=1, limit=100) == list(committed.events)
    assert verify_records(await store.audit("chat")).ok


@pytest.mark.parametrize("in_batch", [False, True])
async def test_create_with_lost_answer_creates_once(store: PostgresStore, lose: Lose, *, in_batch: bool) -> None:
    """The id is not reported as taken: the chat is the caller's own."""
    if in_batch:  # the first answer holds the server's time; without it, each chat is created alone
        await plans.created(store, "other")
    lose("execute", "COMMIT")
    committed = await store.create("chat", plans.plan(plans.create()))
    assert committed.facts == await store.facts("chat")


def take_in(store: PostgresStore) -> Awaitable[Committed]:
    return store.import_chat(read_chat(exported_lines()), plans.plan(plans.move(Imported())))


async def test_import_with_lost_answer_imports_once(store: PostgresStore, lose: Lose) -> None:
    """The id is not reported as taken: it is the caller's own import."""
    lose("execute", "COMMIT")
    committed = await take_in(store)
    assert committed.facts == await store.facts(committed.facts.chat_id)


async def test_claim_with_lost_answer_reaches_its_worker(store: PostgresStore, lose: Lose) -> None:
    """Otherwise the worker would renew leases of chats that it does not run."""
    for chat_id in ("a", "b"):
        await plans.created(store, chat_id, plans.send("hello"))
    lose("execute", "COMMIT")
    claimed = await store.claim(plans.plan(plans.claim("mine")), runs=plans.RUNS, limit=10)
    tokens = {committed.facts.chat_id: committed.facts.fence for committed in claimed}
    assert await store.renew("mine", 30) == tokens == {"a": 1, "b": 1}


async def test_append_with_lost_answer_stores_once(store: PostgresStore, lose: Lose) -> None:
    """The parts have the numbers and the time of the first commit."""
    await plans.created(store, "chat", plans.send("hello"), plans.claim())
    events = await store.events("chat", after=0, limit=100)
    lose("fetch", APPEND_EVENTS)
    stored = await store.append_events("chat", 1, ChatState.streaming, [part("h"), part("i")])
    assert await store.events("chat", after=0, limit=100) == [*events, *stored]


async def test_batch_with_lost_answer_reports_each_commit(store: PostgresStore, lose: Lose) -> None:
    """Leased chats share a statement; its stored changes are not stored again."""
    for chat_id in ("a", "b", "c"):
        await plans.created(store, chat_id, plans.send("hello"), plans.claim())
    lose("fetch", COMMIT)
    done: dict[str, Committed] = {}

    async def write(chat_id: str) -> None:
        done[chat_id] = await store.change(chat_id, plans.plan(plans.reply(f"hi {chat_id}")), shown=[part("h")])

    async with anyio.create_task_group() as tasks:
        for chat_id in ("a", "b", "c"):
            tasks.start_soon(write, chat_id)
    for chat_id, committed in done.items():
        assert committed.facts == await store.facts(chat_id)
        assert [message.text for message in await store.history(chat_id)] == ["hello", f"hi {chat_id}"]
        records = await store.audit(chat_id)
        assert [record.version for record in records] == list(range(1, committed.facts.version + 1))
        assert verify_records(records).ok


WRITES: Final[dict[str, tuple[str, str, Callable[[PostgresStore], Awaitable[object]]]]] = {
    "a change": ("fetch", COMMIT, lambda store: store.change("chat", plans.plan(plans.send("lost")))),
    "a creation": ("execute", "COMMIT", lambda store: store.create("another", plans.plan(plans.create()))),
    "an import": ("execute", "COMMIT", take_in),
    "a repair": ("execute", "COMMIT", lambda store: store.repair("chat", plans.plan(plans.send("lost")))),
    "a deletion": ("execute", "COMMIT", lambda store: store.delete("chat", lambda _rest, _at: None, actor="me")),
    "an event": (
        "fetch",
        APPEND_EVENTS,
        lambda store: store.append_events("running", 1, ChatState.streaming, [part("h")]),
    ),
    "a shared change": ("fetch", COMMIT, lambda store: store.change("running", plans.plan(plans.reply("lost")))),
    "a renewal": ("fetch", "-- name: renew", lambda store: store.renew("worker", 30)),
    "a file held": ("execute", "COMMIT", lambda store: store.note_file("chat", BLOB, kept_in="here")),
    "a file let go": ("execute", "COMMIT", lambda store: store.settle_unreferenced(1)),
}


@pytest.mark.deep
@pytest.mark.parametrize("then", ["stays away", "refuses", "is closed"])
@pytest.mark.parametrize("write", WRITES)
async def test_unknown_outcome_is_reported_as_unknown(
    store: PostgresStore,
    beside: asyncpg.Connection,
    lose: Lose,
    monkeypatch: pytest.MonkeyPatch,
    write: str,
    then: str,
) -> None:
    """An error that says 'nothing was written' would be wrong."""
    await plans.created(store, "chat")
    await plans.created(store, "running", plans.send("hello"), plans.claim())
    monkeypatch.setattr(pool, "RETRY_S", 0.05)
    refusing = "".join(f"ALTER TABLE {table} RENAME TO no_{table};" for table in ("chats", "unreferenced_files"))

    async def answered() -> None:
        if then == "refuses":
            await beside.execute(refusing)
        elif then == "is closed":
            monkeypatch.setattr(pool.anyio, "sleep", close)
        else:
            monkeypatch.setattr(asyncpg.pool.Pool, "acquire", away)

    async def away(_pool: object) -> None:
        raise ConnectionRefusedError

    async def close(_pause: float) -> None:
        await store._pool.close()  # its engine is left, or the call would go on

    method, words, written = WRITES[write]
    lose(method, words, answered)
    with pytest.raises(StoreError, match="not known") as caught:
        await written(store)
    assert "nothing was written" not in caught.value.problem
    assert caught.value.written == "unknown"
