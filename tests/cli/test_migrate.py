"""`turnwise migrate`: a store is told with its chats."""

from __future__ import annotations

import json

from support.look import colours, marked
from support.terminal import Terminal
from support.terminal_chats import begun
from turnwise import ModelError
from turnwise.providers.scripted import Reply


def test_migrate_counts_chats(terminal: Terminal) -> None:
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
