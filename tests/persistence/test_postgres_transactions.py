"""Changes of chats in PostgreSQL: what is read and locked first, what is cached, and what a failure leaves."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest

from support.postgres_locks import blocked, somebody_waits
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.chat_file.reader import read_chat
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import contents, part
from turnwise.persistence.conformance.importing import exported_lines
from turnwise.persistence.files.protocol import Blob, FilesElsewhere
from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres import queries as reading
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.states.arguments import Erasing
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable, StaleLease, StoreError, VersionMismatch
from turnwise.states.names import ChatState
from turnwise.states.triggers import Archived, Imported, MessageErased, Renamed

OpenStore = Callable[..., Awaitable[PostgresStore]]
COMMIT, JOURNAL, READ = "-- name: commit", "-- name: journal", "-- name: facts"
RUNNING = (plans.send("hello"), plans.claim(), plans.start())


@pytest.fixture
async def open_store(postgres_url: str) -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as stack:

        async def opened(**options: Any) -> PostgresStore:
            store = PostgresStore(postgres_url, **options)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield opened


class Wire:
    """What is asked of the server; a test may do something before or after a statement of those words."""

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


def fails(error: Exception) -> Callable[[], Awaitable[None]]:
    async def raising() -> None:
        raise error

    return raising


LOST = asyncpg.ConnectionDoesNotExistError("gone")


def rename(title: str) -> plans.Move:
    return plans.move(Renamed(title=title))


async def erasing(store: PostgresStore, chat_id: str) -> plans.Move:
    (message, *_) = await store.history(chat_id)
    blank = message.model_copy(update={"parts": (), "erased": True})
    return plans.move(MessageErased(erasing=Erasing(messages=(blank,))))


@pytest.mark.parametrize("held", [False, True])
async def test_an_erasure_blanks_also_behind_another_decision_and_under_a_lease(
    open_store: OpenStore, *, held: bool
) -> None:
    store = await open_store()
    await plans.created(store, "chat", plans.send("a secret"), plans.claim(), plans.start())
    if not held:
        await store.change("chat", plans.plan(plans.reply("hi")))
    await store.change("chat", plans.plan(rename("other"), await erasing(store, "chat")))
    assert (await store.history("chat"))[0].text == ""
    assert "secret" not in repr(await store.raw_rows("chat"))
    assert store._transactions._cache.get("chat") is None, "what was erased is not kept in memory either"
    assert verify_records(await store.audit("chat")).ok
    assert (await store.change("chat", plans.plan(rename("again")))).facts.version > 2


async def test_an_erasure_that_fails_has_blanked_nothing(open_store: OpenStore, wire: Wire) -> None:
    store = await open_store()
    await plans.created(store, "chat", *RUNNING, plans.reply("hi"))
    plan = plans.plan(await erasing(store, "chat"))
    before = await contents(store, "chat")
    wire.before[COMMIT] = fails(asyncpg.DiskFullError("full"))
    with pytest.raises(StoreError, match="disk is full"):
        await store.change("chat", plan)
    assert await contents(store, "chat") == before


async def test_who_erases_repairs_or_deletes_reads_the_rows_only_when_nobody_else_holds_the_chat(
    open_store: OpenStore, beside: asyncpg.Connection, wire: Wire
) -> None:
    """What another is about to write would be left as it is."""
    store = await open_store()
    await plans.created(store, "chat", *RUNNING, plans.reply("hi"))
    plan = plans.plan(await erasing(store, "chat"))
    for act, read in (
        (partial(store.change, "chat", plan), "-- name: chat("),
        (partial(store.repair, "chat", plans.idle), "SELECT * FROM chats"),
        (partial(store.delete, "chat", lambda _rest, _at: None, actor="client"), "SELECT count(*) FROM audit"),
    ):
        wire.asked.clear()
        async with anyio.create_task_group() as tasks, beside.transaction():
            await beside.execute("SELECT FROM chats FOR UPDATE")
            tasks.start_soon(act)
            await blocked(beside)
            assert not [query for query in wire.asked if query.strip().startswith(read)]
        assert [query for query in wire.asked if query.strip().startswith(read)]


async def test_who_loses_the_race_too_often_locks_the_chat(
    open_store: OpenStore, beside: asyncpg.Connection, wire: Wire
) -> None:
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


async def test_a_chat_that_nobody_holds_is_read_first_and_parsed_only_if_it_has_changed(
    open_store: OpenStore, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await open_store(), await open_store()
    await plans.created(here, "chat")
    parsed: list[object] = []
    facts_in = reading.facts_in
    monkeypatch.setattr(reading, "facts_in", lambda row: (parsed.append(row), facts_in(row))[1])
    wire.asked.clear()
    await here.change("chat", plans.plan(rename("one")))
    heads = [query.partition("(")[0].partition("\n")[0] for query in wire.asked]
    assert [head for head in heads if head in {READ, COMMIT}] == [READ, COMMIT]
    assert parsed == []
    await there.change("chat", plans.plan(rename("two")))
    assert len(parsed) == 1
    await here.change("chat", plans.plan(rename("three")))
    assert len(parsed) == 2


async def test_a_chat_that_has_moved_on_elsewhere_refuses_nobody_by_where_it_is_remembered(
    open_store: OpenStore,
) -> None:
    here, there = await open_store(), await open_store()
    await plans.created(here, "chat", *RUNNING)
    await there.change("chat", plans.plan(plans.reply("hi")))
    assert here._transactions._cache.get("chat") is not None
    assert (await here.change("chat", plans.plan(plans.move(Archived())))).facts.archived


async def test_what_is_shown_costs_one_statement_each_time(open_store: OpenStore, wire: Wire) -> None:
    store = await open_store()
    await plans.created(store, "chat", *RUNNING)
    for _ in range(3):
        wire.asked.clear()
        await store.journal("chat", 1, ChatState.streaming, [part("h"), part("i")])
        assert len(wire.of(JOURNAL)) == 1


async def test_nothing_to_show_is_shown_by_the_holder_alone(open_store: OpenStore) -> None:
    store = await open_store()
    await plans.created(store, "chat", *RUNNING)
    before = await contents(store, "chat")
    assert await store.journal("chat", 1, ChatState.streaming, []) == ()
    for token, state in ((2, ChatState.streaming), (1, ChatState.compacting)):
        with pytest.raises(StaleLease):
            await store.journal("chat", token, state, [])
    with pytest.raises(ChatNotFound):
        await store.journal("nobody", 1, ChatState.streaming, [])
    assert await contents(store, "chat") == before


async def test_what_is_shown_of_a_chat_that_was_never_read_here_is_stored_once(
    open_store: OpenStore, wire: Wire
) -> None:
    """The answer to the end of its own transaction is lost."""
    here, there = await open_store(), await open_store()
    await plans.created(here, "chat", *RUNNING)
    told = await here.events("chat", after=0, limit=100)
    wire.after["COMMIT"] = fails(LOST)
    stored = await there.journal("chat", 1, ChatState.streaming, [part("h"), part("i")])
    assert "COMMIT" not in wire.after
    assert await here.events("chat", after=0, limit=100) == [*told, *stored]


async def test_the_time_of_a_clock_that_is_handed_in_is_that_of_every_commit(open_store: OpenStore) -> None:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    here, there = await open_store(now=lambda: time), await open_store(now=lambda: time)
    assert (await here.create("chat", plans.plan(plans.create()))).at == time
    for made in RUNNING:
        time += timedelta(hours=1)
        committed = await here.change("chat", plans.plan(made))
        assert committed.at == time
    time += timedelta(hours=1)
    assert [event.at for event in await there.journal("chat", 1, ChatState.streaming, [part("h")])] == [time]
    time += timedelta(hours=1)
    committed = await here.change("chat", plans.plan(plans.reply("hi")))
    assert {event.at for event in committed.events} == {time}
    time += timedelta(hours=1)
    assert (await here.repair("chat", plans.idle)).at == time
    time += timedelta(hours=1)
    traveller = read_chat(exported_lines())
    assert (await here.import_chat(traveller, plans.plan(plans.move(Imported())))).at == time
    time += timedelta(hours=1)
    permitted: list[datetime] = []
    tombstone = await here.delete("traveller", lambda _, at: permitted.append(at), actor="me")
    assert (tombstone.deleted_at, permitted) == (time, [time])


@pytest.mark.parametrize("moves", [(), RUNNING], ids=["idle", "held"])
async def test_a_plan_that_decides_nothing_is_told_where_the_chat_stands(
    open_store: OpenStore, moves: tuple[plans.Move, ...]
) -> None:
    store = await open_store()
    nothing = await store.create("chat", plans.idle)
    assert (nothing.facts.chat_id, nothing.decisions, nothing.events) == ("chat", (), ())
    with pytest.raises(ChatNotFound):
        await store.facts("chat")
    await plans.created(store, "chat", *moves)
    before = await contents(store, "chat")
    for change in (store.change, store.repair):
        committed = await change("chat", plans.idle)
        assert (committed.facts, committed.before) == (before[0], before[0])
        assert (committed.decisions, committed.events) == ((), ())
    assert await contents(store, "chat") == before


@pytest.mark.parametrize("words", [COMMIT, JOURNAL])
async def test_closing_waits_for_what_was_accepted(open_store: OpenStore, wire: Wire, words: str) -> None:
    """Also for what waits behind a statement that is under way."""
    store, other = await open_store(), await open_store()
    for chat_id in ("a", "b"):
        await plans.created(store, chat_id, *RUNNING)
    go_on = anyio.Event()
    wire.before[words] = go_on.wait

    async def accept(chat_id: str) -> None:
        if words == COMMIT:
            await store.change(chat_id, plans.plan(plans.reply("hi")), shown=[part("h")])
        else:
            await store.journal(chat_id, 1, ChatState.streaming, [part("h")])

    async with anyio.create_task_group() as tasks:
        for chat_id in ("a", "b"):
            tasks.start_soon(accept, chat_id)
            await anyio.wait_all_tasks_blocked()
        tasks.start_soon(store.close)
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    for chat_id in ("a", "b"):
        assert len(await other.shown(chat_id, 1, 1)) == 1


async def test_a_server_that_goes_away_before_anything_was_sent_has_stored_nothing_for_sure(
    open_store: OpenStore, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store()
    await plans.created(store, "chat")
    monkeypatch.setattr(pool, "PATIENCE", 0)
    wire.before[READ] = fails(LOST)
    with pytest.raises(StoreError, match=r"cannot be reached.*nothing was written"):
        await store.change("chat", plans.plan(rename("lost")))


async def test_a_record_that_cannot_be_read_after_a_lost_answer_is_told(
    open_store: OpenStore, beside: asyncpg.Connection, wire: Wire
) -> None:
    """Nobody can say whether the commit is the caller's own."""
    store = await open_store()
    await plans.created(store, "chat")

    async def garbled() -> None:
        await beside.execute("UPDATE audit SET body = '{' WHERE version = 2")
        raise LOST

    wire.after[COMMIT] = garbled
    with pytest.raises(ChatUnreadable, match=r"audit\.body"):
        await store.change("chat", plans.plan(rename("lost")))
    assert (await beside.fetchval("SELECT version FROM chats")) == 2


