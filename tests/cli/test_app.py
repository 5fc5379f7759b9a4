"""The command line as a whole: help, misuse, exit codes, broken pipes, and migrations of a store."""

import errno
import json
import os
import sqlite3
import subprocess
import sys
from typing import Any

import pytest
import typer

from cli.look import colours, marked
from cli.terminal_chats import chat_with
from support.terminal import PROGRAM, Terminal
from turnwise import ModelError
from turnwise.cli import app
from turnwise.cli.failures import DEBUG, MISUSE, PROBLEM, STOPPED, exit_code_of
from turnwise.providers.scripted import Reply
from turnwise.states.errors import SettingsError, StoreError


def test_every_command_and_option_has_help(terminal: Terminal) -> None:
    commands: Any = typer.main.get_command(app.app)
    for command in commands.commands.values():
        assert command.help
        assert [parameter.name for parameter in command.params if not parameter.help] == [], command.name
    usage = terminal.run().words
    assert "Usage: turnwise [OPTIONS] COMMAND" in usage
    assert "Run the life of LLM chats as a declared, durable state machine." in usage
    assert terminal.run("--version").out.startswith("turnwise 0.")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("list", "there is no file"),
        ("list --store sqlite:///.", "'.' is a folder; name the file of a store"),
        ("list --store sqlite://", "a database in memory ends with its process; name a file"),
        ("list --store redis://x", "no store's URL"),
        ("show cffff --store sqlite:///there.db", "there is no chat"),
        ("show last --store sqlite:///there.db", "there is no chat"),
        ("verify log.jsonl --store sqlite:///there.db", "No such file"),
        ("list --state sleeping --store sqlite:///there.db", "must be one of"),
        ("chat --model parrot", "model"),
        ("chat --pace nan", "--pace"),
        ("replay last --delay -1", "--delay"),
        ("replay last --delay 3601", "--delay"),
        ("host", "No such command"),
        ("list --loud", "No such option"),
        ("diagram --out missing/file.svg", "No such file"),
        ("diagram --out .", "Is a directory"),
        ("list --store postgres-sql://jane:hunter2@host/db", "jane:***@host"),
        ("chat --store postgres-sql://jane:hunter2@host/db", "jane:***@host"),
    ],
)
def test_misuse_is_explained_and_exits_2(terminal: Terminal, typed: str, words: str) -> None:
    """Misuse creates no store, and prints no password."""
    terminal.run("migrate", "--store", "sqlite:///there.db")
    refused = terminal.run(*typed.split())
    assert (refused.code, words in refused.words, "hunter2" in refused.words) == (2, True, False), refused
    assert "Traceback" not in refused.err
    assert not (terminal.folder / "turnwise.db").exists()


@pytest.mark.parametrize("command", [("diagram", "--out"), ("audit", "last", "--export")], ids=" ".join)
def test_full_disk_exits_1(terminal: Terminal, command: tuple[str, ...]) -> None:
    chat_with(terminal)
    refused = terminal.run(*command, "/dev/full")
    assert (refused.code, "'/dev/full': No space left" in refused.words) == (1, True), refused


@pytest.mark.deep
@pytest.mark.parametrize(("how", "unbuffered"), [("no reader", ""), ("full disk", ""), ("full disk", "1")])
def test_broken_pipe_ends_a_command_silently(terminal: Terminal, how: str, unbuffered: str) -> None:
    """`head` and `less` break pipes; a full disk is reported.

    Without a buffer the write itself fails, with one the last flush does.
    """
    chat_with(terminal)
    if how == "full disk":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        read, out = os.pipe()
        os.close(read)
    environment = {**terminal.environment, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [*PROGRAM, "list"], cwd=terminal.folder, env=environment, stdout=out, stderr=subprocess.PIPE, check=False
    )
    os.close(out)
    assert (done.returncode, b"Traceback" in done.stderr, b"Exception ignored" in done.stderr) == (1, False, False)
    assert done.stderr == b"" if how == "no reader" else b"No space left" in done.stderr


def test_unexpected_error_is_one_sentence(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*, prog_name: str) -> None:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [KeyError("the-key")])])

    monkeypatch.delenv(DEBUG, raising=False)
    monkeypatch.setattr(app, "app", broken)
    failed = terminal.run("list")
    assert (failed.code, "Traceback" in failed.err) == (1, False)
    assert "KeyError: 'the-key'" in failed.words
    monkeypatch.setenv(DEBUG, "1")
    with pytest.raises(ExceptionGroup):
        app._run()


