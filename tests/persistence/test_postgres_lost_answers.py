"""The server commits and its answer is lost: the caller is told the truth all the same, and nothing happens twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import anyio
import anyio.lowlevel
import asyncpg
import pytest

from support.postgres_locks import blocked
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.chat_file.reader import read_chat
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.conformance.importing import exported_lines
from turnwise.persistence.files.protocol import Blob
from turnwise.persistence.postgres import pool, transactions
from turnwise.persistence.postgres.commits import landed
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.protocol import Committed
from turnwise.states.errors import StoreError
from turnwise.states.names import ChatState
from turnwise.states.triggers import Imported

Lose = Callable[..., None]


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Lose:
    """Lose the answer to the next statement that starts in these words: it is done, and the connection ends."""

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


COMMIT, JOURNAL = "-- name: commit", "-- name: journal"
BLOB: Final = Blob("0" * 64, 1)


async def test_a_change_is_committed_once_and_told(store: PostgresStore, lose: Lose) -> None:
    """What the caller gets is what was stored the first time."""
    await plans.created(store, "chat")
    lose("fetch", COMMIT)
    committed = await store.change("chat", plans.plan(plans.send("hello")))
    assert committed.facts == await store.facts("chat")
    assert committed.facts.version == 2
    assert [message.text for message in await store.history("chat")] == ["hello"]
    assert await store.events("chat", after=1, limit=100) == list(committed.events)
    assert verify_records(await store.audit("chat")).ok


async def test_a_refusal_by_a_key_is_no_refusal_of_what_was_stored(store: PostgresStore, lose: Lose) -> None:
    """The receipt that stands in the way of the second try is the first try's own."""
    await plans.created(store, "chat")
    lose("fetch", COMMIT)
    await store.change("chat", plans.plan(plans.send("hello", client_id="c1")))
    receipt = await store.receipt("chat", "c1")
    assert receipt is not None
    assert [message.id for message in await store.history("chat")] == [receipt.message_id]


async def test_a_chat_is_created_once(store: PostgresStore, lose: Lose) -> None:
    """The id is not said to be taken: it is the caller's own chat."""
    lose("execute", "COMMIT")
    committed = await store.create("chat", plans.plan(plans.create()))
    assert committed.facts == await store.facts("chat")


def take_in(store: PostgresStore) -> Awaitable[Committed]:
    return store.import_chat(read_chat(exported_lines()), plans.plan(plans.move(Imported())))


async def test_a_chat_is_taken_in_once(store: PostgresStore, lose: Lose) -> None:
    """The id is not said to be taken: it is the chat that the caller brought."""
    lose("execute", "COMMIT")
    committed = await take_in(store)
    assert committed.facts == await store.facts(committed.facts.chat_id)


async def test_a_claim_is_known_to_its_worker(store: PostgresStore, lose: Lose) -> None:
    """Else the worker would renew leases of chats that nobody runs."""
    for chat_id in ("a", "b"):
        await plans.created(store, chat_id, plans.send("hello"))
    lose("execute", "COMMIT")
    claimed = await store.claim(plans.plan(plans.claim("mine")), runs=plans.RUNS, limit=10)
    tokens = {committed.facts.chat_id: committed.facts.fence for committed in claimed}
    assert await store.renew("mine", 30) == tokens == {"a": 1, "b": 1}


async def test_a_claim_that_had_to_be_stored_chat_by_chat_tells_of_each_once(
    store: PostgresStore, beside: asyncpg.Connection, lose: Lose
) -> None:
    """A record of a version to come has broken the statement that the claims share."""
    for chat_id in ("a", "b"):
        await plans.created(store, chat_id, plans.send("hello"))
    await beside.execute(
        "INSERT INTO audit (chat_id, version, body) SELECT chat_id, version + 1, body FROM audit"
        " WHERE chat_id = 'b' AND version = 2"
    )
    lose("execute", "COMMIT")
    claimed = await store.claim(plans.plan(plans.claim("mine")), runs=plans.RUNS, limit=10)
    assert [committed.facts.chat_id for committed in claimed] == ["a"]
    assert await store.renew("mine", 30) == {"a": 1}