async def test_a_question_whose_connection_is_lost_is_asked_again(open_store: OpenStore, wire: Wire) -> None:
    store = await open_store()
    last = await plans.created(store, "chat")
    for error in (LOST, asyncpg.InterfaceError("closed"), OSError("reset")):
        wire.before[READ] = fails(error)
        assert await store.facts("chat") == last.facts
    assert wire.before == {}


async def test_an_event_is_known_again_by_its_number_and_all_of_its_words(open_store: OpenStore) -> None:
    store = await open_store()
    await plans.created(store, "chat", *RUNNING)
    await plans.created(store, "other", *RUNNING)
    shown = await store.journal("chat", 1, ChatState.streaming, [part("h"), part("h"), part("i")])
    durable = (await store.events("chat", after=0, limit=1))[0]
    connection = await store._pool.connect()
    for event in (durable, *shown):
        assert await reading.time_of_event(connection, "chat", event.seq, event) == event.at
        assert await reading.time_of_event(connection, "chat", event.seq + 50, event) is None
    assert await reading.time_of_event(connection, "chat", shown[0].seq, shown[2]) is None
    assert await reading.time_of_event(connection, "chat", durable.seq + 1, durable) is None
    assert await reading.time_of_event(connection, "chat", durable.seq, shown[0]) is None
    assert await reading.time_of_event(connection, "other", shown[0].seq, shown[0]) is None
    await connection.close()


