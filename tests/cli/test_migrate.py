"""`turnwise migrate`: a store is told with its chats."""

from __future__ import annotations

import json

import anyio

from support.look import colours, marked
from support.terminal import Terminal
from support.terminal_chats import begun
from turnwise import Engine, ModelError, Settings
from turnwise.cli.chat_argument import every_chat
from turnwise.providers.scripted import Reply


def test_a_store_is_told_with_its_chats(terminal: Terminal) -> None:
    with colours():
        empty = marked(terminal.run("migrate").out)
        begun(terminal, Reply(error=ModelError("quota")))
        for _ in range(2):
            begun(terminal)
        full = marked(terminal.run("migrate").out)
    ready = "[green]✓ [/]sqlite:///turnwise.db has the schema of this version"
    assert empty == [ready, "  no chats yet"]
    assert full == [ready, "       2 [green]waiting[/]", "       1 [bold red]error[/]"]
    long = f"sqlite:///{'x' * 120}.db"
    with colours():
        assert f"{long} has the schema" in terminal.run("migrate", "--store", long).out
    told = json.loads(terminal.run("migrate", "--json").out)
    assert told == {"store": "sqlite:///turnwise.db", "chats": {"waiting": 2, "error": 1}}


def test_every_chat_of_a_store_is_counted_page_by_page(terminal: Terminal) -> None:
    async def count() -> int:
        async with Engine("sqlite://", model="demo", settings=Settings(run_worker=False)) as engine:
            for _ in range(51):
                await engine.create_chat()
            return len({chat.id async for chat in every_chat(engine)})

    assert anyio.run(count) == 51
