"""`turnwise erase`: it reaches whatever a person can have said, asks before, and tells what is left where."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.terminal import Keyboard, Terminal
from turnwise import Engine, ModelError
from turnwise.providers.scripted import Reply, ScriptedModel


def _url(terminal: Terminal) -> str:
    return f"sqlite:///{terminal.folder}/turnwise.db"


def begun(terminal: Terminal, *replies: Any) -> str:
    """Begin a chat of which everything can be erased, let it rest, and return its id."""

    async def begin() -> str:
        async with Engine(_url(terminal), model=ScriptedModel(list(replies))) as engine:
            chat = await engine.create_chat(title="the-title", metadata={"kind": "the-kind"}, system="the-system")
            for number in range(len(replies)):
                await engine.ask(chat.id, f"question-{number}")
            return chat.id

    return anyio.run(begin)


def said(terminal: Terminal, chat_id: str) -> dict[str, str]:
    """Return the ids of a chat's messages by what they say."""
    shown = json.loads(terminal.run("show", chat_id, "--json").out)["messages"]
    return {message["parts"][0]["text"]: message["id"] for message in shown}


def raw(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def versions(terminal: Terminal, chat_id: str) -> int:
    return len(json.loads(terminal.run("audit", chat_id, "--json").out))


def test_erase_takes_messages_and_labels(terminal: Terminal) -> None:
    chat_id = begun(terminal, "answer-0", "answer-1")
    ids = said(terminal, chat_id)
    doomed = (ids["question-0"], ids["answer-1"])
    done = terminal.run("erase", chat_id, *doomed, "--what", "title", "--what", "metadata", "--yes")
    assert done.code == 0, done.err
    for told in (*doomed, "metadata, title", "Backups", "provider"):
        assert told in done.words
    assert "may hold it still" not in done.words
    for word, left in {
        b"question-0": False,
        b"answer-1": False,
        b"the-title": False,
        b"the-kind": False,
        b"question-1": True,
        b"answer-0": True,
        b"the-system": True,
    }.items():
        assert (word in raw(terminal.folder)) is left, word
    assert terminal.run("verify", chat_id).code == 0


def test_erase_everything(terminal: Terminal) -> None:
    chat_id = begun(terminal, "answer-0", Reply(error=ModelError("quota", message="the-problem")))
    done = json.loads(terminal.run("erase", chat_id, "--everything", "-y", "--json").out)
    assert len(done["messages"]) == 3
    assert done["labels"] == ["errors", "metadata", "reasons", "system", "title"]
    left = raw(terminal.folder)
    for word in (b"question-", b"answer-", b"the-title", b"the-kind", b"the-system", b"the-problem"):
        assert word not in left


def test_erase_reports_remaining_copies(terminal: Terminal) -> None:
    """Forks keep their own copies, and what a repair has put aside goes along."""
    chat_id = begun(terminal, "answer-0")

    async def fork() -> str:
        async with Engine(_url(terminal), model="demo") as engine:
            version = (await engine.get_chat(chat_id)).version
            return (await engine.fork(chat_id, at_version=version)).id

    forked = anyio.run(fork)
    with closing(sqlite3.connect(terminal.folder / "turnwise.db")) as on, on:
        on.execute("UPDATE messages SET body = 'no JSON' WHERE chat_id = ? AND role = 'assistant'", (chat_id,))
    assert terminal.run("doctor", "--repair", chat_id).code == 0
    done = terminal.run("erase", chat_id, "m1", "--yes")
    assert forked in done.words
    assert "1 row(s)" in done.words


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 2, "name messages"),
        (("--what", "titel"), 2, "must be of everything"),
        (("m99",), 1, "m99"),
        (("m1", "m99"), 1, "m99"),
    ],
)
def test_refused_erasure_erases_nothing(terminal: Terminal, words: tuple[str, ...], code: int, told: str) -> None:
    chat_id = begun(terminal, "answer-0")
    before = versions(terminal, chat_id)
    refused = terminal.run("erase", chat_id, *words, "--yes")
    assert (refused.code, told in refused.words) == (code, True), refused.words
    assert versions(terminal, chat_id) == before


def test_erase_without_terminal_needs_yes(terminal: Terminal) -> None:
    """In a pipe the answer would be whatever comes next."""
    chat_id = begun(terminal, "answer-0")
    refused = terminal.run("erase", chat_id, "m1", typed="y\n")
    assert (refused.code, "--yes" in refused.words) == (2, True)
    assert b"question-0" in raw(terminal.folder)


@pytest.mark.parametrize("answer", ["\r", "yes\r"])
def test_erase_asks_at_a_terminal(terminal: Terminal, answer: str) -> None:
    chat_id = begun(terminal, "answer-0")
    with Keyboard(terminal, ("erase", "last", "m1", "--what", "title")) as keyboard:
        keyboard.see(f"Erase m1, title of {chat_id}, for good? [y/N]")
        keyboard.type(answer)
        keyboard.see("erased in" if answer == "yes\r" else "Nothing was erased")
        code = keyboard.process.wait()
    assert code == (0 if answer == "yes\r" else 1)
    assert (b"question-0" in raw(terminal.folder)) is (answer != "yes\r")
