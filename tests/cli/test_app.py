"""The command line as a whole: its commands and options, what ends it, and how it asks and answers."""

from __future__ import annotations

import errno
import json
import struct
import subprocess
import sys
import zlib
from typing import Any

import pytest
import typer

import turnwise
from support.look import colours, marked
from support.terminal import PROGRAM, Keyboard, Terminal
from turnwise.cli import chat, failures
from turnwise.cli.app import app
from turnwise.cli.diagram import png
from turnwise.cli.failures import DEBUG, PROBLEM, exit_code_of

COMMANDS = (
    "demo chat list show audit replay verify explain inspect send submit interrupt resume archive unarchive erase "
    "delete export import doctor diagram worker serve migrate keygen"
)
SHARED = {
    "file_folder": ("PATH", "TURNWISE_FILE_FOLDER", None),
    "store": ("URL", "TURNWISE_STORE", "sqlite:///turnwise.db"),
    "server": ("URL", None, None),
    "as_json": (None, None, False),
    "chat": ("CHAT", None, None),
    "actor": ("NAME", "TURNWISE_ACTOR", "operator"),
    "model": ("NAME", None, None),
    "key": ("FILE", None, None),
}


SEEN = "import gc\nfrom turnwise.cli.app import main\ntry:\n    main()\nfinally:\n    print(gc.get_threshold()[0])"


def test_a_process_of_turnwise_looks_for_garbage_seldom_and_says_its_version() -> None:
    told = subprocess.run([sys.executable, "-c", SEEN, "--version"], capture_output=True, text=True, check=True)

    assert told.stdout.split() == ["turnwise", turnwise.__version__, "100000"]


def test_every_command_and_every_option_says_what_it_is_for() -> None:
    command: Any = typer.main.get_command(app)
    assert (command.name, [*command.commands]) == ("turnwise", COMMANDS.split())
    for one in command.commands.values():
        assert one.help
        for parameter in one.params:
            assert parameter.help, (one.name, parameter.name)
            if parameter.name in SHARED and (one.name, parameter.name) != ("diagram", "chat"):
                seen = (parameter.metavar, parameter.envvar, parameter.default)
                assert seen == SHARED[parameter.name], (one.name, parameter.name)
                assert parameter.show_default is True


TAKES = {
    "demo": "--fast --out:DIR=demo-out",
    "chat": "[MODULE:ATTRIBUTE] --store:URL --server:URL --file-folder:PATH --chat:CHAT --agent --model:NAME --system "
    "--pace",
    "list": "--store:URL --server:URL --state --awaiting --limit=50 --json",
    "show": "CHAT --store:URL --server:URL --view=user --json",
    "audit": "CHAT --store:URL --server:URL --export:FILE --key:FILE --signing-key:FILE --json",
    "replay": "FILE|CHAT --store:URL --server:URL --delay:SECONDS --json",
    "verify": "FILE|CHAT --store:URL --server:URL --key:FILE --checkpoints:FILE --public-key:FILE --family --files "
    "--file-folder:PATH --json",
    "explain": "CHAT --store:URL --server:URL --json",
    "inspect": "--store:URL --server:URL --port",
    "send": "CHAT MESSAGE --when-busy=queue --client-id --store:URL --server:URL --actor:NAME --json",
    "submit": "CHAT [CALL=]ANSWER... --error --results:FILE --store:URL --server:URL --actor:NAME --json",
    "interrupt": "CHAT --reason --store:URL --server:URL --actor:NAME --json",
    "resume": "CHAT --store:URL --server:URL --actor:NAME --json",
    "archive": "CHAT --store:URL --server:URL --actor:NAME --json",
    "unarchive": "CHAT --store:URL --server:URL --actor:NAME --json",
    "delete": "CHAT --yes/-y --store:URL --server:URL --file-folder:PATH --actor:NAME --json",
    "export": "CHAT --output/-o:FILE --key:FILE --store:URL --server:URL --file-folder:PATH",
    "import": "FILE --key:FILE --store:URL --server:URL --file-folder:PATH --actor:NAME --json",
    "erase": "CHAT MESSAGE --what:WORD --everything --yes/-y --store:URL --server:URL --file-folder:PATH "
    "--actor:NAME --json",
    "doctor": "[FILE] --store:URL --repair:CHAT --export:CHAT --files --file-folder:PATH --actor:NAME --json",
    "diagram": "[CHAT] --store:URL --server:URL --simple --show=machine --format --out:FILE",
    "worker": "MODULE:ATTRIBUTE --store:URL --file-folder:PATH --create --concurrency=100 --checkpoints:PLACE "
    "--signing-key:FILE --quiet",
    "serve": "MODULE:ATTRIBUTE --host=127.0.0.1 --port=8080 --tokens:FILE --token:TOKEN --owners-approve=True "
    "--allow-origin:ORIGIN --allow-model:NAME --requests-per-second=50 --burst=200 "
    "--streams-per-owner=100 "
    "--store:URL --file-folder:PATH --create --worker=True --concurrency=100 --shutdown-seconds=10 "
    "--checkpoints:PLACE --signing-key:FILE --quiet",
    "migrate": "--store:URL --file-folder:PATH --json",
    "keygen": "FILE",
}


