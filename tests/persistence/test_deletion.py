"""A deletion takes everything that a chat ever held, wherever it is kept, and whoever has to do with it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import asyncpg
import pytest

from support.latches import Latch
from support.rich_chat import engine_on, live
from support.sql_by_hand import by_hand, raw
from support.stores import Delegate
from turnwise import (
    Agent,
    Chat,
    ChatBusy,
    ChatDeleted,
    ChatNotFound,
    ClientTool,
    Engine,
    Event,
    NotResting,
    Settings,
    SettingsError,
    StoreError,
    Tombstone,
    ToolResult,
    verify_export,
)
from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.persistence.stored_chat import UNKNOWN_TIME
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing.clock import ManualClock

SECRET = "hunter2-delete"  # noqa: S105 - the word that is searched
IDLE = Settings(run_worker=False)


@asynccontextmanager
async def on(url: str, *replies: Any, **options: Any) -> AsyncIterator[Engine]:
    """Open an engine that answers with the replies."""
    async with Engine(url, model=ScriptedModel([*replies]), **options) as engine:
        yield engine


async def _asked(engine: Engine, text: str = "hello") -> str:
    chat = await engine.create_chat()
    await engine.ask(chat.id, text)
    return chat.id


async def test_nothing_of_a_rich_chat_is_in_any_byte_of_the_files(tmp_path: Path) -> None:
    """Nor in the write-ahead log, although the engine is open; a chat beside it keeps all of its own."""
    path = tmp_path / "chats.db"
    async with engine_on(SQLiteStore(path), prefix=SECRET) as engine:
        kept = await engine.create_chat(title="kept-title")
        chat_id = await live(engine, prefix=SECRET)
        records = await engine.audit(chat_id)
        assert SECRET.encode() in raw(path)
        left = await engine.delete_chat(chat_id, actor="ann")
        assert SECRET.encode() not in raw(path)
        assert b"client-1" not in raw(path)
        assert b"kept-title" in raw(path)
        assert left.overwritten
        assert (left.actor, left.records, left.head) == ("ann", len(records), records[-1].hash)
        assert (await engine.verify(kept.id)).ok


class Latched(Delegate):
    """A store that holds up whoever has changed or deleted a chat, if it is told to."""

    def __init__(self, store: SQLiteStore) -> None:
        super().__init__(store)
        self.latch: Latch | None = None

    async def change(self, *given: Any, **options: Any) -> Any:
        committed = await self._store.change(*given, **options)
        await self._hold_up()
        return committed

    async def delete(self, *given: Any, **options: Any) -> Any:
        tombstone = await self._store.delete(*given, **options)
        await self._hold_up()
        return tombstone

    async def _hold_up(self) -> None:
        if self.latch is not None:
            await self.latch.pass_through()


@pytest.mark.parametrize("what", ["erase", "delete"])
async def test_who_is_cancelled_once_it_is_done_leaves_no_byte_either(tmp_path: Path, what: str) -> None:
    """A service whose client has hung up, say: nobody else would ever look for the bytes."""
    path, latch = tmp_path / "chats.db", Latch()
    store = Latched(SQLiteStore(path))
    async with Engine(store, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title=SECRET)
        store.latch = latch
        work = engine.erase(chat.id, what=["everything"]) if what == "erase" else engine.delete_chat(chat.id)
        task = asyncio.ensure_future(work)
        await latch.entered.wait()
        task.cancel()
        await anyio.lowlevel.checkpoint()
        latch.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert SECRET.encode() not in raw(path)


async def test_nothing_of_a_rich_chat_is_in_any_table_of_postgresql(
    postgres_url: str, beside: asyncpg.Connection
) -> None:
    async def tables() -> str:
        names = await beside.fetch(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
        return "".join([str(await beside.fetch(f'SELECT "{name}"::text FROM "{name}"')) for (name,) in names])  # noqa: S608

    async with engine_on(PostgresStore(postgres_url), prefix=SECRET) as engine:
        chat_id = await live(engine, prefix=SECRET)
        assert SECRET in await tables()
        left = await engine.delete_chat(chat_id)
        told = await tables()
        assert SECRET not in told
        assert told.count(chat_id) == 1
        assert not left.overwritten


async def test_the_tombstone_proves_that_a_log_exported_before_is_that_of_the_chat(either_url: str) -> None:
    async with on(either_url, "hi") as engine:
        chat_id = await _asked(engine)
        exported = await engine.export_audit(chat_id)
        left = await engine.delete_chat(chat_id)
        assert verify_export(exported).ok
        assert f'"count": {left.records}, "head": "{left.head}"' in exported


async def test_what_is_left_outlives_the_engine(either_url: str) -> None:
    async with on(either_url, "hi") as engine:
        chat_id = await _asked(engine)
        left = await engine.delete_chat(chat_id)
    async with on(either_url) as engine:
        assert await engine.tombstone(chat_id) == left
        assert await engine.delete_chat(chat_id, actor="another") == left


_METHODS: dict[str, Callable[[Engine, str], Awaitable[object]]] = {
    "get_chat": lambda engine, it: engine.get_chat(it),
    "send_message": lambda engine, it: engine.send_message(it, "again"),
    "send_message, interrupting": lambda engine, it: engine.send_message(it, "again", when_busy="interrupt"),
    "a replay": lambda engine, it: engine.send_message(it, "hello", client_id="first"),
    "ask": lambda engine, it: engine.ask(it, "again"),
    "stream": lambda engine, it: anext(engine.stream(it, "again")),
    "create_chat": lambda engine, it: engine.create_chat(parent=it),
    "submit_tool_results": lambda engine, it: engine.submit_tool_results(it, [ToolResult("c", 1)]),
    "interrupt": lambda engine, it: engine.interrupt(it),
    "resume": lambda engine, it: engine.resume(it),
    "edit_message": lambda engine, it: engine.edit_message(it, "m1", "new"),
    "queued": lambda engine, it: engine.queued(it),
    "edit_queued": lambda engine, it: engine.edit_queued(it, "m1", "new"),
    "delete_queued": lambda engine, it: engine.delete_queued(it, "m1"),
    "promote_queued": lambda engine, it: engine.promote_queued(it, "m1"),
    "request_compaction": lambda engine, it: engine.request_compaction(it),
    "clear_context": lambda engine, it: engine.clear_context(it),
    "archive": lambda engine, it: engine.archive(it),
    "unarchive": lambda engine, it: engine.unarchive(it),
    "rename": lambda engine, it: engine.rename(it, "new"),
    "set_metadata": lambda engine, it: engine.set_metadata(it, {}),
    "messages": lambda engine, it: engine.messages(it),
    "transcript": lambda engine, it: engine.transcript(it),
    "compactions": lambda engine, it: engine.compactions(it),
    "usage": lambda engine, it: engine.usage(it),
    "events": lambda engine, it: anext(engine.events(it, follow=False)),
    "events, from an event on": lambda engine, it: anext(engine.events(it, after=3)),
    "wait": lambda engine, it: engine.wait(it),
    "audit": lambda engine, it: engine.audit(it),
    "export_audit": lambda engine, it: engine.export_audit(it),
    "export_chat": lambda engine, it: anext(engine.export_chat(it)),
    "export_rows": lambda engine, it: engine.export_rows(it),
    "verify": lambda engine, it: engine.verify(it),
    "fork": lambda engine, it: engine.fork(it, at_version=1),
    "explain": lambda engine, it: engine.explain(it),
    "erase_message": lambda engine, it: engine.erase_message(it, "m1"),
    "erase": lambda engine, it: engine.erase(it, what=["everything"]),
    "repair": lambda engine, it: engine.repair(it),
}


async def test_every_method_says_when_the_chat_was_deleted_and_none_brings_it_back(either_url: str) -> None:
    """With a cache that knew it and without one."""
    async with on(either_url, "hi") as engine, on(either_url, settings=IDLE) as elsewhere:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello", client_id="first")
        await engine.wait(chat.id)
        await elsewhere.rename(chat.id, "known here, too")
        left = await engine.delete_chat(chat.id)
        for asked in (engine, elsewhere):
            for name, method in _METHODS.items():
                with pytest.raises(ChatDeleted) as refusal:
                    await method(asked, chat.id)
                assert refusal.value.deleted_at == left.deleted_at, name
        said = str(refusal.value)
        assert left.deleted_at.isoformat(timespec="seconds") in said
        assert chat.id in said
        assert (await engine.list_chats()).items == []
        assert await engine.chat_ids() == []
        assert [found async for found in engine.diagnose()] == []


@pytest.mark.parametrize("state", ["streaming", "pending"])
async def test_a_chat_that_works_is_not_deleted(either_url: str, state: str) -> None:
    """Once it is interrupted it is."""
    held = Latch()
    model = ScriptedModel([lambda _: Reply("done", first_delay=1)], sleep=held.pass_through)
    async with Engine(either_url, model=model, settings=Settings(run_worker=state == "streaming")) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        if state == "streaming":
            await held.entered.wait()
        before = await engine.get_chat(chat.id)
        with pytest.raises(NotResting, match=f"{state}.*interrupt it") as refusal:
            await engine.delete_chat(chat.id)
        assert isinstance(refusal.value, ChatBusy)
        assert refusal.value.state == state
        assert (await engine.get_chat(chat.id)).version == before.version
        assert await engine.tombstone(chat.id) is None
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        assert await engine.delete_chat(chat.id)


async def test_an_archived_chat_is_deleted(either_url: str) -> None:
    async with on(either_url, "hi") as engine:
        chat_id = await _asked(engine)
        await engine.archive(chat_id)
        assert (await engine.delete_chat(chat_id)).chat_id == chat_id


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        ("UPDATE profiles SET body = 'nonsense'", "created_at"),
        ("UPDATE chats SET head = 'nonsense'", "head"),
        ("DELETE FROM profiles", "created_at"),
        ("UPDATE chats SET state = 'daydreaming'", None),
        ("UPDATE audit SET body = 'nonsense'", None),
        ("UPDATE messages SET body = 'nonsense', format = 99", None),
    ],
)
async def test_an_unreadable_chat_is_deleted(either_url: str, damage: str, lost: str | None) -> None:
    """What can be told of it still is."""
    async with on(either_url, "hi") as engine:
        chat_id = await _asked(engine)
    await by_hand(either_url, damage)
    async with on(either_url, settings=IDLE) as engine:
        left = await engine.delete_chat(chat_id)
        assert [name for name in ("created_at", "head") if getattr(left, name) is None] == ([lost] if lost else [])
        assert await engine.tombstone(chat_id) == left
        assert [found async for found in engine.diagnose()] == []


async def test_a_chat_of_which_hardly_a_value_makes_sense_is_deleted(tmp_path: Path) -> None:
    """SQLite takes values of any kind in any column."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with on(url, "hi") as engine:
        chat_id = await _asked(engine)
    await by_hand(url, "UPDATE chats SET calls = x'ff', facts = x'ff', version = 'x', settled = 'x', event_seq = 'x'")
    await by_hand(url, "UPDATE profiles SET body = x'ff'")
    async with on(url, settings=IDLE) as engine:
        assert (await engine.delete_chat(chat_id)).records > 0


