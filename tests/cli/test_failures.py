"""Whatever goes wrong, a command says it in one sentence and ends in 0, 1 or 2; nobody is shown a traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import forked_commands
from support.terminal import PROGRAM, Finished, Keyboard, Terminal
from turnwise.cli import app, failures
from turnwise.cli.failures import DEBUG, DONE, MISUSE, PROBLEM, STOPPED, exit_code_of, flush_output
from turnwise.cli.output import make_folder
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
def test_a_file_that_cannot_be_is_misuse(terminal: Terminal, chat_id: str, command: str, place: str) -> None:
    assert chat_id
    (terminal.folder / "folder").mkdir()
    (terminal.folder / "file").touch()
    path, words = PLACES[place]
    told = terminal.run(*WRITING[command], path)
    assert (told.code, words in told.words) == (2, True), told
    assert "Traceback" not in told.err


@pytest.mark.parametrize("command", WRITING)
def test_a_full_disk_is_a_problem(terminal: Terminal, chat_id: str, command: str) -> None:
    assert chat_id
    told = terminal.run(*WRITING[command], "/dev/full")
    assert (told.code, "No space left" in told.words) == (1, True), told


def test_a_demo_needs_a_folder(terminal: Terminal) -> None:
    (terminal.folder / "file").touch()
    for out in ("file", "file/below"):
        told = terminal.run("demo", "--fast", "--out", out)
        assert (told.code, "Traceback" in told.err) == (2, False), told


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


@pytest.mark.parametrize(("how", "unbuffered"), [("nobody reads", ""), ("full disk", ""), ("full disk", "1")])
def test_output_that_goes_nowhere_ends_every_command_in_silence(terminal: Terminal, how: str, unbuffered: str) -> None:
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


@pytest.mark.parametrize(
    ("closed", "command", "code"),
    [
        ("<&-", ("delete", "last"), MISUSE),
        (">&-", ("send", "last", "more"), DONE),
        ("<&- >&- 2>&-", ("list", "--json"), DONE),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else str(part),
)
def test_a_standard_stream_that_is_closed_is_as_good_as_one_on_nothing(
    terminal: Terminal, chat_id: str, closed: str, command: tuple[str, ...], code: int
) -> None:
    """As cron and daemons leave them. What is not there to be read is at its end."""
    assert chat_id
    told = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {closed}', "sh", *PROGRAM, *command],
        cwd=terminal.folder,
        env=terminal.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == code, told
    assert "Traceback" not in told.stderr
    assert "should not have happened" not in told.stderr


def test_half_of_the_demo_may_be_read(terminal: Terminal) -> None:
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


def test_what_nobody_foresaw_is_one_sentence_unless_asked_for_more(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_store_that_cannot_be_opened_is_told(terminal: Terminal) -> None:
    (terminal.folder / "turnwise.db").write_bytes(b"no database" * 100)
    for arguments in (("list",), ("chat",), ("migrate",), ("send", "last", "hi")):
        told = terminal.run(*arguments)
        assert (told.code, "Traceback" in told.err) == (1, False), told
    told = terminal.run_apart("worker", "support.processes.demo_agents:AGENTS")
    assert (told.code, "Traceback" in told.err) == (1, False), told


# Programs and drawings


@pytest.mark.parametrize("module", ["turnwise", "turnwise.cli"])
def test_the_version_is_told_without_what_only_some_commands_need(module: str) -> None:
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
def test_ctrl_c_while_the_program_is_imported_ends_it_in_silence(module: str) -> None:
    script = PRESSED.replace("MODULE", module)
    done = subprocess.run([sys.executable, "-c", script, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (STOPPED, "", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_told_how_to_complete(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_TURNWISE_COMPLETE", f"source_{shell}")
    told = terminal.run()
    assert (told.code, "_TURNWISE_COMPLETE" in told.out) == (0, True)


def test_a_word_that_was_begun_is_completed(terminal: Terminal) -> None:
    asked = {"_TURNWISE_COMPLETE": "complete_bash", "COMP_WORDS": "turnwise inte", "COMP_CWORD": "1"}
    environment = terminal.environment | asked
    completed = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["interrupt"]


def test_a_drawing_is_what_its_name_says(terminal: Terminal, chat_id: str) -> None:
    for name, beginning in (("d.png", b"\x89PNG\r\n"), ("d.svg", b"<svg"), ("d.mmd", b"---"), ("plain", b"---")):
        told = terminal.run("diagram", "--out", name)
        assert told.code == 0, told.err
        assert (terminal.folder / name).read_bytes().startswith(beginning) or name in ("d.mmd", "plain")
    assert (terminal.folder / "d.mmd").read_bytes() == (terminal.folder / "plain").read_bytes()
    for name in ("d.jpg", "d.pdf"):
        refused = terminal.run("diagram", "--out", name)
        assert (refused.code, ".mmd, .svg, .png or .json" in refused.words) == (2, True)
    assert terminal.run("diagram", "--out", "d.png", "--format", "svg").code == 2
    assert terminal.run("diagram", chat_id, "--show", "sticker", "--out", "d.jpg", "--format", "png").code == 0


def test_without_its_extra_a_png_is_refused_with_what_to_install(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    refused = terminal.run("diagram", "--out", "d.png")
    assert (refused.code, "turnwise[png]" in refused.words) == (2, True)
    assert not (terminal.folder / "d.png").exists()


def test_a_folder_is_no_log(terminal: Terminal, tmp_path: Path) -> None:
    refused: Finished = terminal.run("verify", str(tmp_path))
    assert (refused.code, "directory" in refused.words) == (2, True)


def test_what_ends_a_command_decides_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_output_that_could_be_written_ends_in_success() -> None:
    assert flush_output() == DONE


def test_a_folder_that_is_there_is_as_good_as_one_that_is_made(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder("--out", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_drawing_that_can_be_read_is_printed_on_a_terminal_and_one_that_cannot_is_not(terminal: Terminal) -> None:
    with Keyboard(terminal, ("diagram",)) as keyboard:
        keyboard.see("stateDiagram")
    with Keyboard(terminal, ("diagram", "--format", "png")) as keyboard:
        keyboard.see("a PNG is nothing to read")
        assert keyboard.process.wait() == MISUSE


def test_what_nobody_reads_any_more_is_forgotten_and_python_ends_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEBUG, raising=False)
    taken, given = os.pipe()
    os.close(taken)
    with open(given, "w") as nobody:  # noqa: PTH123 - a pipe
        monkeypatch.setattr(sys, "stdout", nobody)
        nobody.write("unread")
        assert exit_code_of(BrokenPipeError(errno.EPIPE, "nobody reads")) == PROBLEM
        nobody.flush()
