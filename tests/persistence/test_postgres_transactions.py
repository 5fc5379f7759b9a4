"""Changes of chats in PostgreSQL: reads and locks, the cache, and the state after a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import asyncpg
import pytest
from tests.persistence.conftest import OpenStore

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.postgres.timeouts import IDLE_IN_TRANSACTION_S
from turnwise.states.arguments import Erasing
from turnwise.states.errors import VersionMismatch
from turnwise.states.triggers import Interrupt, MessageErased, Renamed
from turnwise.testing.conformance import plans


async def blocked(beside: asyncpg.Connection) -> None:
    """Return when another transaction waits for this connection.

    Inside a transaction `pg_stat_activity` shows only who was connected when it was first read; `pg_locks` is
    current.
    """
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    with anyio.fail_after(60):
        while not await beside.fetchval(waiting):
            await anyio.lowlevel.checkpoint()


COMMIT, APPEND_EVENTS, READ = "-- name: commit", "-- name: append_events", "-- name: facts"
RUNNING = (plans.send("hello"), plans.claim())


class Wire:
    """Records statements; a test may run code before or after a statement with those words."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self.after: dict[str, Callable[[], Awaitable[None]]] = {}

    def of(self, words: str) -> list[str]:
        return [query for query in self.asked if query.startswith(words)]

    async def passed(self, hooks: dict[str, Callable[[], Awaitable[None]]], query: str) -> None:
        for words in [words for words in hooks if query.startswith(words)]:
            await hooks.pop(words)()


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    known = Wire()

    def watched(method: str) -> Callable[..., Awaitable[Any]]:
        ask = getattr(asyncpg.Connection, method)

        async def asking(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
            known.asked.append(query)
            await known.passed(known.before, query)
            answer = await ask(connection, query, *arguments, **options)
            await known.passed(known.after, query)
            return answer

        return asking

    for method in ("fetch", "execute", "fetchval", "fetchrow"):
        monkeypatch.setattr(asyncpg.Connection, method, watched(method))
    return known


def rename(title: str) -> plans.Move:
    return plans.move(Renamed(title=title))


async def erasing(store: PostgresStore, chat_id: str) -> plans.Move:
    (message, *_) = await store.history(chat_id)
    blank = message.model_copy(update={"parts": (), "erased": True})
    return plans.move(MessageErased(erasing=Erasing(messages=(blank,))))


@pytest.mark.parametrize("held", [False, True])
async def test_erasure_behind_another_decision_blanks(open_store: OpenStore, *, held: bool) -> None:
    store = await open_store()
    await plans.created(store, "chat", plans.send("a secret"), plans.claim())
    if not held:
        await store.change("chat", plans.plan(plans.reply("hi")))
    await store.change("chat", plans.plan(rename("other"), await erasing(store, "chat")))
    assert (await store.history("chat"))[0].text == ""
    assert "secret" not in repr(await store.raw_rows("chat"))
    assert store._cache.get("chat") is None, "what was erased is not kept in memory either"
    assert verify_records(await store.audit("chat")).ok
    assert (await store.change("chat", plans.plan(rename("again")))).facts.version > 2


async def test_erase_repair_and_delete_lock_before_reading(
    open_store: OpenStore, beside: asyncpg.Connection, wire: Wire
) -> None:
    """Otherwise a concurrent write would survive the change."""
    store = await open_store()
    await plans.created(store, "chat", *RUNNING, plans.reply("hi"))
    plan = plans.plan(await erasing(store, "chat"))
    for act, read in (
        (partial(store.change, "chat", plan), "SELECT chats.*"),
        (partial(store.repair, "chat", plans.idle), "SELECT * FROM chats"),
        (partial(store.delete, "chat", lambda _rest, _at: None, actor="client"), "-- name: records"),
    ):
        wire.asked.clear()
        async with anyio.create_task_group() as tasks, beside.transaction():
            await beside.execute("SELECT FROM chats FOR UPDATE")
            tasks.start_soon(act)
            await blocked(beside)
            assert not [query for query in wire.asked if query.strip().startswith(read)]
        assert [query for query in wire.asked if query.strip().startswith(read)]


async def test_cut_off_client_holds_up_no_other_chat(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """Its transaction locks one row, which is renewed once the lock is gone."""
    store = await open_store()
    for chat_id in "abc":
        await plans.created(store, chat_id, *RUNNING)
    async with beside.transaction():
        await beside.execute("SELECT FROM chats WHERE id = 'b' FOR UPDATE")
        assert await store.renew("worker", 30) == {"a": 1, "c": 1}
    assert await store.renew("worker", 30) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.deep
async def test_cut_off_claim_holds_others_up_for_seconds(open_store: OpenStore) -> None:
    """The server ends a transaction of a silent client after `IDLE_IN_TRANSACTION_S`; calls wait for longer."""
    store = await open_store()
    await plans.created(store, "chat", plans.send("hello"))
    cut_off = await store._pool.connect()
    assert await cut_off.fetchval("SHOW idle_in_transaction_session_timeout") == f"{IDLE_IN_TRANSACTION_S:.0f}s"
    await cut_off.execute("BEGIN")
    await cut_off.execute("SELECT FROM chats FOR UPDATE")
    await store.change("chat", plans.plan(plans.move(Interrupt())))
    cut_off.terminate()


async def test_repeated_races_end_in_a_lock(open_store: OpenStore, beside: asyncpg.Connection, wire: Wire) -> None:
    here, there = await open_store(), await open_store()
    await plans.created(here, "chat")
    lost: list[str] = []

    async def another_was_first() -> None:
        try:
            async with beside.transaction():
                await beside.execute("SELECT FROM chats FOR UPDATE NOWAIT")
        except asyncpg.LockNotAvailableError:
            return
        await there.change("chat", plans.plan(rename(f"first {len(lost)}")))
        lost.append("race")
        wire.before[COMMIT] = another_was_first

    wire.before[COMMIT] = another_was_first
    with anyio.fail_after(60):
        await here.change("chat", plans.plan(rename("last")))
    assert 1 < len(lost) < 10
    assert (await here.facts("chat")).version == 2 + len(lost)


async def test_fork_waits_for_an_erasure_of_its_parent(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """Otherwise the erasure would not name the fork, and the fork would repeat erased content."""
    store = await open_store()
    read_at = (await plans.created(store, "chat", plans.send("a secret"))).facts.version
    late: list[VersionMismatch] = []

    async def create() -> None:
        with pytest.raises(VersionMismatch) as mismatch:
            await store.create("fork", plans.plan(plans.create()), parent=("chat", read_at))
        late.append(mismatch.value)

    async with anyio.create_task_group() as tasks, beside.transaction():
        await beside.execute("SELECT FROM chats FOR UPDATE")
        tasks.start_soon(create)
        await blocked(beside)
        erasure = """{"trigger":"message_erased"}"""
        await beside.execute(
            "INSERT INTO audit (chat, version, hash, body, digests) SELECT number, 9, '', $1, '' FROM chats", erasure
        )
        await beside.execute("UPDATE chats SET version = 9")
    assert [(error.chat_id, error.version) for error in late] == [("chat", 9)]