async def _followed(engine: Engine, chat_id: str, following: anyio.Event, seen: list[Event]) -> None:
    async def follow() -> None:
        async for event in engine.events(chat_id):
            seen.append(event)
            if event.kind == "turn_finished":
                following.set()

    with pytest.raises(ChatDeleted):
        await follow()


async def _waited(engine: Engine, chat_id: str) -> None:
    with pytest.raises(ChatDeleted):
        await engine.wait(chat_id, until=["compacting"])


async def test_followers_of_a_deleted_chat_are_told_in_every_process(either_url: str) -> None:
    """They have seen all that there was; a follower of another chat follows on."""
    async with on(either_url, "hi", "there") as engine, on(either_url, settings=IDLE) as elsewhere:
        chat_id, other = await _asked(engine), await engine.create_chat()
        seen: dict[Engine, list[Event]] = {engine: [], elsewhere: []}
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks, anyio.create_task_group() as others:
                others.start_soon(elsewhere.wait, other.id)
                for asked, events in seen.items():
                    following = anyio.Event()
                    tasks.start_soon(_followed, asked, chat_id, following, events)
                    tasks.start_soon(_waited, asked, chat_id)
                    await following.wait()
                await engine.delete_chat(chat_id)
        assert [event.seq for event in seen[engine]] == [event.seq for event in seen[elsewhere]]


