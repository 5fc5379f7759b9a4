"""`turnwise export` and `import`: a chat goes from one store to another, all of it or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tracemalloc
from pathlib import Path

import anyio
import pytest

from cli.terminal_chats import url_of
from support.terminal import Terminal
from turnwise import Engine, Settings
from turnwise.cli.app import main
from turnwise.providers.scripted import ScriptedModel

OTHER = ("--store", "sqlite:///other.db")
LARGE = 18_000_000
"""Bytes of a chat's file, more than a command may hold at once even if it did not spell them in base64."""
ALLOWED = 15_000_000
"""Bytes that a command may hold: some copies of a line."""


def rested(terminal: Terminal) -> str:
    """Create a chat, let it rest, make another store, and return the chat's id."""

    async def live() -> str:
        async with Engine(url_of(terminal), model=ScriptedModel(["Grüße\u2028…"])) as engine:
            chat = await engine.create_chat(title="the-title")
            await engine.ask(chat.id, "the-question")
            return chat.id

    assert terminal.run("migrate", *OTHER).code == 0
    return anyio.run(live)


def test_chat_moves_as_a_file(terminal: Terminal) -> None:
    chat_id = rested(terminal)
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


def test_signed_export_needs_its_key(terminal: Terminal) -> None:
    rested(terminal)
    (terminal.folder / "key").write_text("secret\n")
    (terminal.folder / "wrong").write_text("another\n")
    signed = terminal.run("export", "last", "-o", "chat.jsonl", "--key", "key")
    assert "signed" in signed.words
    refused = terminal.run("import", "chat.jsonl", "--key", "wrong", *OTHER)
    assert (refused.code, "not made with this key" in refused.words) == (1, True), refused.words
    assert terminal.run("import", "chat.jsonl", "--key", "key", *OTHER).code == 0
    assert terminal.run("import", "chat.jsonl", "--key", "key", *OTHER).code == 1


def test_import_refuses_other_files(terminal: Terminal) -> None:
    rested(terminal)
    for content, problem in {
        b"": "line 1 of the exported chat: the header is missing",
        b"\xff\xfe\n": "line 1 of the exported chat: it is no line of JSON",
        b'{"format":"turnwise-audit/1"}\n': "the header of an exported chat belongs here",
    }.items():
        (terminal.folder / "chat.jsonl").write_bytes(content)
        refused = terminal.run("import", "chat.jsonl", *OTHER)
        assert (refused.code, problem in refused.words) == (1, True), refused.words
    assert json.loads(terminal.run("list", "--json", *OTHER).out) == []


def test_transfer_misuse_is_named(terminal: Terminal) -> None:
    rested(terminal)
    Path(terminal.folder / "chat.jsonl").write_text("{}")
    for typed, problem in {
        "import nowhere.jsonl": "there is no file",
        "import chat.jsonl --store sqlite:///nowhere.db": "there is no file",
        "export last -o nowhere/chat.jsonl": "there is no folder",
        "export last -o -": "'-' is no name of a file here; /dev/stdout is what a pipe reads",
        "export nobody": "there is no chat",
    }.items():
        refused = terminal.run(*typed.split())
        assert (refused.code, problem in refused.words) == (2, True), refused.words


# Large chats


@pytest.fixture
def large(terminal: Terminal) -> Terminal:
    """Return a terminal in a folder with a store whose chat has a large file."""

    async def fill() -> None:
        settings = Settings(run_worker=False)
        async with Engine(url_of(terminal), model=ScriptedModel([]), settings=settings) as engine:
            chat = await engine.create_chat()
            pieces = [bytes([number]) * (LARGE // 12) for number in range(12)]
            await engine.send_message(chat.id, [await engine.put_file(chat.id, pieces, media_type="image/png")])

    anyio.run(fill)
    return terminal


def peak(*words: str) -> int:
    """Return how many bytes a command allocates at most while it prints to /dev/null."""
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open("w") as out, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", ["turnwise", *words])
        tracemalloc.start()
        try:
            with pytest.raises(SystemExit) as exit_:
                main()
            assert not exit_.value.code
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.deep
def test_transfer_streams_large_files(large: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    large.run("migrate", *OTHER)
    monkeypatch.chdir(large.folder)
    assert peak("export", "last", "-o", "chat.jsonl") < ALLOWED
    assert (large.folder / "chat.jsonl").stat().st_size > LARGE
    assert peak("import", "chat.jsonl", *OTHER) < ALLOWED
    assert large.run("verify", "last", "--files", *OTHER).code == 0


def test_import_names_the_bad_line(terminal: Terminal) -> None:
    rested(terminal)
    terminal.run("export", "last", "-o", "chat.jsonl")
    lines = (terminal.folder / "chat.jsonl").read_bytes().splitlines(keepends=True)
    wrong = next(number for number, line in enumerate(lines, 1) if b"the-question" in line)
    lines[wrong - 1] = lines[wrong - 1].replace(b"the-question", b"the-answer")
    (terminal.folder / "chat.jsonl").write_bytes(b"".join(lines))
    refused = terminal.run("import", "chat.jsonl", *OTHER)
    assert (refused.code, f"line {wrong} of the exported chat" in refused.words) == (1, True), refused
    assert json.loads(terminal.run("list", "--json", *OTHER).out) == []
