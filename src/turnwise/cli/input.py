"""What commands read: files that were named on the command line, whole or line by line, and standard input."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import anyio
from anyio.lowlevel import checkpoint

from turnwise.states.errors import ImportRefused, SettingsError

STANDARD_INPUT: Final = "-"
_PIECE: Final = 256 * 1024
_LONGEST_FIRST: Final = 64 * 1024
_LONGEST: Final = 2**30
"""Bytes of a line. No store keeps a longer row, and the first line of a chat is short."""


@dataclass(frozen=True, slots=True)
class InputLines:
    """Where a command reads lines from, as they are asked for: they may be many, or never come to an end."""

    option: str
    """The option that named it."""
    name: str
    """The path of a file, or `-`."""

    def opened(self) -> AbstractContextManager[io.BufferedReader]:
        """Open it; a named pipe waits for somebody who writes.

        Raises:
            SettingsError: there is no such file, or it cannot be read.
        """
        with _naming(self.option, self.name):
            if self.name == STANDARD_INPUT:
                return nullcontext(cast("io.BufferedReader", sys.stdin.buffer))
            return Path(self.name).open("rb")

    async def read(self, source: io.BufferedReader) -> AsyncGenerator[str, None]:
        """Yield the lines without their line feeds. A byte that is no text makes its line one that is refused.

        Raises:
            ImportRefused: a line is longer than one of a chat can be.
            SettingsError: reading failed.
        """
        begun, number = bytearray(), 1
        waits = _waits(source)
        while True:
            # To wait in the event loop, and not for the bytes themselves, lets Ctrl-C end it.
            await (anyio.wait_readable(source) if waits else checkpoint())
            with _naming(self.option, self.name):
                piece = source.read1(_PIECE)
            if not piece:
                break
            first, *further = piece.split(b"\n")
            begun += first
            for line in further:
                yield begun.decode(errors="surrogateescape")
                begun, number = bytearray(line), number + 1
            if len(begun) > (_LONGEST if number > 1 else _LONGEST_FIRST):
                raise ImportRefused(number, f"it does not end after {len(begun):,} bytes, as a line of a chat does")
        if begun:
            yield begun.decode(errors="surrogateescape")


def read_file(option: str, path: Path) -> bytes:
    """Return what is in a file that was named on the command line; `-` is standard input.

    Raises:
        SettingsError: there is no such file, or it cannot be read.
    """
    with _naming(option, str(path)):
        return sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path.read_bytes()


@contextmanager
def _naming(option: str, name: str) -> Iterator[None]:
    """Raise a `SettingsError` that names the option and the file, if it cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        raise SettingsError(option, f"there is no file {name!r}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(option, f"{name!r} cannot be read: {reason}") from error


def _waits(source: io.BufferedReader) -> bool:
    """Return whether reading may have to wait for somebody who writes."""
    try:
        number = source.fileno()
        mode = os.fstat(number).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)