async def test_forks_and_children_are_named_and_stay(either_url: str) -> None:
    """Forks of forks hold copies, too; who has a child of its own is no child of the deleted chat."""
    async with on(either_url, "hi", "on") as engine:
        chat_id = await _asked(engine)
        version = (await engine.get_chat(chat_id)).version
        fork = await engine.fork(chat_id, at_version=version)
        again = await engine.fork(fork.id, at_version=1)
        child = await engine.create_chat(parent=chat_id)
        await engine.create_chat(parent=child.id)
        for _ in range(2):
            left = await engine.delete_chat(chat_id)
            assert set(left.forks) == {fork.id, again.id}
            assert left.children == (child.id,)
        assert (await engine.ask(fork.id, "go on")).text == "on"
        assert (await engine.verify(fork.id)).ok
        assert (await engine.get_chat(child.id)).parent == chat_id
        with pytest.raises(ChatDeleted):
            await engine.fork(chat_id, at_version=1)


class FailsAfterwards(Delegate):
    """A store that goes out of reach once a chat is deleted or erased."""

    is_out_of_reach = False

    def _check(self) -> None:
        if self.is_out_of_reach:
            raise StoreError("the store is out of reach; nothing was written")

    async def delete(self, *arguments: Any, **options: Any) -> Any:
        deleted = await self._store.delete(*arguments, **options)
        self.is_out_of_reach = True
        return deleted

    async def change(self, *arguments: Any, **options: Any) -> Any:
        committed = await self._store.change(*arguments, **options)
        self.is_out_of_reach = True
        return committed

    async def forks(self, chat_id: str) -> list[str]:
        self._check()
        return await self._store.forks(chat_id)

    async def children(self, chat_id: str) -> list[str]:
        self._check()
        return await self._store.children(chat_id)

    async def let_go(self, **options: Any) -> int:
        self._check()
        return await self._store.let_go(**options)

    async def scrub(self) -> bool:
        self._check()
        return await self._store.scrub()


