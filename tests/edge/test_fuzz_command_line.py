"""Whatever is typed: an exit code and a sentence, never a traceback, and what is misuse writes nothing."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from support.fuzzed_chats import filled
from support.fuzzing import draws
from support.odd_values import WORDS
from support.terminal import Terminal
from turnwise.cli.app import app

COMMANDS: Final[dict[str, click.Command]] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
ENDLESS: Final = frozenset({"worker", "demo", "serve", "inspect"})
"""These run until they are stopped, or play for a while: only what they refuse is typed."""
PATIENCE: Final = 60
"""Seconds after which Ctrl-C ends a command that goes on."""
TYPED: Final = [word for word in WORDS if "\0" not in word and len(word) < 50_000]
"""A program's arguments cannot hold NUL."""
FILES: Final = ("/", ".", "-", "--", "/nowhere/at/all", "chats.db", "sqlite:///chats.db", "sqlite:///nowhere/x.db")
CODES: Final = frozenset({0, 1, 2, 130})

words = st.sampled_from([*TYPED, *FILES])


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """Draw a command line: a command, and odd words for some of its arguments and options."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    if name in ENDLESS:
        return [
            name,
            draw(st.sampled_from(["--no-such-option", "--store", "too", "--concurrency=x"])),
            *draw(st.just(("",))),
        ]
    typed = [name]
    for one in COMMANDS[name].params:
        if isinstance(one, click.Option):
            if draw(st.integers(0, 3)) == 0:
                typed.append(draw(st.sampled_from(one.opts)))
                typed += [] if one.is_flag else [draw(words)]
        elif draw(st.integers(0, 9)):
            typed.append(draw(st.one_of(st.just("last"), words)))
    return typed


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    folder = tmp_path_factory.mktemp("typed")
    filled(folder / "chats.db")
    return Terminal(folder, store="sqlite:///chats.db")


@draws("command lines")
@given(lines())
def test_whatever_is_typed_ends_with_a_code_and_a_sentence(terminal: Terminal, typed: list[str]) -> None:
    before = _stored(terminal.folder)
    with interrupted_after(PATIENCE) as pressed:
        finished = terminal.run(*typed)
    assert not pressed.is_set(), f"{typed} did not end"
    assert finished.code in CODES, finished
    assert "Traceback" not in finished.err
    if finished.code == click.UsageError.exit_code:
        assert finished.err.strip()
        assert _stored(terminal.folder) == before, "misuse wrote something"


@contextmanager
def interrupted_after(seconds: float) -> Iterator[threading.Event]:
    """Press Ctrl-C if what is done meanwhile takes longer: an example that never ends would hold up the suite."""
    pressed = threading.Event()

    def press() -> None:
        pressed.set()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, press)
    timer.start()
    try:
        yield pressed
    finally:
        timer.cancel()


def _stored(folder: Path) -> Any:
    return {file.name: zlib.crc32(file.read_bytes()) for file in folder.glob("chats.db*") if "shm" not in file.name}
