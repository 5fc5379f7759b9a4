"""The command line as a whole: its commands and options, what ends it, and how it asks and answers."""

from __future__ import annotations

import errno
import json
import subprocess
from typing import Any

import pytest
import typer

from support.look import colours, marked
from support.terminal import PROGRAM, Terminal
from turnwise.cli import chat, failures
from turnwise.cli.app import app
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


def test_every_command_and_option_has_help() -> None:
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


def test_no_arguments_print_help(terminal: Terminal) -> None:
    asked = terminal.run()
    assert "Usage: turnwise [OPTIONS] COMMAND" in asked.words
    assert "Run the life of LLM chats as a declared, durable state machine." in asked.words
    assert terminal.run("--version").out.startswith("turnwise 0.")
    assert app.pretty_exceptions_enable is False


def test_ascii_terminal_works(terminal: Terminal) -> None:
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
def test_error_is_printed_as_a_sentence(capsys: pytest.CaptureFixture[str], text: str, sentence: str) -> None:
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
def test_os_error_names_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, told: str
) -> None:
    monkeypatch.delenv(DEBUG, raising=False)
    assert exit_code_of(error) == PROBLEM
    assert capsys.readouterr().err == (f"turnwise: {told}\n" if told else "")


# Drawings


# Workers


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "3601"])
@pytest.mark.parametrize("command", [("chat", "--pace"), ("replay", "last", "--delay")], ids=" ".join)
def test_endless_seconds_are_refused(terminal: Terminal, command: tuple[str, ...], seconds: str) -> None:
    told = terminal.run(*command, seconds)
    assert (told.code, command[-1] in told.words) == (2, True), told


# The conversation


def test_piped_input_is_printed_once(terminal: Terminal) -> None:
    assert terminal.run("chat", typed="marco\n").out.count("» marco") == 1
    assert terminal.run("chat", typed="\n  \n").out.count("» ") == 3


def test_system_prompt_is_stored_in_a_new_chat(terminal: Terminal) -> None:
    terminal.run("chat", "--system", "You are a lighthouse.", typed="hello\n")
    assert b"You are a lighthouse." in b"".join(file.read_bytes() for file in terminal.folder.iterdir())


def test_empty_message_creates_no_chat(terminal: Terminal) -> None:
    terminal.run("migrate")
    terminal.run("chat", typed="\n\n")
    assert json.loads(terminal.run("list", "--json").out) == []


def test_ctrl_c_at_a_question_stops_the_turn(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
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
