"""A PostgreSQL server that crashes: who comes while it recovers waits for it, and what was shown to last is there."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from support.processes.postgres_server import Server
from turnwise import Engine, Settings, ToolContext, tool
from turnwise.persistence.postgres import pool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import ToolProgressEvent

pytestmark = pytest.mark.deep

LONG = Settings(lease=600, renew_every=200)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.running() as running:
        yield running


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a busy machine the time that it takes to start a server."""
    monkeypatch.setattr(pool, "PATIENCE", 60)


async def test_engine_waits_for_a_recovering_server(server: Server) -> None:
    url = server.url("recovering")
    async with Engine(url, model=ScriptedModel(["hello"])) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "hello"

    async def use() -> None:
        async with Engine(url, model=ScriptedModel(["hello again"])) as engine:
            assert (await engine.ask(chat.id, "still there?")).text == "hello again"
            assert (await engine.verify(chat.id)).ok

    async with anyio.create_task_group() as tasks, server.recovering():
        tasks.start_soon(use)
        await server.refused(3)


async def test_shown_tool_progress_survives_a_server_crash(server: Server) -> None:
    """It is no part of a reply: nothing that comes later says again what it said."""
    go_on = anyio.Event()

    @tool
    async def work(context: ToolContext) -> str:
        """Work."""
        context.report({"done": 7})
        await go_on.wait()
        return "done"

    model = ScriptedModel([Reply(calls=[Call("work", {})]), "It is done."])
    url = server.url("progress")
    async with Engine(url, model=model, tools=[work], settings=LONG) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        async for event in engine.events(chat.id):
            if isinstance(event, ToolProgressEvent):
                shown = event
                break
        await server.crash()
        async with Engine(url, model=ScriptedModel([]), settings=Settings(run_worker=False)) as reader:
            kept = [event async for event in reader.events(chat.id, follow=False)]
            assert [event for event in kept if isinstance(event, ToolProgressEvent)] == [shown]
        go_on.set()
        assert (await engine.wait(chat.id)).state == "waiting"
        assert (await engine.verify(chat.id)).ok