async def with_relatives(engine: Engine) -> tuple[str, Chat, Chat]:
    """Return a chat with a secret title, a fork of it, and a child."""
    chat_id = (await engine.create_chat(title=SECRET)).id
    return chat_id, await engine.fork(chat_id, at_version=1), await engine.create_chat(parent=chat_id)


@pytest.mark.parametrize("way", ["delete", "erase"])
async def test_what_is_done_is_returned_although_the_store_fails_behind_it(either_url: str, way: str) -> None:
    """An error would say that nothing was written, of a chat that is gone."""
    store = FailsAfterwards(store_from_url(either_url, durability="full", now=None))
    async with Engine(store, model=ScriptedModel(["hi"]), settings=IDLE) as engine:
        chat_id, fork, child = await with_relatives(engine)
        if way == "delete":
            left = await engine.delete_chat(chat_id)
            assert (left.forks, left.children, left.overwritten) == ((fork.id,), (child.id,), False)
            assert await engine.tombstone(chat_id) == left
        else:
            erasure = await engine.erase(chat_id, what=["everything"])
            assert (erasure.forks, erasure.overwritten) == ((fork.id,), False)
            assert (await engine.get_chat(chat_id)).title is None


class MadeMeanwhile(FailsAfterwards):
    """A store in which others fork a chat, and begin one below it, as it is deleted or erased."""

    def _check(self) -> None:
        """Stay in reach."""

    async def forks(self, chat_id: str) -> list[str]:
        return await super().forks(chat_id) if self.is_out_of_reach else []

    async def children(self, chat_id: str) -> list[str]:
        return await super().children(chat_id) if self.is_out_of_reach else []


