"""Chats behind PgBouncer: pooling by session takes nothing away, pooling by transaction wants another way to listen."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from support.processes.pgbouncer import Mode, needs_pgbouncer, pooler
from support.processes.postgres_server import Server
from turnwise import Engine, SettingsError, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

pytestmark = [pytest.mark.deep, needs_pgbouncer]


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


async def test_transaction_pooler_without_direct_url_is_refused(postgres: Server) -> None:
    """When the store opens, and before anything is set in sessions that other programs use, too."""
    with pooler(postgres, "transaction") as pooled:
        with pytest.raises(SettingsError, match=r"pools by transaction.*\?direct_url=") as caught:
            await Engine(f"{pooled}&schema=pooled", model="demo").__aenter__()
        assert caught.value.field == "direct_url"
