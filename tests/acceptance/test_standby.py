"""A standby takes over from a primary that was killed, and answers readers before that."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from support.gated_model import PacedModel
from support.processes.postgres_server import Server
from turnwise import Engine, Settings, StoreError, tool
from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.names import ChatState

pytestmark = pytest.mark.deep


async def test_turn_goes_on_at_a_promoted_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool's call was stored by the primary; its result, and all that follows, by the standby."""
    monkeypatch.setattr(pool, "PATIENCE", 60)  # a busy machine takes its time to promote a server
    started, go_on = anyio.Event(), anyio.Event()

    @tool
    async def pay() -> str:
        """Pay."""
        assert not started.is_set()
        started.set()
        await go_on.wait()
        return "paid"

    with Server.running() as primary, primary.standby() as standby:
        hosts = f"host={primary.socket},{standby.socket}&target_session_attrs=primary"
        url = f"postgresql://postgres@/postgres?{hosts}&schema=turnwise"
        model = ScriptedModel([Reply(calls=[Call("pay", {})]), "It is paid."])
        async with Engine(url, model=model, tools=[pay]) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "Pay.")
            await started.wait()
            await primary.stop()
            await anyio.to_thread.run_sync(standby.promote)
            go_on.set()
            rested = await engine.wait(chat.id)
            assert rested.state == "waiting"
            messages = await engine.messages(chat.id)
            assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
            assert (await engine.verify(chat.id)).ok


async def test_hot_standby_answers_readers() -> None:
    """Also of a chat under way, whose streamed parts it does not have: they are in an unlogged table."""
    with Server.running() as primary, primary.standby() as standby:
        url = "postgresql://postgres@/postgres?schema=turnwise&host="
        model = PacedModel([Reply("one two", chunks=2)])
        model.allow(1)
        async with Engine(f"{url}{primary.socket}", model=model) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "Count.")
            async for event in engine.events(chat.id):
                if event.kind == "part":
                    break
            store = PostgresStore(f"{url}{standby.socket}", poll_interval=0.1)
            async with Engine(store, model="demo", settings=Settings(run_worker=False)) as reader:
                await reader.wait(chat.id, until={ChatState.streaming}, timeout=30)
                assert (await reader.transcript(chat.id)).state == "streaming"
                events = [event async for event in reader.events(chat.id, follow=False)]
                assert {event.kind for event in events} >= {"status", "message"}
                assert (await reader.verify(chat.id)).ok
                assert (await reader.explain(chat.id)).state == "streaming"
                assert "Count." in "".join([line async for line in reader.export_chat(chat.id)])
                assert [diagnosis async for diagnosis in reader.diagnose()] == []
                model.allow(9)
                assert (await reader.wait(chat.id, timeout=30)).state == "waiting"
                with pytest.raises(StoreError, match="read-only"):
                    await reader.send_message(chat.id, "More.")
