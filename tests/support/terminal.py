"""Commands in a pipe, and at a terminal where Ctrl-C is a key."""

import contextlib
import fcntl
import io
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyte
import pytest

from turnwise.cli.app import main

PROGRAM = [sys.executable, "-W", "error", "-m", "turnwise"]
CONTROLLING = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it, and hands that on
os.execv(sys.argv[1], sys.argv[1:])
"""
COLUMNS, LINES = 100, 30
PATIENCE = 300
"""Seconds that a test waits for an output."""


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The output, independent of the screen's width."""
        return " ".join((self.out + self.err).split())


@dataclass(frozen=True)
class Terminal:
    folder: Path
    store: str = "sqlite:///turnwise.db"

    def run(self, *arguments: str, typed: str = "") -> Finished:
        """Run a command to its end in this process, with `typed` in its standard input."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.chdir(self.folder))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(
                sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode(errors="surrogateescape")), encoding="utf-8")
            )
            patch.setattr(sys, "argv", ["turnwise", *arguments])
            patch.setenv("TURNWISE_STORE", self.store)
            with pytest.raises(SystemExit) as exit_:
                main()
        return Finished(int(exit_.value.code or 0), _written(out), _written(err))

    @property
    def environment(self) -> dict[str, str]:
        known = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "xterm", "TURNWISE_STORE": self.store}
        return os.environ | known | {"PYTHONPATH": str(Path(__file__).parents[1])}


class _Screen(pyte.Screen):
    def __init__(self, typed: Callable[[str], None]) -> None:
        super().__init__(COLUMNS, LINES)
        self._typed = typed

    def write_process_input(self, data: str) -> None:
        """Answer a program's query for the cursor position."""
        self._typed(data)


@dataclass
class Keyboard:
    terminal: Terminal
    arguments: tuple[str, ...]
    program: Sequence[str] = tuple(PROGRAM)
    screen: bytes = b""
    shown: _Screen = field(init=False)
    _master: int = field(init=False)
    _stream: pyte.ByteStream = field(init=False)
    process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLING, *self.program, *self.arguments],
            cwd=self.terminal.folder,
            env=self.terminal.environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = _Screen(self.type)
        self._stream = pyte.ByteStream(self.shown)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode(errors="surrogateescape"))

    def modes(self) -> list[Any]:
        """Return the modes of the terminal, such as its echo."""
        return termios.tcgetattr(self._master)

    def see(self, words: str) -> None:
        """Wait until `words` appear after the last match."""
        while words.encode() not in self.screen:
            self._read(words)
        self.screen = self.screen.partition(words.encode())[2]

    def watch(self, words: str) -> list[str]:
        """Wait until the screen shows `words`; return its lines."""
        while not self._is_shown(words):
            self._read(words)
        return [line.rstrip() for line in self.shown.display]

    def ask(self, keys: str, words: str) -> None:
        """Repeat an input until the screen shows `words`, since the answer changes with time."""
        for _ in range(PATIENCE):
            self.type(keys)
            look_until = time.monotonic() + 1
            while not self._is_shown(words) and time.monotonic() < look_until:
                if select.select([self._master], [], [], 0.1)[0]:
                    self._read(words)
            if self._is_shown(words):
                return
        raise AssertionError(f"{words!r} did not appear in {self.screen!r}")

    def _is_shown(self, words: str) -> bool:
        return any(words in line for line in self.shown.display)

    def _read(self, words: str) -> None:
        ready, _, _ = select.select([self._master], [], [], PATIENCE)
        assert ready, f"{words!r} did not appear in {self.screen!r}"
        keys = os.read(self._master, 65536)
        self.screen += keys
        self._stream.feed(keys)


def _written(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