async def test_facts_of_an_earlier_version_count_no_changes_of_the_history(
    open_store: OpenStore, beside: asyncpg.Connection
) -> None:
    store = await open_store()
    await plans.created(store, "chat", *RUNNING, plans.reply("hi"))
    (message, *_) = await store.history("chat")
    await beside.execute("UPDATE facts SET body = (body::jsonb - 'history_version')::text")
    found = await store.cut_at("chat", message.id)
    assert found is not None
    assert found[1].history_version == 0
    await beside.execute("UPDATE facts SET body = '{'")
    with pytest.raises(ChatUnreadable, match=r"facts\.body"):
        await store.cut_at("chat", message.id)


async def test_a_chat_is_not_taken_in_among_rows_that_somebody_has_left_under_its_id(
    open_store: OpenStore, beside: asyncpg.Connection
) -> None:
    store = await open_store()
    await beside.execute("INSERT INTO receipts (chat_id, client_id, body) VALUES ('traveller', 'c1', '{}')")
    with pytest.raises(ChatUnreadable, match="receipts"):
        await store.import_chat(read_chat(exported_lines()), plans.plan(plans.move(Imported())))
    with pytest.raises(ChatNotFound):
        await store.facts("traveller")


async def test_nothing_of_a_deleted_chat_stays_in_the_memory_of_who_deletes_it_or_asks_what_was_deleted(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await open_store(), await open_store()
    for chat_id in ("chat", "other"):
        await plans.created(here, chat_id)
        await there.change(chat_id, plans.plan(rename("remembered")))
    told: list[str] = []
    monkeypatch.setattr(here._transactions, "_tell", told.append)
    await here.delete("chat", lambda _rest, _at: None, actor="me")
    assert (told, here._transactions._cache.known()) == (["chat"], ["other"])
    assert there._transactions._cache.known() == ["chat", "other"]
    assert await there.deleted(["other"]) == frozenset(), "nobody is told of what they did not ask for"
    assert there._transactions._cache.known() == ["other"]
    assert await there.deleted(["chat", "other"]) == {"chat"}


async def test_a_store_that_was_closed_may_be_opened_again(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    for title in ("one", "two"):
        await store.open()
        await store.open()
        await plans.created(store, title)
        await store.close()
        with pytest.raises(StoreError, match="not open"):
            await store.facts(title)


async def test_a_store_whose_schema_is_refused_keeps_no_connection(
    postgres_url: str, beside: asyncpg.Connection
) -> None:
    schema = postgres_url.rpartition("schema=")[2]
    await beside.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.invoices (id text)")
    store = PostgresStore(postgres_url)
    with pytest.raises(StoreError, match="another program"):
        await store.open()
    with pytest.raises(StoreError, match="not open"):
        store._pool._opened()


async def test_nobody_is_asked_after_nobody(postgres_url: str) -> None:
    """Not even a server."""
    assert await PostgresStore(postgres_url).gone([]) == frozenset()


def test_the_documents_say_what_a_store_does_by_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "postgresql.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| (\d+)(?: s)? \|", text, re.MULTILINE))
    known = inspect.signature(PostgresStore).parameters
    assert told
    assert told == {name: str(known[name].default) for name in told}
    assert set(told) == {"pool_size", "statement_timeout", "poll_interval"}


