"""One chat that cannot be read is that chat's problem alone."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.engines import MakeModel, OpenEngine
from support.latches import Latch
from turnwise import Chat, ChatUnreadable, ClientTool, Engine, IllegalTransition, ModelRequest, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

DAMAGES = {
    "facts": "UPDATE chats SET facts = '{' WHERE id = ?",
    "state": "UPDATE chats SET state = 'dreaming' WHERE id = ?",
    "version": "UPDATE chats SET version = 'many' WHERE id = ?",
    "profile": "UPDATE profiles SET body = '[' WHERE chat_id = ?",
    "calls": "UPDATE calls SET body = 'no JSON' WHERE chat_id = ?",
    "queue": "UPDATE queue SET body = 'no JSON' WHERE chat_id = ?",
    "token": "UPDATE leases SET token = 'mine' WHERE chat_id = ?",
}
"""What makes a chat unreadable of which a tool runs, and in whose queue a message waits."""
REPLACED = {"calls", "queue"}
"""Rows that the holder has in hand, and that what it writes next replaces: nothing of the chat is lost."""


def poison(database: Path, sql: str, *values: object) -> None:
    """Write past turnwise, as a broken disk or a hand would."""
    with closing(sqlite3.connect(database)) as on, on:
        assert on.execute(sql, values).rowcount > 0


async def test_unreadable_chat_is_listed_with_its_reason(open_engine: OpenEngine, database: Path) -> None:
    """And with what can be read of it; all others are listed as ever."""
    async with Engine(f"sqlite:///{database}", model=ScriptedModel(())) as engine:
        sound = await engine.create_chat(title="sound")
        broken = await engine.create_chat(title="broken", owner="ann")
        poison(database, "UPDATE chats SET facts = '{\"serial\": [}' WHERE id = ?", broken.id)
        listed = {chat.id: chat for chat in (await engine.list_chats()).items}
        assert listed[sound.id].unreadable is None
        found = listed[broken.id]
        assert found.unreadable is not None
        assert "chats.facts" in found.unreadable
        assert (found.title, found.owner, found.version) == ("broken", "ann", 1)
        with pytest.raises(ChatUnreadable) as raised:
            await engine.get_chat(broken.id)
        assert (raised.value.column, raised.value.chat_id) == ("chats.facts", broken.id)
        with pytest.raises(ChatUnreadable):
            await engine.send_message(broken.id, "hello")
        assert (await engine.ask(sound.id, "hello", timeout=60)).chat.state == "error"


async def test_unreadable_message_stops_the_chat_until_repair(database: Path) -> None:
    """A claim reads no messages: the attempt has begun by then."""
    url = f"sqlite:///{database}"
    async with Engine(url, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        chat_id = (await engine.create_chat()).id
        await engine.send_message(chat_id, "hello")
    poison(database, "UPDATE messages SET body = '{}' WHERE chat_id = ?", chat_id)
    async with Engine(url, model=ScriptedModel(["hello again"])) as engine:
        failed = await engine.wait(chat_id, timeout=60)
        assert (failed.state, failed.last_error.kind) == ("error", "unreadable")
        assert "messages.body" in (await engine.explain(chat_id)).last_error.detail
        with pytest.raises(ChatUnreadable):
            await engine.messages(chat_id)
        await engine.repair(chat_id)
        assert (await engine.ask(chat_id, "again", timeout=60)).text == "hello again"


@pytest.mark.parametrize(
    "damage",
    [pytest.param(one, marks=() if one in ("facts", "calls", "token") else pytest.mark.deep) for one in DAMAGES],
)
async def test_chat_damaged_while_running_affects_no_other(
    database: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its row is damaged in the middle of a step; the worker goes on with its neighbours, and can have it repaired."""
    latch = Latch()

    @tool(parallel_safe=True)
    async def work() -> str:
        """Work."""
        await latch.pass_through()
        return "worked"

    def answer(request: ModelRequest) -> Reply:
        if request.messages[-1].role == "tool":
            return Reply("done")
        return Reply(calls=[Call("work", {})]) if request.messages[-1].text == "go" else Reply("fine")

    settings = Settings(renew_every=0.05, poll_interval=0.05)
    async with Engine(f"sqlite:///{database}", model=ScriptedModel(answer), tools=[work], settings=settings) as engine:
        broken, sound = await engine.create_chat(), await engine.create_chat()
        for chat in (broken, sound):
            await engine.send_message(chat.id, "go")
            await engine.wait(chat.id, until=["executing_tools"])
            await engine.send_message(chat.id, "and then?")
        await latch.entered.wait()
        followed = asyncio.create_task(_rested(engine, broken))
        await anyio.wait_all_tasks_blocked()
        poison(database, DAMAGES[damage], broken.id)
        latch.open()
        for _ in range(2):
            assert (await engine.wait(sound.id, timeout=60)).state == "waiting"
            assert (await engine.ask(sound.id, "once more", timeout=60)).text == "fine"
        assert (await engine.verify(sound.id)).ok
        assert await followed in {"waiting", "error", "unreadable"}
        if damage in REPLACED:
            while await _rested(engine, broken) == "unreadable":
                await anyio.lowlevel.checkpoint()
        else:
            await _repaired(engine, broken)
            assert (await engine.get_chat(broken.id)).state == "error"
        assert (await engine.ask(broken.id, "once more", timeout=60)).chat.state == "waiting"
    assert not [record for record in caplog.records if "task_failed" in record.getMessage()]


