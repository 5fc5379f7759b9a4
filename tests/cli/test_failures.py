"""Whatever goes wrong, a command says it in one sentence and ends in 0, 1 or 2; nobody is shown a traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from support.processes import forked_commands
from support.terminal import PROGRAM, Terminal
from turnwise.cli import app, failures
from turnwise.cli.failures import DEBUG, MISUSE, PROBLEM, STOPPED, exit_code_of
from turnwise.states.errors import SettingsError, StoreError


@pytest.fixture
def chat_id(terminal: Terminal) -> str:
    terminal.run("chat", typed="hello\n")
    return terminal.run("list").out.splitlines()[1].split()[0]


WRITING = {
    "diagram": ("diagram", "--out"),
    "export": ("audit", "last", "--export"),
}
PLACES = {
    "no folder": ("missing/file.svg", "there is no folder"),
    "a folder": ("folder", "is a folder"),
    "below a file": ("file/file.svg", "is no folder"),
    "too long": ("x" * 300, "longer than"),
    "no name": ("a\0b", "embedded null"),
}


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("place", PLACES)
def test_unusable_file_is_misuse(terminal: Terminal, chat_id: str, command: str, place: str) -> None:
    assert chat_id
    (terminal.folder / "folder").mkdir()
    (terminal.folder / "file").touch()
    path, words = PLACES[place]
    told = terminal.run(*WRITING[command], path)
    assert (told.code, words in told.words) == (2, True), told
    assert "Traceback" not in told.err


@pytest.mark.parametrize("command", WRITING)
def test_full_disk_exits_1(terminal: Terminal, chat_id: str, command: str) -> None:
    assert chat_id
    told = terminal.run(*WRITING[command], "/dev/full")
    assert (told.code, "No space left" in told.words) == (1, True), told


QUICK = {
    "help": ("--help",),
    "version": ("--version",),
    "list": ("list",),
    "json": ("list", "--json"),
    "show": ("show", "last"),
    "audit": ("audit", "last"),
    "mermaid": ("diagram",),
    "demo": ("demo", "--fast"),
    "chat": ("chat",),
    "worker": ("worker", "support.processes.demo_agents:AGENTS", "--create"),
}


@pytest.mark.deep
@pytest.mark.parametrize(("how", "unbuffered"), [("nobody reads", ""), ("full disk", ""), ("full disk", "1")])
def test_broken_pipe_ends_every_command_silently(terminal: Terminal, how: str, unbuffered: str) -> None:
    """As `head` and `less` do to whatever writes to them; and a disk that fills up, which must be told.

    Without a buffer the write itself fails, with one the last flush does. Every command is a process.
    """
    terminal.run("chat", typed="hello\n")
    if how == "full disk":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        read, out = os.pipe()
        os.close(read)
    results = terminal.folder / "results.json"
    subprocess.run(
        [sys.executable, "-W", "error", forked_commands.__file__, str(results), json.dumps([*QUICK.values()])],
        cwd=terminal.folder,
        env={**terminal.environment, "PYTHONUNBUFFERED": unbuffered},
        stdout=out,
        check=True,
    )
    os.close(out)
    for command, (code, complaints) in zip(QUICK, json.loads(results.read_text()), strict=True):
        assert (command, code) == (command, 1), complaints
        assert "Traceback" not in complaints, command
        assert "Exception ignored" not in complaints, command
        assert complaints == "" if how == "nobody reads" else "No space left" in complaints, command


@pytest.mark.deep
def test_demo_output_may_be_cut_by_head(terminal: Terminal) -> None:
    command = f"{' '.join(PROGRAM)} demo --fast | head -3"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=terminal.folder,
        env=terminal.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == ""


def test_unexpected_error_is_one_sentence(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*, prog_name: str) -> None:
        inner = ExceptionGroup("inner", [KeyError("the-key")])
        raise ExceptionGroup("outer", [inner])

    monkeypatch.setattr(app, "app", broken)
    told = terminal.run("list")
    assert told.code == 1
    assert "KeyError: 'the-key'" in told.words
    assert "Traceback" not in told.err
    monkeypatch.setenv(failures.DEBUG, "1")
    with pytest.raises(ExceptionGroup):
        app._run()


def test_unopenable_store_is_explained(terminal: Terminal) -> None:
    (terminal.folder / "turnwise.db").write_bytes(b"no database" * 100)
    for arguments in (("list",), ("chat",), ("migrate",), ("send", "last", "hi")):
        told = terminal.run(*arguments)
        assert (told.code, "Traceback" in told.err) == (1, False), told
    told = terminal.run_apart("worker", "support.processes.demo_agents:AGENTS")
    assert (told.code, "Traceback" in told.err) == (1, False), told


# Programs and drawings


@pytest.mark.parametrize("module", ["turnwise", "turnwise.cli"])
def test_version_needs_no_extra_imports(module: str) -> None:
    """What takes long to import would make every command wait."""
    command = [sys.executable, "-X", "importtime", "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("turnwise 0.")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "turnwise.cli.submit" in imported
    assert not imported & {"prompt_toolkit", "pydantic", "fastapi", "uvicorn", "httpx", "asyncpg", "pydantic_ai"}


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


@pytest.mark.parametrize("module", ["turnwise", "turnwise.engine.engine", "turnwise.cli.worker"])
def test_ctrl_c_during_import_is_silent(module: str) -> None:
    script = PRESSED.replace("MODULE", module)
    done = subprocess.run([sys.executable, "-c", script, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (STOPPED, "", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_printed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_TURNWISE_COMPLETE", f"source_{shell}")
    told = terminal.run()
    assert (told.code, "_TURNWISE_COMPLETE" in told.out) == (0, True)


def test_png_without_extra_names_the_extra(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    refused = terminal.run("diagram", "--out", "d.png")
    assert (refused.code, "turnwise[png]" in refused.words) == (2, True)
    assert not (terminal.folder / "d.png").exists()


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several errors, the worst that a person can do something about."""
    monkeypatch.delenv(DEBUG, raising=False)
    group = BaseExceptionGroup
    assert exit_code_of(group("two", [ValueError("odd"), SettingsError("store", "must be a URL")])) == MISUSE
    assert exit_code_of(group("two", [ValueError("odd"), StoreError("the disk is full")])) == PROBLEM
    assert exit_code_of(group("two", [group("inner", [KeyboardInterrupt()]), ValueError("odd")])) == STOPPED
    assert "odd" not in capsys.readouterr().err
    assert exit_code_of(group("two", [ValueError("odd"), BrokenPipeError(errno.EPIPE, "nobody reads")])) == PROBLEM
    assert capsys.readouterr().err == ""
    assert exit_code_of(ValueError("odd")) == PROBLEM
    assert "this should not have happened: ValueError: odd" in capsys.readouterr().err