@pytest.mark.parametrize("way", ["delete", "erase"])
async def test_who_came_while_a_chat_was_deleted_or_erased_is_named(either_url: str, way: str) -> None:
    store = MadeMeanwhile(store_from_url(either_url, durability="full", now=None))
    async with Engine(store, model=ScriptedModel(["hi"]), settings=IDLE) as engine:
        chat_id, fork, child = await with_relatives(engine)
        if way == "delete":
            left = await engine.delete_chat(chat_id)
            assert (left.forks, left.children) == ((fork.id,), (child.id,))
        else:
            assert (await engine.erase(chat_id, what=["everything"])).forks == (fork.id,)


@pytest.mark.parametrize("way", ["delete", "erase"])
async def test_a_chat_stays_of_which_nobody_can_tell_who_has_to_do_with_it(either_url: str, way: str) -> None:
    """Once it is gone nobody could ask again."""
    store = FailsAfterwards(store_from_url(either_url, durability="full", now=None))
    async with Engine(store, model=ScriptedModel(["hi"]), settings=IDLE) as engine:
        chat_id = (await engine.create_chat(title=SECRET)).id
        store.is_out_of_reach = True
        with pytest.raises(StoreError, match="nothing was written"):
            await (engine.delete_chat(chat_id) if way == "delete" else engine.erase(chat_id, what=["everything"]))
        assert (await engine.get_chat(chat_id)).title == SECRET


async def test_a_deleted_chat_is_not_kept_in_memory(either_url: str) -> None:
    """Nor until somebody asks which chats were deleted, as workers do now and then."""
    store = store_from_url(either_url, durability="full", now=None)
    assert isinstance(store, PostgresStore | SQLiteStore)
    cache = store._transactions._cache
    await store.open()
    await plans.created(store, "chat", plans.send("a secret"))
    assert cache.known() == ["chat"]
    await store.delete("chat", lambda _rest, _at: None, actor="ann")
    assert cache.known() == []
    await store.close()


async def test_a_chat_that_another_process_has_deleted_is_forgotten_when_somebody_asks(either_url: str) -> None:
    """Workers ask now and then: nobody else would tell this process."""
    store, elsewhere = (store_from_url(either_url, durability="full", now=None) for _ in range(2))
    assert isinstance(store, PostgresStore | SQLiteStore)
    cache = store._transactions._cache
    await store.open()
    await elsewhere.open()
    for name in ("chat", "other", "third"):
        await plans.created(store, name, plans.send("a secret"))
    await elsewhere.delete("chat", lambda _rest, _at: None, actor="ann")
    await elsewhere.delete("third", lambda _rest, _at: None, actor="ann")
    assert await store.deleted(["third", "nobody"]) == {"third"}
    assert cache.known() == ["other"]
    await elsewhere.close()
    await store.close()


