"""One chat that cannot be read is that chat's problem alone."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from conftest import OpenEngine

from turnwise import ChatUnreadable, ClientTool, Engine, Settings
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing.clock import ManualClock

pytestmark = pytest.mark.anyio
QUICK = Settings(lease=3, renew_every=1, poll_interval=1)


def poison(database: Path, sql: str, *values: object) -> None:
    """Write past turnwise, as a broken disk or a hand would."""
    with closing(sqlite3.connect(database)) as on, on:
        assert on.execute(sql, values).rowcount > 0


async def test_a_chat_that_cannot_be_read_is_listed_with_its_reason(open_engine: OpenEngine, database: Path) -> None:
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
        assert (await engine.ask(sound.id, "hello", timeout=5)).chat.state == "error"


async def test_a_sweep_goes_on_behind_chats_that_cannot_be_read(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many they are: those behind them are recovered, and each is told of once."""
    clock, url = ManualClock(), f"sqlite:///{database}"
    async with Engine(url, model=ScriptedModel(()), settings=Settings(run_worker=False), clock=clock) as engine:
        chats = [await engine.create_chat() for _ in range(130)]
        for chat in chats:
            await engine.send_message(chat.id, "hello")
    rows = [(chat.id, "nobody", 1, 0) for chat in chats]
    with closing(sqlite3.connect(database)) as on, on:
        on.executemany("INSERT INTO leases (chat_id, worker, token, expires) VALUES (?, ?, ?, ?)", rows)
        on.execute("UPDATE chats SET state = 'streaming'")
        on.execute("UPDATE chats SET facts = 'no JSON' WHERE id <> ?", (chats[-1].id,))
    model = ScriptedModel([Reply("recovered")])
    with caplog.at_level(logging.WARNING):
        async with Engine(url, model=model, settings=QUICK, clock=clock) as engine:
            for _ in range(8):
                clock.advance(1)
                with pytest.MonkeyPatch.context():
                    await _settled(engine)
            assert (await engine.wait(chats[-1].id, timeout=5)).state in {"waiting", "error"}
    told = [record.getMessage() for record in caplog.records if "chat_unreadable" in record.getMessage()]
    assert len(told) == len(set(told)) == len(chats) - 1


async def test_a_chat_that_cannot_be_read_holds_up_no_sweep_while_leases_are_in_doubt(database: Path) -> None:
    """The clock was set forward: whose lease has run out is looked at, and one of them cannot be."""
    clock, url = ManualClock(), f"sqlite:///{database}"
    sign = ClientTool("sign", "Signs.", {"type": "object"}, deadline=40)
    asks = ScriptedModel([Reply(calls=[Call("sign", {})])])
    async with Engine(url, model=asks, clock=clock) as engine:
        asking = await engine.create_chat(client_tools=[sign])
        assert (await engine.ask(asking.id, "sign")).open_calls
    async with Engine(url, model=ScriptedModel(()), settings=Settings(run_worker=False), clock=clock) as engine:
        broken = await engine.create_chat()
        await engine.send_message(broken.id, "hello")
    settings = Settings(poll_interval=1, lease=600, renew_every=10)
    async with Engine(url, model=ScriptedModel("told"), settings=settings, clock=clock) as engine:
        await _settled(engine)
        with closing(sqlite3.connect(database)) as on, on:
            on.execute("UPDATE chats SET state = 'streaming', facts = 'no JSON' WHERE id = ?", (broken.id,))
            on.execute("INSERT INTO leases (chat_id, worker, token, expires) VALUES (?, 'nobody', 1, 0)", (broken.id,))
        clock.step(3600)
        clock.advance(2)
        assert (await engine.wait(asking.id, until=["waiting"], timeout=15)).state == "waiting"
        (result,) = [message.result for message in await engine.messages(asking.id) if message.result is not None]
        assert result.outcome == "timed_out"


async def _settled(engine: Engine) -> None:
    for _ in range(50):
        await engine.list_chats(limit=1)