def test_what_a_command_takes_is_called_by_what_it_is() -> None:
    command: Any = typer.main.get_command(app)
    assert {one.name: " ".join(map(taken, one.params)) for one in command.commands.values()} == TAKES


def taken(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    default = "" if parameter.name in SHARED else parameter.default
    given = f":{parameter.metavar}" if parameter.metavar else ""
    return "/".join(parameter.opts) + given + (f"={default}" if default else "")


def test_nothing_typed_is_a_call_for_help(terminal: Terminal) -> None:
    asked = terminal.run()
    assert "Usage: turnwise [OPTIONS] COMMAND" in asked.words
    assert "Run the life of LLM chats as a declared, durable state machine." in asked.words
    assert terminal.run("--version").out.startswith("turnwise 0.")
    assert app.pretty_exceptions_enable is False


def test_a_terminal_that_knows_few_letters_still_works(terminal: Terminal) -> None:
    done = subprocess.run(
        [*PROGRAM, "migrate"],
        cwd=terminal.folder,
        env={**terminal.environment, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("? sqlite:///turnwise.db has the schema")


# What ends a command


@pytest.mark.parametrize(
    ("text", "sentence"), [("odd", "odd."), ("odd.", "odd."), ("odd?", "odd?"), ("odd!", "odd!"), ("o\x1b", r"o\x1b.")]
)
def test_what_went_wrong_is_a_sentence(capsys: pytest.CaptureFixture[str], text: str, sentence: str) -> None:
    with colours():
        failures._say(text)
    assert marked(capsys.readouterr().err) == [f"[bold red]turnwise: [/][red]{sentence}[/]"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left"), "No space left."),
        (OSError(errno.EPIPE, "Broken pipe", "fifo"), "'fifo': Broken pipe."),
        (OSError("odd"), "odd."),
        (OSError(errno.EPIPE, "Broken pipe"), ""),
        (ValueError("odd"), f"this should not have happened: ValueError: odd. With {DEBUG}=1 it tells where."),
    ],
)
def test_errors_of_the_machine_are_told_with_their_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, told: str
) -> None:
    monkeypatch.delenv(DEBUG, raising=False)
    assert exit_code_of(error) == PROBLEM
    assert capsys.readouterr().err == (f"turnwise: {told}\n" if told else "")


# Drawings


def test_a_picture_is_white_and_half_as_large_again() -> None:
    drawing = png('<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"></svg>')
    assert struct.unpack(">II", drawing[16:24]) == (60, 30)
    start = drawing.index(b"IDAT") + 4
    pixels = zlib.decompressobj().decompress(drawing[start:])
    assert pixels[1:4] == b"\xff\xff\xff"


# Workers


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "3601"])
@pytest.mark.parametrize("command", [("chat", "--pace"), ("replay", "last", "--delay")], ids=" ".join)
def test_seconds_that_would_never_end_are_refused(terminal: Terminal, command: tuple[str, ...], seconds: str) -> None:
    told = terminal.run(*command, seconds)
    assert (told.code, command[-1] in told.words) == (2, True), told


# The conversation


def test_what_is_typed_into_a_pipe_stands_there_once(terminal: Terminal) -> None:
    assert terminal.run("chat", typed="marco\n").out.count("» marco") == 1
    assert terminal.run("chat", typed="\n  \n").out.count("» ") == 3


def test_what_the_model_is_told_first_is_part_of_a_new_chat(terminal: Terminal) -> None:
    terminal.run("chat", "--system", "You are a lighthouse.", typed="hello\n")
    assert b"You are a lighthouse." in b"".join(file.read_bytes() for file in terminal.folder.iterdir())


def test_who_says_nothing_leaves_no_chat(terminal: Terminal) -> None:
    terminal.run("migrate")
    terminal.run("chat", typed="\n\n")
    assert json.loads(terminal.run("list", "--json").out) == []


def test_ctrl_c_at_a_question_stops_the_turn_and_asks_nothing_more(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    lines = iter(["Ask the user “Which way?”", KeyboardInterrupt(), "/state", "/quit"])

    def typed(prompt: str) -> str:
        asked.append(prompt)
        line = next(lines)
        if isinstance(line, KeyboardInterrupt):
            raise line
        return line

    monkeypatch.setattr(chat, "typed", typed)
    told = terminal.run("chat")
    assert asked == ["» ", "  ask_user: ", "» ", "» "]
    assert "interrupted" in told.out


ASKING = """
import signal
from turnwise.cli.keyboard import typed
before = signal.getsignal(signal.SIGALRM)
print([typed("» ")], signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM) == before)
"""


def test_after_a_line_was_typed_no_alarm_is_left(terminal: Terminal) -> None:
    with Keyboard(terminal, ("-c", ASKING), program=[sys.executable]) as keyboard:
        keyboard.see("» ")
        keyboard.type(" a line \r")
        keyboard.see("['a line'] (0.0, 0.0) True")
        assert keyboard.process.wait() == 0
