"""A commit that fails raises an error that names the step, writes nothing partial, and leaves no subscriber hanging."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.engine.chats import lines_of, untouched

from support.engines import OpenChat
from support.events import events_of
from support.latches import Latch
from support.stores import Delegate, stored_at
from turnwise import ChatNotFound, Settings, StoreError
from turnwise.engine.isolation.guarded_store import guarded_store
from turnwise.providers.scripted import Reply


@contextmanager
def refusing(database: Path, when: str, table: str, *, operation: str = "INSERT") -> Iterator[None]:
    """Make the database refuse rows of a table in the block, as a full disk or a broken constraint would."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(
            f"CREATE TRIGGER refuse BEFORE {operation} ON {table} WHEN {when} BEGIN SELECT RAISE(ABORT, 'planted'); END"
        )
        try:
            yield
        finally:
            connection.execute("DROP TRIGGER refuse")


ASSISTANT = 'NEW.body LIKE \'%"role":"assistant"%\''


async def test_refused_reply_ends_in_an_error(database: Path, open_chat: OpenChat) -> None:
    async with open_chat(["lost", "kept"], settings=Settings(coalesce=60)) as (engine, chat, _):
        with refusing(database, ASSISTANT, "messages"):
            result = await engine.ask(chat.id, "hi")
        assert (result.chat.state, result.stop_reason) == ("error", "error")
        detail = (await engine.explain(chat.id)).last_error.detail
        assert "step 1" in detail
        assert "planted" in detail
        assert lines_of(await engine.messages(chat.id)) == ["user: hi"]
        messages = await events_of(engine, chat.id, "message")
        assert [event.message for event in messages] == await engine.messages(chat.id)
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert (await engine.messages(chat.id))[-1].text == "kept"


@pytest.mark.parametrize("table", ["audit", "messages", "events"])
async def test_refused_message_leaves_no_trace(database: Path, table: str, open_chat: OpenChat) -> None:
    async with open_chat(["ok"]) as (engine, chat, _):
        async with untouched(engine, chat.id):
            with refusing(database, "1", table), pytest.raises(StoreError, match=r"planted.*nothing was written"):
                await engine.send_message(chat.id, "hi")
        assert (await engine.ask(chat.id, "hi")).text == "ok"


class AwayAfterwards(Delegate):
    """A store that loses its answer to a commit, then answers nothing any more."""

    is_to_go = is_away = False

    async def change(self, *args: Any, **more: Any) -> Any:
        committed = await self._store.change(*args, **more)
        self.is_away = self.is_to_go
        if self.is_away:
            raise StoreError("no answer; it is not known whether anything was written", written="unknown", passing=True)
        return committed

    def __getattr__(self, name: str) -> Any:
        if self.is_away and name in ("facts", "receipt", "events"):
            return self._refuse
        return super().__getattr__(name)

    async def _refuse(self, *_: Any, **__: Any) -> None:
        raise StoreError("the server cannot be reached; nothing was written", passing=True)


@pytest.mark.parametrize("client_id", [None, "once"])
@pytest.mark.parametrize("edits", [False, True])
async def test_lost_answer_is_reported_as_unknown(
    database: Path, client_id: str | None, open_chat: OpenChat, *, edits: bool
) -> None:
    store = AwayAfterwards(stored_at(database))
    async with open_chat("hi", store=store) as (engine, chat, _):
        first = await engine.ask(chat.id, "pay 5")
        await engine.wait(chat.id)
        store.is_to_go = True
        if edits:
            sending = engine.edit_message(chat.id, first.messages[0].id, "pay 7", client_id=client_id)
        else:
            sending = engine.send_message(chat.id, "pay 7", client_id=client_id)
        with pytest.raises(StoreError, match="no answer") as doubt:
            await sending
        assert doubt.value.written == "unknown"
        store.is_to_go = store.is_away = False
        assert "user: pay 7" in lines_of(await engine.messages(chat.id))


async def test_refused_parts_are_not_shown(open_engine: Any, strict_model: Any, database: Path) -> None:
    latch = Latch()
    model = strict_model([Reply("Hello", chunks=["Hel", "lo"], delay=1), "again"], sleep=latch.pass_through)
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        with refusing(database, "NEW.kind = 'part'", "events"):
            await engine.send_message(chat.id, "hi")
            resting = await engine.wait(chat.id)
        assert resting.state == "error"
        assert "step 1" in (await engine.explain(chat.id)).last_error.detail
        assert await events_of(engine, chat.id, "part") == []
        latch.open()


# Stores of others


ODD = (RuntimeError("planted"), SystemExit(3), asyncio.CancelledError())
"""Errors that a faulty store may raise, without a cancellation or a signal."""
ITS_OWN = (StoreError("out of reach"), ChatNotFound("c"))


class Raising:
    """An object whose calls raise, at once or when awaited."""

    title = "no method"

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def attend(self, worker: str) -> str:
        self._raise()
        return f"{worker} attends"

    async def facts(self, chat_id: str, *, limit: int) -> str:
        await anyio.lowlevel.checkpoint()
        self._raise()
        return f"{limit} of {chat_id}"

    async def watch(self) -> AsyncIterator[str | None]:
        yield "c1"
        yield None
        self._raise()

    async def wait(self) -> None:
        await anyio.sleep_forever()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


async def use(store: Any, way: str) -> Any:
    """Use a store in one of the three possible ways."""
    if way == "attend":
        return store.attend("w")
    if way == "facts":
        return await store.facts("c", limit=3)
    return [hint async for hint in store.watch()]


@pytest.mark.parametrize("way", ["attend", "facts", "watch"])
@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_foreign_error_becomes_store_error(way: str, error: BaseException) -> None:
    with pytest.raises(StoreError) as raised:
        await use(guarded_store(Raising(error)), way)  # type: ignore[arg-type]
    assert f"`{way}`" in str(raised.value)
    assert type(error).__name__ in str(raised.value)
    assert str(error) in str(raised.value)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("way", ["attend", "facts", "watch"])
@pytest.mark.parametrize("error", ITS_OWN, ids=lambda error: type(error).__name__)
async def test_documented_errors_pass(way: str, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await use(guarded_store(Raising(error)), way)  # type: ignore[arg-type]
    assert raised.value is error


async def test_answers_and_attributes_pass() -> None:
    store: Any = guarded_store(Raising(None))  # type: ignore[arg-type]
    assert await use(store, "attend") == "w attends"
    assert await use(store, "facts") == "3 of c"
    assert await use(store, "watch") == ["c1", None]
    assert store.title == "no method"
    with pytest.raises(AttributeError):
        _ = store.nothing


async def test_cancellation_passes() -> None:
    store: Any = guarded_store(Raising(None))  # type: ignore[arg-type]
    task = asyncio.create_task(store.wait())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
