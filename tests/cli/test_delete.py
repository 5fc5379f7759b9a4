"""`turnwise delete`: it asks before, takes all of the chat, and tells what is left where."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from support.terminal import Keyboard, Terminal
from turnwise import Engine, Settings
from turnwise.providers.scripted import ScriptedModel


def _url(terminal: Terminal) -> str:
    return f"sqlite:///{terminal.folder}/turnwise.db"


def begun(terminal: Terminal) -> str:
    """Begin a chat, let it rest, and return its id."""

    async def begin() -> str:
        async with Engine(_url(terminal), model=ScriptedModel(["the-answer"])) as engine:
            chat = await engine.create_chat(title="the-title")
            await engine.ask(chat.id, "the-question")
            return chat.id

    return anyio.run(begin)


def raw(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def test_delete_removes_chat_and_reports_remains(terminal: Terminal) -> None:
    chat_id = begun(terminal)
    head = json.loads(terminal.run("audit", chat_id, "--json").out)[-1]["hash"]
    done = terminal.run("delete", chat_id, "--yes")
    assert done.code == 0, done.err
    for told in (f"✓ deleted {chat_id}", "by operator", head, "Backups", "provider"):
        assert told in done.words
    for word in (b"the-title", b"the-question", b"the-answer"):
        assert word not in raw(terminal.folder)
    assert chat_id not in terminal.run("list").words


def test_second_delete_prints_the_same_tombstone(terminal: Terminal) -> None:
    chat_id = begun(terminal)
    first = json.loads(terminal.run("delete", chat_id, "--yes", "--json", "--actor", "ann").out)
    assert first["actor"] == "ann"
    again = terminal.run("delete", chat_id, "--json")
    assert (again.code, json.loads(again.out)) == (0, first)


@pytest.mark.parametrize("command", ["show", "resume"])
def test_commands_report_a_deleted_chat(terminal: Terminal, command: str) -> None:
    chat_id = begun(terminal)
    terminal.run("delete", chat_id, "--yes")
    refused = terminal.run(command, chat_id)
    assert (refused.code, f"chat '{chat_id}' was deleted at" in refused.words) == (2, True), refused.words


def test_busy_chat_is_not_deleted(terminal: Terminal) -> None:
    async def busy() -> str:
        async with Engine(_url(terminal), model="demo", settings=Settings(run_worker=False)) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "hello")
            return chat.id

    chat_id = anyio.run(busy)
    refused = terminal.run("delete", chat_id, "--yes")
    assert (refused.code, "interrupt it" in refused.words) == (1, True)
    assert terminal.run("show", chat_id).code == 0


def test_delete_without_terminal_needs_yes(terminal: Terminal) -> None:
    chat_id = begun(terminal)
    refused = terminal.run("delete", chat_id, typed="y\n")
    assert (refused.code, "--yes" in refused.words) == (2, True)
    assert b"the-question" in raw(terminal.folder)


@pytest.mark.parametrize(("answer", "gone"), [("\udcff\r", False), ("yes\r", True)])
def test_delete_asks_at_a_terminal(terminal: Terminal, answer: str, gone: bool) -> None:  # noqa: FBT001
    chat_id = begun(terminal)
    with Keyboard(terminal, ("delete", "last")) as keyboard:
        keyboard.see(f"Delete {chat_id}, all of it, for good? [y/N]")
        keyboard.type(answer)
        keyboard.see("✓ deleted" if gone else "Nothing was deleted")
        assert keyboard.process.wait() == (0 if gone else 1)
    assert (b"the-question" not in raw(terminal.folder)) is gone