async def test_who_looks_for_lost_commits_locks_the_chats_in_the_order_of_their_ids(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """Two who look for the same ones never wait for each other in a ring."""
    for chat_id in ("a", "b"):
        await plans.created(store, chat_id)
    sent: list[Any] = [SimpleNamespace(chat_id=chat_id, row=SimpleNamespace(version=9)) for chat_id in ("b", "a")]

    async def look(connection: asyncpg.Connection) -> list[Committed]:
        async with connection.transaction():
            return await landed(connection, sent)

    async with anyio.create_task_group() as tasks, beside.transaction():
        await beside.execute("SELECT FROM chats WHERE id = 'a' FOR UPDATE")
        tasks.start_soon(store._pool.run, look)
        await blocked(beside)
        await beside.execute("SELECT FROM chats WHERE id = 'b' FOR UPDATE NOWAIT")


async def test_what_was_shown_is_journalled_once(store: PostgresStore, lose: Lose) -> None:
    """With the numbers and the time that it was given."""
    await plans.created(store, "chat", plans.send("hello"), plans.claim(), plans.start())
    told = await store.events("chat", after=0, limit=100)
    lose("fetch", JOURNAL)
    stored = await store.journal("chat", 1, ChatState.streaming, [part("h"), part("i")])
    assert await store.events("chat", after=0, limit=100) == [*told, *stored]


async def test_chats_whose_commits_are_lost_together_each_learn_of_their_own(store: PostgresStore, lose: Lose) -> None:
    """Under a lease they share a statement; what it stored is not stored again."""
    for chat_id in ("a", "b", "c"):
        await plans.created(store, chat_id, plans.send("hello"), plans.claim(), plans.start())
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
    "an event": ("fetch", JOURNAL, lambda store: store.journal("running", 1, ChatState.streaming, [part("h")])),
    "a shared change": ("fetch", COMMIT, lambda store: store.change("running", plans.plan(plans.reply("lost")))),
    "a renewal": ("fetch", "-- name: renew", lambda store: store.renew("worker", 30)),
    "a file held": ("execute", "COMMIT", lambda store: store.note_file("chat", BLOB, kept_in="here")),
    "a file let go": ("execute", "DELETE FROM loose_files", lambda store: store.settle_loose(1)),
}


@pytest.mark.parametrize("then", ["stays away", "refuses", "is closed"])
@pytest.mark.parametrize("write", WRITES)
async def test_without_any_answer_the_caller_is_told_that_nothing_is_known(
    store: PostgresStore,
    beside: asyncpg.Connection,
    lose: Lose,
    monkeypatch: pytest.MonkeyPatch,
    write: str,
    then: str,
) -> None:
    """An error that says 'nothing was written' would be a lie."""
    await plans.created(store, "chat")
    await plans.created(store, "running", plans.send("hello"), plans.claim(), plans.start())
    monkeypatch.setattr(pool, "PATIENCE", 0.05)
    refusing = "".join(f"ALTER TABLE {table} RENAME TO no_{table};" for table in ("chats", "loose_files"))

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


@pytest.mark.parametrize("late", ["before the chat is read again", "before it is stored again"])
async def test_a_statement_that_the_server_takes_up_late_is_done_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """Its session was frozen, or its bytes were on their way, while the caller looked whether it was stored."""
    await plans.created(store, "chat")
    delayed: list[tuple[Any, ...]] = []
    taken_up: list[Any] = []
    ask = asyncpg.Connection.fetch

    async def asked(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
        commits = query.startswith(COMMIT)
        if commits and not delayed:
            delayed.append((query, *arguments))
            connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        if delayed and not taken_up and commits is (late == "before it is stored again"):
            frozen = await store._pool.connect()
            taken_up.append(await ask(frozen, *delayed[0]))
            await frozen.close()
        return await ask(connection, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", asked)
    committed = await store.change("chat", plans.plan(plans.send("hello")))
    assert taken_up
    assert committed.facts == await store.facts("chat")
    assert committed.facts.version == 2
    assert [message.text for message in await store.history("chat")] == ["hello"]
    assert committed.facts.queue == ()
    assert verify_records(await store.audit("chat")).ok


async def test_parts_that_the_server_takes_up_late_are_stored_once(
    store: PostgresStore, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session was frozen in the middle of the statement: who looks whether it was done waits for its end."""
    await plans.created(store, "chat", plans.send("hello"), plans.claim(), plans.start())
    told = await store.events("chat", after=0, limit=100)
    frozen = beside.transaction()
    ask, begun = asyncpg.Connection.fetch, anyio.Event()

    async def asked(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
        if query.startswith(JOURNAL) and not begun.is_set():
            await frozen.start()
            await ask(beside, query, *arguments)
            begun.set()
            connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return await ask(connection, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", asked)
    stored: list[object] = []

    async def show() -> None:
        stored.extend(await store.journal("chat", 1, ChatState.streaming, [part("h"), part("i")]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show)
        await begun.wait()
        await blocked(beside)
        await frozen.commit()
    assert await store.events("chat", after=0, limit=100) == [*told, *stored]
    assert len(stored) == 2


async def test_a_creation_that_the_server_finishes_late_is_the_callers_own(
    store: PostgresStore, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session was frozen before it committed: there is no row yet to look for, only an id that is taken."""
    frozen, lost = beside.transaction(), anyio.Event()
    created: list[Committed] = []
    execute, fetch = asyncpg.Connection.execute, asyncpg.Connection.fetch

    async def executed(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
        if query == transactions._SQL["blank"] and not lost.is_set():
            await frozen.start()
            connection = beside
        return await execute(connection, query, *arguments, **options)

    async def fetched(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
        if query.startswith(COMMIT) and not lost.is_set():
            await fetch(beside, query, *arguments)
            lost.set()
            connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return await fetch(connection, query, *arguments, **options)

    async def create() -> None:
        created.append(await store.create("chat", plans.plan(plans.create())))

    monkeypatch.setattr(asyncpg.Connection, "execute", executed)
    monkeypatch.setattr(asyncpg.Connection, "fetch", fetched)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        await lost.wait()
        await blocked(beside)
        await frozen.commit()
    assert [committed.facts for committed in created] == [await store.facts("chat")]
    assert verify_records(await store.audit("chat")).ok