async def test_a_chat_is_created_once_an_erasure_of_its_parent_that_is_under_way_is_over(
    open_store: OpenStore, beside: asyncpg.Connection
) -> None:
    """Else neither would hear of the other: the erasure names no such chat, and the chat repeats what is erased."""
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
        await beside.execute("INSERT INTO audit (chat_id, version, body) VALUES ('chat', 9, $1)", erasure)
        await beside.execute("UPDATE chats SET version = 9")
    assert [(error.chat_id, error.version) for error in late] == [("chat", 9)]


BLOB = Blob("f" * 64, 1)
LATE: dict[str, Callable[[PostgresStore], Awaitable[object]]] = {
    "created anew": lambda store: store.create("chat", plans.plan(plans.create())),
    "given a file": lambda store: store.note_file("chat", BLOB, kept_in="database"),
}


@pytest.mark.parametrize("late", LATE)
async def test_who_meets_a_deletion_that_is_under_way_waits_until_it_is_over(
    open_store: OpenStore, beside: asyncpg.Connection, wire: Wire, late: str
) -> None:
    """Else the chat would be there again, or rows of it would be left."""
    store, other = await open_store(), await open_store()
    await plans.created(store, "chat")
    is_gone, may_commit, is_over = anyio.Event(), anyio.Event(), anyio.Event()

    async def stand() -> None:
        is_gone.set()
        await may_commit.wait()

    async def meet() -> None:
        with pytest.raises(ChatDeleted):
            await LATE[late](other)
        is_over.set()

    wire.after["DELETE FROM chats WHERE id"] = stand
    async with anyio.create_task_group() as tasks:
        try:
            tasks.start_soon(partial(store.delete, "chat", lambda _rest, _at: None, actor="client"))
            await is_gone.wait()
            tasks.start_soon(meet)
            await somebody_waits(beside)
            assert not is_over.is_set()
        finally:
            may_commit.set()
    assert await beside.fetchval("SELECT count(*) FROM chats") == 0
    assert await beside.fetchval("SELECT count(*) FROM chat_files") == 0


