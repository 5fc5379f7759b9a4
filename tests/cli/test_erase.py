"""`turnwise erase` and `delete`: confirmation, full erasure, and a report of remaining copies."""

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import typer

from cli.terminal_chats import url_of
from support.terminal import Terminal
from turnwise import Engine, ModelError
from turnwise.cli.erase import confirm
from turnwise.providers.scripted import Reply, ScriptedModel


def resting(terminal: Terminal, *replies: Any) -> str:
    """Create a chat with every kind of erasable content, let it rest, and return its id."""

    async def live() -> str:
        async with Engine(url_of(terminal), model=ScriptedModel(list(replies))) as engine:
            chat = await engine.create_chat(title="the-title", metadata={"kind": "the-kind"}, system="the-system")
            for number in range(len(replies)):
                await engine.ask(chat.id, f"question-{number}")
            return chat.id

    return anyio.run(live)


def raw(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def log_of(terminal: Terminal, chat_id: str) -> Any:
    return json.loads(terminal.run("audit", chat_id, "--json").out)


def test_erase_takes_messages_and_labels(terminal: Terminal) -> None:
    chat_id = resting(terminal, "answer-0", "answer-1")
    shown = json.loads(terminal.run("show", chat_id, "--json").out)["messages"]
    ids = {message["parts"][0]["text"]: message["id"] for message in shown}
    doomed = (ids["question-0"], ids["answer-1"])
    done = terminal.run("erase", chat_id, *doomed, "--what", "title", "--what", "metadata", "--yes")
    assert done.code == 0, done.err
    for words in (*doomed, "metadata, title", "Backups", "provider"):
        assert words in done.words
    assert "may hold it still" not in done.words
    left = raw(terminal.folder)
    for word in (b"question-0", b"answer-1", b"the-title", b"the-kind"):
        assert word not in left
    for word in (b"question-1", b"answer-0", b"the-system"):
        assert word in left
    assert terminal.run("verify", chat_id).code == 0


def test_erase_everything(terminal: Terminal) -> None:
    chat_id = resting(terminal, "answer-0", Reply(error=ModelError("quota", message="the-problem")))
    done = json.loads(terminal.run("erase", chat_id, "--everything", "-y", "--json").out)
    assert len(done["messages"]) == 3
    assert done["labels"] == ["errors", "metadata", "reasons", "system", "title"]
    left = raw(terminal.folder)
    for word in (b"question-", b"answer-", b"the-title", b"the-kind", b"the-system", b"the-problem"):
        assert word not in left


def test_erase_reports_remaining_copies(terminal: Terminal) -> None:
    """Forks have their own copies; quarantined rows are erased along."""
    chat_id = resting(terminal, "answer-0")

    async def fork() -> str:
        async with Engine(url_of(terminal), model="demo") as engine:
            version = (await engine.get_chat(chat_id)).version
            return (await engine.fork(chat_id, at_version=version)).id

    forked = anyio.run(fork)
    with closing(sqlite3.connect(terminal.folder / "turnwise.db")) as on, on:
        ((number,),) = on.execute("SELECT number FROM chats WHERE id = ?", (chat_id,))
        on.execute("UPDATE messages SET body = 'no JSON' WHERE chat = ? AND role = 'assistant'", (number,))
    assert terminal.run("doctor", "--repair", chat_id).code == 0
    done = terminal.run("erase", chat_id, "m1", "--yes")
    assert forked in done.words
    assert "1 row(s)" in done.words


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--yes",), 2, "name messages"),
        (("--what", "titel", "--yes"), 2, "must be of everything"),
        (("m1", "m99", "--yes"), 1, "m99"),
        (("m1",), 2, "--yes: say it where no terminal is there to ask at: what is erased does not come back"),
    ],
)
def test_refused_erasure_erases_nothing(terminal: Terminal, words: tuple[str, ...], code: int, problem: str) -> None:
    """In a pipe, a typed yes is no consent: it would be the next line of data."""
    chat_id = resting(terminal, "answer-0")
    before = log_of(terminal, chat_id)
    refused = terminal.run("erase", chat_id, *words, typed="y\n")
    assert (refused.code, problem in refused.words) == (code, True), refused.words
    assert log_of(terminal, chat_id) == before
    assert b"question-0" in raw(terminal.folder)


def test_delete_removes_chat_and_reports_remains(terminal: Terminal) -> None:
    chat_id = resting(terminal, "answer-0")
    head = log_of(terminal, chat_id)[-1]["hash"]
    done = terminal.run("delete", chat_id, "--yes")
    assert done.code == 0, done.err
    for words in (f"✓ deleted {chat_id}", "by operator", head, "Backups", "provider"):
        assert words in done.words
    for word in (b"the-title", b"question-0", b"answer-0"):
        assert word not in raw(terminal.folder)
    assert chat_id not in terminal.run("list").words
    for command in ("show", "resume"):
        refused = terminal.run(command, chat_id)
        assert (refused.code, f"chat '{chat_id}' was deleted at" in refused.words) == (2, True), refused.words


# The question before: only a plain yes goes on

QUESTION = "Erase [/m], [bold]m, " + ", ".join(f"m{number}" for number in range(100)) + ", for good?"


class Keys(io.StringIO):
    """Key presses at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("typed", ["y\n", " YES \n", "", "\n", "ye\n", "yes please\n", "n\ny\n"])
def test_only_yes_confirms(typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Keys(typed))
    if typed.strip().lower() in ("y", "yes"):
        confirm(QUESTION, done="erased")
        assert capsys.readouterr() == ("", f"{QUESTION} [y/N] "), "in one line, however long"
        return
    with pytest.raises(typer.Exit) as left:
        confirm(QUESTION, done="erased")
    assert left.value.exit_code == 1
    assert capsys.readouterr().err == f"{QUESTION} [y/N] Nothing was erased.\n"