@pytest.mark.parametrize("column", ["created", "deleted"])
@pytest.mark.parametrize("value", ["'poison'", "1000000000000000000", "x'ff'"])
async def test_a_tombstone_whose_times_cannot_be_read_tells_the_rest(tmp_path: Path, column: str, value: str) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with on(url, settings=IDLE) as engine:
        chat = await engine.create_chat()
        left = await engine.delete_chat(chat.id)
    await by_hand(url, f"UPDATE tombstones SET {column} = {value}")  # noqa: S608
    async with on(url, settings=IDLE) as engine:
        told = await engine.tombstone(chat.id)
        assert told is not None
        assert (told.head, told.records) == (left.head, left.records)
        assert told.created_at == (None if column == "created" else left.created_at)
        assert told.deleted_at == (UNKNOWN_TIME if column == "deleted" else left.deleted_at)
        with pytest.raises(ChatDeleted):
            await engine.get_chat(chat.id)
        assert await engine.delete_chat(chat.id) == told


async def test_a_tombstone_that_cannot_be_read_is_told_as_far_as_it_can(tmp_path: Path) -> None:
    """PostgreSQL knows the types of its columns."""
    url = f"sqlite:///{tmp_path}/chats.db"
    async with on(url, settings=IDLE) as engine:
        chat = await engine.create_chat()
        left = await engine.delete_chat(chat.id)
    unread = {"actor": ("", ("x'ff'",)), "records": (0, ("'many'", "-1", "x'ff'")), "head": (None, ("x'00'",))}
    for column, (instead, values) in unread.items():
        before = getattr(left, column)
        for value in values:
            await by_hand(url, f"UPDATE tombstones SET {column} = {value}")  # noqa: S608
            async with on(url, settings=IDLE) as engine:
                assert await engine.tombstone(chat.id) == replace(left, **{column: instead}), (column, value)
                with pytest.raises(ChatDeleted):
                    await engine.get_chat(chat.id)
        await by_hand(url, f"UPDATE tombstones SET {column} = '{before}'")  # noqa: S608


async def test_who_never_was_has_no_tombstone(either_url: str) -> None:
    async with on(either_url, settings=IDLE) as engine:
        chat = await engine.create_chat()
        assert await engine.tombstone(chat.id) is None
        for method in (engine.tombstone, engine.delete_chat):
            with pytest.raises(ChatNotFound) as refusal:
                await method("nobody")
            assert not isinstance(refusal.value, ChatDeleted)


async def test_who_deletes_has_a_name_that_the_rules_allow(either_url: str) -> None:
    async with on(either_url, settings=IDLE) as engine:
        chat = await engine.create_chat()
        for actor in ("", "worker:x", "x" * 1025):
            with pytest.raises(SettingsError):
                await engine.delete_chat(chat.id, actor=actor)
        assert await engine.get_chat(chat.id) == chat


async def test_the_times_are_those_of_the_stores_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    async with on(f"sqlite:///{tmp_path / 'chats.db'}", settings=IDLE, clock=clock) as engine:
        chat = await engine.create_chat()
        await clock.advance(90)
        left = await engine.delete_chat(chat.id)
        assert left.created_at == chat.created_at
        assert left.deleted_at == chat.created_at + timedelta(seconds=90)


async def test_racing_deletions_in_several_processes_agree(either_url: str) -> None:
    found: list[Tombstone] = []
    async with on(either_url, "hi") as engine, on(either_url, settings=IDLE) as elsewhere:
        chat_id = await _asked(engine)

        async def race(by: Engine, actor: str) -> None:
            found.append(await by.delete_chat(chat_id, actor=actor))

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(race, engine, f"here {number}")
                tasks.start_soon(race, elsewhere, f"there {number}")
        assert found == [await engine.tombstone(chat_id)] * 6


