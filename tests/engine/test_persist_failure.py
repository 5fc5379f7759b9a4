"""A commit that fails for real: an error that names the step, nothing half-written, nobody left hanging."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.chats import lines_of, untouched
from support.events import events_of
from support.latches import Latch
from support.stores import Delegate, stored_at
from turnwise import Chat, Engine, Settings, StoreError, tool
from turnwise.engine import leased_chat
from turnwise.persistence.sqlite import connection
from turnwise.providers.scripted import Call, Reply


@contextmanager
def refusing(database: Path, when: str, table: str, *, operation: str = "INSERT") -> Iterator[None]:
    """Make the database refuse rows of a table while inside, as a full disk or a broken constraint would."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(
            f"CREATE TRIGGER refuse BEFORE {operation} ON {table} WHEN {when} BEGIN SELECT RAISE(ABORT, 'planted'); END"
        )
        try:
            yield
        finally:
            connection.execute("DROP TRIGGER refuse")


@contextmanager
def away(database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nobody write while inside, as a server that is away, or another program that holds the file."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other, monkeypatch.context() as patch:
        patch.setattr(connection, "PATIENCE", 0)
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def told(engine: Engine, chat_id: str) -> StoreError:
    """Return what a follower is told of a store that does not take what the chat has done."""
    with pytest.raises(StoreError) as failure:
        await engine.wait(chat_id)
    return failure.value


async def at_rest(engine: Engine, chat_id: str) -> Chat:
    """Wait until a chat rests whose store is back. What was under way by then may tell once more that it was away."""
    while True:
        try:
            return await engine.wait(chat_id)
        except StoreError as error:
            if not error.passing:
                raise


ASSISTANT = 'NEW.body LIKE \'%"role":"assistant"%\''


async def test_refused_reply_ends_in_an_error(open_engine: Any, strict_model: Any, database: Path) -> None:
    async with open_engine(strict_model(["lost", "kept"]), settings=Settings(coalesce=60)) as engine:
        chat = await engine.create_chat()
        with refusing(database, ASSISTANT, "messages"):
            result = await engine.ask(chat.id, "hi")
        assert (result.chat.state, result.stop_reason) == ("error", "error")
        assert "step 1" in result.chat.last_error.message
        assert "planted" in result.chat.last_error.message
        assert lines_of(await engine.messages(chat.id)) == ["user: hi"]
        messages = await events_of(engine, chat.id, "message")
        assert [event.message for event in messages] == await engine.messages(chat.id)
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert (await engine.messages(chat.id))[-1].text == "kept"


async def test_refused_result_ends_in_an_error(open_engine: Any, strict_model: Any, database: Path) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "unspeakable"

    model = strict_model([Reply(calls=[Call("look", {})]), "I go on"])
    async with open_engine(model, tools=[look]) as engine:
        chat = await engine.create_chat()
        with refusing(database, "NEW.body LIKE '%unspeakable%'", "messages"):
            result = await engine.ask(chat.id, "hi")
        assert (result.chat.state, result.open_calls) == ("error", [])
        assert "step 1" in result.chat.last_error.message
        assert "unspeakable" not in str(await events_of(engine, chat.id))
        assert (await engine.ask(chat.id, "and now?")).text == "I go on"


async def test_followers_get_a_failure_that_cannot_be_stored(
    open_engine: Any, strict_model: Any, database: Path
) -> None:
    latch = Latch()
    model = strict_model([Reply("lost", first_delay=1), "kept"], sleep=latch.pass_through)
    failures: list[Exception] = []
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await latch.entered.wait()

        async def follow() -> None:
            try:
                async for _ in engine.events(chat.id):
                    pass
            except StoreError as failure:
                failures.append(failure)

        async def wait() -> None:
            try:
                await engine.wait(chat.id)
            except StoreError as failure:
                failures.append(failure)

        before = await engine.get_chat(chat.id)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with refusing(database, "1", "audit"):
                latch.open()
                while len(failures) < 2:
                    await anyio.lowlevel.checkpoint()
        assert len(failures) == 2
        assert await engine.get_chat(chat.id) == before
        assert lines_of(await engine.messages(chat.id)) == ["user: hi"]


@pytest.mark.parametrize("table", ["audit", "messages", "events"])
async def test_refused_message_leaves_no_trace(open_engine: Any, strict_model: Any, database: Path, table: str) -> None:
    async with open_engine(strict_model(["ok"])) as engine:
        chat = await engine.create_chat()
        async with untouched(engine, chat.id):
            with refusing(database, "1", table), pytest.raises(StoreError, match=r"planted.*nothing was written"):
                await engine.send_message(chat.id, "hi")
        assert (await engine.ask(chat.id, "hi")).text == "ok"


class AwayAfterwards(Delegate):
    """A store that loses its answer to a commit, and answers nothing any more."""

    def __init__(self, database: Path, *, loses: bool) -> None:
        super().__init__(stored_at(database))
        self.is_to_go = self._is_away = False
        self._loses = loses

    async def change(self, *given: Any, **more: Any) -> Any:
        committed = await self._store.change(*given, **more)
        self._is_away = self.is_to_go
        if self._is_away and self._loses:
            raise StoreError("no answer; it is not known whether anything was written", written="unknown", passing=True)
        return committed

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_is_away") and name in ("facts", "receipt", "events"):
            return self._refuse
        return super().__getattr__(name)

    async def _refuse(self, *_: Any, **__: Any) -> None:
        raise StoreError("the server cannot be reached; nothing was written", passing=True)


@pytest.mark.parametrize("client_id", [None, "once"])
@pytest.mark.parametrize("edits", [False, True])
async def test_lost_answer_is_reported_as_unknown(
    open_engine: Any, strict_model: Any, database: Path, client_id: str | None, *, edits: bool
) -> None:
    store = AwayAfterwards(database, loses=True)
    async with open_engine(strict_model("hi"), store=store) as engine:
        chat = await engine.create_chat()
        first = await engine.ask(chat.id, "pay 5")
        await engine.wait(chat.id)
        store.is_to_go = True
        send = (
            partial(engine.edit_message, chat.id, first.messages[0].id)
            if edits
            else partial(engine.send_message, chat.id)
        )
        with pytest.raises(StoreError, match="no answer") as doubt:
            await send("pay 7", client_id=client_id)
        assert doubt.value.written == "unknown"
        store.is_to_go = store._is_away = False
        assert "user: pay 7" in lines_of(await engine.messages(chat.id))


async def streamed(engine: Engine, chat_id: str, said: str) -> None:
    async for _ in engine.stream(chat_id, said):
        pass


@pytest.mark.parametrize("follows", [Engine.ask, streamed])
async def test_stored_message_is_not_reported_as_lost(
    open_engine: Any, strict_model: Any, database: Path, follows: Any
) -> None:
    store = AwayAfterwards(database, loses=False)
    async with open_engine(strict_model("hi"), store=store, settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        store.is_to_go = True
        with pytest.raises(StoreError, match=r"message 'm1' is stored.*cannot be reached$") as doubt:
            await follows(engine, chat.id, "pay 5")
        assert (doubt.value.written, doubt.value.passing) == ("unknown", True)
        store.is_to_go = store._is_away = False
        assert lines_of(await engine.messages(chat.id)) == ["user: pay 5"]


async def test_refused_parts_are_not_shown(open_engine: Any, strict_model: Any, database: Path) -> None:
    latch = Latch()
    model = strict_model([Reply("Hello", chunks=["Hel", "lo"], delay=1), "again"], sleep=latch.pass_through)
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        with refusing(database, "NEW.kind = 'part'", "events"):
            await engine.send_message(chat.id, "hi")
            rested = await engine.wait(chat.id)
        assert rested.state == "error"
        assert "step 1" in rested.last_error.message
        assert await events_of(engine, chat.id, "part") == []
        latch.open()


@pytest.fixture
def asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased_chat, "AGAIN_AFTER", 0.01)


@pytest.mark.usefixtures("asked_again_at_once")
async def test_reply_waits_for_an_unreachable_store(
    open_engine: Any, strict_model: Any, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latch = Latch()
    model = strict_model([Reply("paid for once", first_delay=1)], sleep=latch.pass_through)
    async with open_engine(model, settings=Settings(coalesce=60)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await latch.entered.wait()
        with away(database, monkeypatch):
            latch.open()
            assert (await told(engine, chat.id)).passing
            assert (await engine.get_chat(chat.id)).state == "streaming"
        assert (await at_rest(engine, chat.id)).state == "waiting"
        assert lines_of(await engine.messages(chat.id)) == ["user: hi", "assistant: paid for once"]
        assert [one.trigger for one in await engine.audit(chat.id)].count("attempt_started") == 1
