"""`turnwise list`: what fits of each chat, newest first."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from support.look import look
from support.terminal import Terminal
from support.terminal_chats import CHAT, begun
from turnwise import ModelError
from turnwise.cli import style
from turnwise.cli.list_chats import _table
from turnwise.providers.scripted import Reply


def test_list_fits_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    chats = [CHAT, replace(CHAT, id="c" * 26, archived=True, title=None, turn=12)]
    monkeypatch.setattr(style.console, "width", 100)
    assert look(_table(chats)) == [
        "[dim]chat                        state             turns  changed (UTC)     title  [/]",
        "c1                          [green]waiting         [/]  1      2026-01-02 03:04  A title",
        f"{'c' * 26}  [green]waiting[/][dim green] archived[/]  12     2026-01-02 03:04~~~~~~~~~",
    ]
    monkeypatch.setattr(style.console, "width", 30)
    assert look(_table(chats), width=30) == [
        "[dim]chat          state           [/]",
        "c1            [green]waiting         [/]",
        "ccccccccccc…  [green]waiting[/][dim green] archived[/]",
    ]
    monkeypatch.setattr(style.console, "width", 8)
    assert look(_table(chats), width=18)[1].startswith("…  ")
    long = replace(CHAT, title="t" * 61)
    monkeypatch.setattr(style.console, "width", 100)
    assert look(_table([long]), width=150)[1].endswith(f" {'t' * 59}…")


def test_list_limit_takes_newest_first(terminal: Terminal) -> None:
    first, second, third = [begun(terminal, *replies) for replies in ([], [Reply(error=ModelError("quota"))], [])]

    def listed(*words: str) -> list[str]:
        return [chat["id"] for chat in json.loads(terminal.run("list", "--json", *words).out)]

    assert listed() == [third, second, first]
    assert listed("--limit", "2") == [third, second]
    assert listed("--state", "error") == [second]
    assert terminal.run("list", "--state", "pending").out == "There is no such chat.\n"
    assert [line.split()[:2] for line in terminal.run("list", "--limit", "2").out.splitlines()[1:]] == [
        [third, "waiting"],
        [second, "error"],
    ]
