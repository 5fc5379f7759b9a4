"""PostgreSQL crashes: callers wait for its recovery, and durable parts are still there."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import anyio
import pytest

from support.gated_model import PacedModel
from support.processes.pgbouncer import Mode, needs_pgbouncer, pooler
from support.processes.postgres_server import Server
from turnwise import Engine, Settings, SettingsError, StoreError, ToolContext, tool
from turnwise.persistence.postgres import pool
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import ToolProgressEvent
from turnwise.states.names import ChatState

pytestmark = pytest.mark.deep

LONG = Settings(lease=600, renew_every=200)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.running() as running:
        yield running


@pytest.fixture(autouse=True)
def timeout_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine needs time to start a server."""
    monkeypatch.setattr(pool, "RETRY_S", 60)


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
    """Tool progress is no part of a reply, so no later event repeats it."""
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
            events = [event async for event in reader.events(chat.id, follow=False)]
            assert [event for event in events if isinstance(event, ToolProgressEvent)] == [shown]
        go_on.set()
        assert (await engine.wait(chat.id)).state == "waiting"
        assert (await engine.verify(chat.id)).ok


# A standby


async def test_hot_standby_answers_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streamed parts of a running chat are in an unlogged table, so the standby answers without them."""
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
                await reader.wait(chat.id, until={ChatState.streaming}, timeout=300)
                assert (await reader.transcript(chat.id)).state == "streaming"
                events = [event async for event in reader.events(chat.id, follow=False)]
                assert {event.kind for event in events} >= {"status", "message"}
                assert (await reader.verify(chat.id)).ok
                assert (await reader.explain(chat.id)).state == "streaming"
                assert "Count." in "".join([line async for line in reader.export_chat(chat.id)])
                assert [diagnosis async for diagnosis in reader.diagnose()] == []
                model.allow(9)
                assert (await reader.wait(chat.id, timeout=300)).state == "waiting"
                monkeypatch.setattr(pool, "RETRY_S", 1)  # it may be promoted any moment, and is not
                with pytest.raises(StoreError, match="read-only"):
                    await reader.send_message(chat.id, "More.")


# PgBouncer


@needs_pgbouncer
@pytest.mark.parametrize(
    ("mode", "options"),
    [("session", ""), ("session", "&listen=false"), ("transaction", "&direct_url="), ("transaction", "&listen=false")],
)
async def test_chats_run_behind_a_pooler(postgres: Server, mode: Mode, options: str) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "a parcel"

    model = ScriptedModel([Reply(calls=[Call("look", {})]), "It is a parcel."])
    options += quote(postgres.address, safe="") if options == "&direct_url=" else ""
    schema = postgres.new_url("pooled").rpartition("&")[2]
    with pooler(postgres, mode) as pooled:
        async with Engine(f"{pooled}&{schema}{options}", model=model, tools=[look]) as engine:
            chat = await engine.create_chat()
            sent = await engine.send_message(chat.id, "What is there?")
            kinds = []
            async for event in engine.events(chat.id, after=sent.seq):
                kinds.append(event.kind)
                if event.kind == "turn_finished":
                    break
            assert {"message", "part", "tool_result"} <= set(kinds)
            assert (await engine.verify(chat.id)).ok


@needs_pgbouncer
async def test_transaction_pooler_without_direct_url_is_refused(postgres: Server) -> None:
    """The refusal comes when the store opens, before it changes settings of sessions that other programs share."""
    with pooler(postgres, "transaction") as pooled:
        with pytest.raises(SettingsError, match=r"pools by transaction.*\?direct_url=") as caught:
            await Engine(f"{pooled}&schema=pooled", model="demo").__aenter__()
        assert caught.value.field == "direct_url"