async def test_a_file_waits_for_its_own_chat_alone(open_store: OpenStore, beside: asyncpg.Connection) -> None:
    """An erasure, or a session whose machine is gone, may hold a chat for as long as a statement may take."""
    store = await open_store()
    for chat_id in ("held", "free"):
        await plans.created(store, chat_id)
    async with anyio.create_task_group() as tasks, beside.transaction():
        await beside.execute("SELECT FROM chats WHERE id = 'held' FOR UPDATE")
        tasks.start_soon(partial(store.note_file, "held", BLOB, kept_in="database"))
        await blocked(beside)
        await store.note_file("free", BLOB, kept_in="database")
        assert await store.held_files("held") == {}
    assert [*await store.held_files("held"), *await store.held_files("free")] == [BLOB.digest] * 2


@pytest.mark.parametrize("kept_before", [None, "a folder"])
async def test_a_file_store_takes_over_from_none_in_which_the_first_file_is_kept_just_then(
    open_store: OpenStore, beside: asyncpg.Connection, kept_before: str | None
) -> None:
    store = await open_store()
    await plans.created(store, "chat")
    if kept_before is not None:
        await beside.execute("INSERT INTO file_store (one, name) VALUES (1, $1)", kept_before)

    async def put() -> None:
        with pytest.raises(FilesElsewhere, match="a bucket"):
            await store.note_file("chat", BLOB, kept_in="database")

    async with anyio.create_task_group() as tasks, beside.transaction():
        await beside.execute(
            "INSERT INTO file_store (one, name) VALUES (1, 'a bucket')"
            " ON CONFLICT (one) DO UPDATE SET name = excluded.name"
        )
        await beside.execute(
            "INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES ('chat', repeat('e', 64), 1, false, now())"
        )
        tasks.start_soon(put)
        await blocked(beside)
    assert await beside.fetchval("SELECT name FROM file_store") == "a bucket"