def test_unopenable_store_is_explained(terminal: Terminal) -> None:
    (terminal.folder / "turnwise.db").write_bytes(b"no database" * 100)
    worker = ("worker", "support.processes.demo_agents:AGENTS")
    serve = ("serve", "support.processes.demo_agents:AGENTS", "--port", "0")
    for arguments in (("list",), ("chat",), ("migrate",), ("send", "last", "hi"), ("inspect",), worker, serve):
        refused = terminal.run(*arguments)
        assert (refused.code, "Traceback" in refused.err) == (1, False), refused


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (OSError(errno.ENOSPC, "No space left"), "No space left."),
        (OSError(errno.EPIPE, "Broken pipe", "fifo"), "'fifo': Broken pipe."),
        (OSError("odd\x1b?"), r"odd\x1b?"),
        (OSError(errno.EPIPE, "Broken pipe"), ""),
        (ValueError("odd"), f"this should not have happened: ValueError: odd. With {DEBUG}=1 it shows where."),
    ],
)
def test_error_is_printed_as_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, printed: str
) -> None:
    monkeypatch.delenv(DEBUG, raising=False)
    with colours():
        assert exit_code_of(error) == PROBLEM
    line = f"[bold red]turnwise: [/][red]{printed}[/]"
    assert "".join(marked(capsys.readouterr().err.replace("\n", " "))).rstrip("~ ") == (line if printed else "")


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several errors, the worst that a person can correct counts."""
    monkeypatch.delenv(DEBUG, raising=False)
    group = BaseExceptionGroup
    assert exit_code_of(group("two", [ValueError("odd"), SettingsError("store", "must be a URL")])) == MISUSE
    assert exit_code_of(group("two", [ValueError("odd"), StoreError("the disk is full")])) == PROBLEM
    assert exit_code_of(group("two", [group("inner", [KeyboardInterrupt()]), ValueError("odd")])) == STOPPED
    assert "odd" not in capsys.readouterr().err
    assert exit_code_of(group("two", [ValueError("odd"), BrokenPipeError(errno.EPIPE, "no reader")])) == PROBLEM
    assert capsys.readouterr().err == ""


def test_version_needs_no_extra_imports() -> None:
    """Slow imports would delay every command."""
    command = [sys.executable, "-X", "importtime", "-m", "turnwise", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("turnwise 0.")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "turnwise.cli.operating" in imported
    assert not imported & {"prompt_toolkit", "fastapi", "uvicorn", "httpx", "asyncpg", "pydantic_ai"}


PRESSED = """
import signal, sys
from importlib.metadata import entry_points

class Pressing:
    @staticmethod
    def find_spec(name, *_):
        if name == "MODULE":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
(program,) = entry_points(group="console_scripts", name="turnwise")
sys.meta_path.insert(0, Pressing)
program.load()()
"""


@pytest.mark.parametrize("module", [pytest.param("turnwise", marks=pytest.mark.deep), "turnwise.engine.engine"])
def test_ctrl_c_during_import_is_silent(module: str) -> None:
    script = PRESSED.replace("MODULE", module)
    done = subprocess.run([sys.executable, "-c", script, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (STOPPED, "", "")


def test_migrate_counts_chats(terminal: Terminal) -> None:
    with colours():
        empty = marked(terminal.run("migrate").out)
        chat_with(terminal, Reply(error=ModelError("quota")))
        for _ in range(2):
            chat_with(terminal)
        full = marked(terminal.run("migrate").out)
        long = f"sqlite:///{'x' * 120}.db"
        assert f"{long} has the schema" in terminal.run("migrate", "--store", long).out
    ready = "[green]✓ [/]sqlite:///turnwise.db has the schema of this version"
    assert empty == [ready, "  no chats yet"]
    assert full == [ready, "       2 [green]waiting[/]", "       1 [bold red]error[/]"]
    counted = json.loads(terminal.run("migrate", "--json").out)
    assert counted == {"store": "sqlite:///turnwise.db", "chats": {"waiting": 2, "error": 1}}


def test_migrate_refuses_foreign_database(terminal: Terminal) -> None:
    with sqlite3.connect(terminal.folder / "turnwise.db") as foreign:
        foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    refused = terminal.run("migrate")
    assert (refused.code, "another program" in refused.words) == (1, True)
