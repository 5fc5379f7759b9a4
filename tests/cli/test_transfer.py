"""`turnwise export` and `import`: a chat goes from one store to another, all of it or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from support.terminal import Terminal
from turnwise import Engine
from turnwise.providers.scripted import ScriptedModel

OTHER = ("--store", "sqlite:///other.db")


def begun(terminal: Terminal) -> str:
    """Begin a chat, let it rest, make another store, and return the chat's id."""

    async def begin() -> str:
        async with Engine(f"sqlite:///{terminal.folder}/turnwise.db", model=ScriptedModel(["Grüße\u2028…"])) as engine:
            chat = await engine.create_chat(title="the-title")
            await engine.ask(chat.id, "the-question")
            return chat.id

    assert terminal.run("migrate", *OTHER).code == 0
    return anyio.run(begin)


def test_a_chat_moves_as_a_file(terminal: Terminal) -> None:
    chat_id = begun(terminal)
    written = terminal.run("export", "last", "--output", "chat.jsonl")
    assert written.code == 0, written.err
    count = len((terminal.folder / "chat.jsonl").read_bytes().splitlines())
    assert f"wrote {count} lines to chat.jsonl" in written.words
    done = terminal.run("import", "chat.jsonl", *OTHER)
    assert (done.code, f"✓ chat {chat_id} is imported" in done.words) == (0, True), done.words
    assert "Grüße" in terminal.run("show", chat_id, *OTHER).words
    assert terminal.run("verify", chat_id, *OTHER).code == 0
    log = json.loads(terminal.run("audit", chat_id, "--json", *OTHER).out)
    assert (log[-1]["trigger"], log[-1]["actor"]) == ("imported", "operator")


def test_a_chat_moves_through_a_pipe(terminal: Terminal) -> None:
    chat_id = begun(terminal)
    printed = terminal.run("export", chat_id)
    assert printed.code == 0
    chat = json.loads(terminal.run("import", "-", "--json", "--actor", "ann", *OTHER, typed=printed.out).out)
    assert chat["id"] == chat_id


def test_a_signed_file_needs_its_key(terminal: Terminal) -> None:
    begun(terminal)
    (terminal.folder / "key").write_text("secret\n")
    (terminal.folder / "wrong").write_text("another\n")
    signed = terminal.run("export", "last", "-o", "chat.jsonl", "--key", "key")
    assert "signed" in signed.words
    refused = terminal.run("import", "chat.jsonl", "--key", "wrong", *OTHER)
    assert (refused.code, "not made with this key" in refused.words) == (1, True), refused.words
    assert terminal.run("import", "chat.jsonl", "--key", "key", *OTHER).code == 0
    assert terminal.run("import", "chat.jsonl", "--key", "key", *OTHER).code == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "line 1 of the exported chat: the header is missing"),
        (b"nonsense\n", "line 1 of the exported chat: it is no line of JSON"),
        (b"\xff\xfe\n", "line 1 of the exported chat: it is no line of JSON"),
        (b'{"format":"turnwise-audit/1"}\n', "the header of an exported chat belongs here"),
    ],
)
def test_what_is_no_exported_chat_is_refused(terminal: Terminal, content: bytes, told: str) -> None:
    begun(terminal)
    (terminal.folder / "chat.jsonl").write_bytes(content)
    refused = terminal.run("import", "chat.jsonl", *OTHER)
    assert (refused.code, told in refused.words) == (1, True), refused.words
    assert json.loads(terminal.run("list", "--json", *OTHER).out) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("import", "nowhere.jsonl"), "there is no file"),
        (("import", "chat.jsonl", "--store", "sqlite:///nowhere.db"), "there is no file"),
        (("export", "last", "-o", "nowhere/chat.jsonl"), "there is no folder"),
        (("export", "nobody"), "there is no chat"),
    ],
)
def test_a_misuse_is_named(terminal: Terminal, words: tuple[str, ...], told: str) -> None:
    begun(terminal)
    Path(terminal.folder / "chat.jsonl").write_text("{}")
    refused = terminal.run(*words)
    assert (refused.code, told in refused.words) == (2, True), refused.words
