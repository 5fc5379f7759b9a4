"""A synchronous standby takes over from a primary that was killed: nothing acknowledged is lost."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from support.processes.postgres_server import Server
from turnwise import Engine, tool
from turnwise.persistence.postgres import pool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

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