async def _rested(engine: Engine, chat: Chat) -> str:
    """Return where a chat comes to rest: in a state, or unreadable."""
    try:
        return (await engine.wait(chat.id, timeout=60)).state
    except ChatUnreadable:
        return "unreadable"


async def _repaired(engine: Engine, chat: Chat) -> None:
    """Have a chat that cannot be read repaired, unless a sweep has done it."""
    try:
        await engine.repair(chat.id)
    except IllegalTransition:
        assert "repaired" in [record.trigger for record in await engine.audit(chat.id)]


async def test_unknown_state_is_reported_and_repaired(
    open_engine: OpenEngine, database: Path, strict_model: MakeModel
) -> None:
    """Not as a chat in `error` that has open calls; whoever follows it does not take it to rest there."""
    model = strict_model([Reply(calls=[Call("ask", {}, id="c1")]), "done"])
    async with open_engine(model) as engine:
        chat = await engine.create_chat(client_tools=[ClientTool("ask", "Ask.", {"type": "object"})])
        await _turn(engine, chat.id, "m1")
    async with Engine(f"sqlite:///{database}", model=model, settings=Settings(run_worker=False)) as engine:
        poison(database, DAMAGES["state"], chat.id)
        listed = (await engine.list_chats()).items[0]
        for found in (await engine.get_chat(chat.id), listed):
            assert "'dreaming'" in str(found.unreadable)
            assert found.open_calls == []
        explained = await engine.explain(chat.id)
        assert explained.broken_promises == ("state_is_declared",)
        assert explained.legal_triggers == ("repaired",)
        assert "chats.state" in explained.reason
        assert [flaw.column for flaw in explained.unreadable] == ["chats.state"]
        assert "'dreaming' is no state of the table's" in explained.reason
        assert (await engine.list_chats(state="error")).items == []
        with pytest.raises(IllegalTransition) as refused:
            await engine.resume(chat.id)
        assert refused.value.allowed == ("repaired",)
        followed = asyncio.create_task(_turn(engine, chat.id, "m1"))
        waited = asyncio.create_task(engine.wait(chat.id))
        await anyio.wait_all_tasks_blocked()
        repaired = await engine.repair(chat.id)
        assert (repaired.state, repaired.unreadable, repaired.open_calls) == ("error", None, [])
        assert repaired.last_error.kind == "repaired"
        assert (await waited).state == "error"
        (*_, last) = await followed
        assert (last.kind, last.stop_reason) == ("turn_finished", "error")
    async with open_engine(model) as engine:
        assert (await engine.ask(chat.id, "go on")).chat.state == "waiting"


async def _turn(engine: Engine, chat_id: str, client_id: str) -> list[Any]:
    """Return what is told of a turn until the chat rests: of a message that was sent before."""
    return [event async for event in engine.stream(chat_id, "go", client_id=client_id)]