async def test_a_message_that_races_a_deletion_is_answered_or_refused(either_url: str) -> None:
    """Never both: either the chat works and is not deleted, or the message is refused as that of a deleted chat."""
    async with on(either_url, *["hi"] * 20) as engine, on(either_url, settings=IDLE) as elsewhere:
        for _ in range(6):
            chat = await engine.create_chat()
            outcome: dict[str, object] = {}

            async def attempt(name: str, work: Awaitable[object], outcome: dict[str, object] = outcome) -> None:
                try:
                    await work
                except (ChatDeleted, NotResting) as refusal:
                    outcome[name] = refusal

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(attempt, "sent", elsewhere.send_message(chat.id, "hello"))
                tasks.start_soon(attempt, "deleted", engine.delete_chat(chat.id))
            if "sent" in outcome:
                assert isinstance(outcome["sent"], ChatDeleted)
            if "deleted" in outcome:
                assert isinstance(outcome["deleted"], NotResting)
                assert (await engine.wait(chat.id)).state == "waiting"
            else:
                assert await engine.tombstone(chat.id) is not None


async def test_retention_works_on_every_store(either_url: str) -> None:
    """By the clock that counts there; `tests/engine/test_retention.py` has the rest."""
    clock, settings = ManualClock(), Settings(archive_after=600, delete_after=60)
    async with on(either_url, "hi", settings=settings, clock=clock) as opened:
        engine: Any = opened
        chat_id = await _asked(engine)
        for seconds, archived in ((599, False), (1, True), (59, True)):
            await clock.advance(seconds)
            await engine._worker._sweeper.sweep()
            assert (await engine.get_chat(chat_id)).archived is archived
        await clock.advance(1)
        await engine._worker._sweeper.sweep()
        left = await engine.tombstone(chat_id)
        assert (left.actor, left.deleted_at) == ("system", clock.now())


async def test_what_a_worker_elsewhere_remembers_is_forgotten(tmp_path: Path) -> None:
    """Its caches are asked about at the next renewal of leases, though no notice named the chat."""
    url, clock = f"sqlite:///{tmp_path / 'chats.db'}", ManualClock()
    store = store_from_url(url, durability="normal", now=clock.now)
    async with (
        Engine(store, model=ScriptedModel([f"{SECRET} I say"]), clock=clock) as engine,
        on(url, settings=IDLE, clock=clock) as elsewhere,
    ):
        chat_id = await _asked(engine, SECRET)
        await clock.advance(engine.settings.renew_every)
        assert SECRET in str(_held(engine, chat_id))
        await elsewhere.delete_chat(chat_id)
        await clock.advance(engine.settings.renew_every)
        with anyio.fail_after(60):
            while _held(engine, chat_id) != (None, None):
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_system_prompt_that_was_made_for_a_chat_goes_with_it(tmp_path: Path, where: str) -> None:
    """It is kept while the turn waits for its client, whatever else the worker remembers of the chat."""
    url, clock = f"sqlite:///{tmp_path / 'chats.db'}", ManualClock()
    pick = ClientTool("pick", "Pick.", {"type": "object"})
    agent = Agent("support", ScriptedModel([Reply(calls=[Call("pick", {})])]), system=lambda _chat: f"Say {SECRET}.")
    async with (
        Engine(store_from_url(url, durability="normal", now=clock.now), agents=[agent], clock=clock) as opened,
        on(url, settings=IDLE, clock=clock) as elsewhere,
    ):
        engine: Any = opened
        chat = await engine.create_chat(client_tools=[pick])
        await engine.ask(chat.id, "hi")
        prompts = engine._commands_or_none.runtime.system_prompts
        assert [*prompts] == [chat.id]
        engine._worker._views.clear()
        await (engine if where == "here" else elsewhere).delete_chat(chat.id)
        await clock.advance(engine.settings.renew_every)
        with anyio.fail_after(30):
            while [*prompts]:
                await anyio.lowlevel.checkpoint()


def _held(engine: Any, chat_id: str) -> tuple[Any, Any]:
    """Return what the worker's views and the store's cache hold of a chat."""
    view = engine._worker._views.get(chat_id)
    return (view and view.messages), engine._store._cache.get(chat_id)
