"""Files that commands read and write; an error names the file and says what is wrong, without a traceback."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from turnwise.states.errors import ImportRefused, SettingsError

STANDARD_INPUT: Final = "-"
_LONGEST_FIRST: Final = 64 * 1024
_LONGEST: Final = 2**30
"""Bytes of a line. No store keeps a longer row, and the first line of a chat is short."""


@contextmanager
def input_lines(option: str, name: str) -> Iterator[Iterator[str]]:
    """Open a file, or `-`, and read its lines one by one. The reader of a line refuses bytes that are no UTF-8."""
    with ExitStack() as stack:
        with _naming(option, name):
            file = sys.stdin.buffer if name == STANDARD_INPUT else stack.enter_context(Path(name).open("rb"))
        yield _lines(file)


def _lines(file: BinaryIO) -> Iterator[str]:
    for number in count(1):
        longest = _LONGEST_FIRST if number == 1 else _LONGEST
        line = file.readline(longest + 1)
        if len(line) > longest:
            raise ImportRefused(number, f"it does not end after {longest:,} bytes, as a line of a chat does")
        if not line:
            return
        yield line.removesuffix(b"\n").decode(errors="surrogateescape")


def read_file(option: str, path: Path) -> bytes:
    """Read a file that was named on the command line; `-` is standard input."""
    with _naming(option, str(path)):
        return sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path.read_bytes()


@contextmanager
def _naming(option: str, name: str, use: str = "read") -> Iterator[None]:
    """Raise a `SettingsError` that names the option and the file, if it cannot be used."""
    try:
        yield
    except OSError as error:
        raise SettingsError(option, f"{name!r} cannot be {use}: {error.strerror}") from error


class WholeFile:
    """A file that was named on the command line, written piece by piece, and renamed once it is whole.

    A killed process leaves a file that ends in `.part`, and the old file. Pipes and devices are written directly.
    """

    def __init__(self, option: str, path: Path) -> None:
        self._option = option
        self._path = path
        self._part: Path | None = None

    def __enter__(self) -> Self:
        """Begin to write."""
        if str(self._path) == "-":
            raise SettingsError(self._option, "'-' is no name of a file here; /dev/stdout is what a pipe reads")
        with _naming(self._option, str(self._path), "written"):
            status = None
            with suppress(FileNotFoundError):
                status = self._path.stat()
            is_replaced = status is None or stat.S_ISREG(status.st_mode)
            if status is not None and is_replaced and not os.access(self._path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._place = Path(os.path.realpath(self._path))
            if is_replaced:
                self._part = self._place.parent / f".turnwise-{secrets.token_hex(8)}.part"
            self._file = self._path.open("wb") if self._part is None else self._part.open("xb")
            if status is not None and self._part is not None:
                self._part.chmod(stat.S_IMODE(status.st_mode))
        return self

    def write(self, piece: str | bytes) -> None:
        """Write the next piece; an `OSError` names the file."""
        with self._named():
            self._file.write(piece.encode() if isinstance(piece, str) else piece)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the file its name, or leave nothing of it."""
        try:
            with self._named():
                with self._file:
                    if exc is None and self._part is not None:
                        self._file.flush()
                        os.fsync(self._file.fileno())
                if exc is None and self._part is not None:
                    self._part.replace(self._place)
        finally:
            if self._part is not None:
                self._part.unlink(missing_ok=True)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise


def write_file(option: str, path: Path, content: str | bytes) -> None:
    """Write a file that was named on the command line."""
    with WholeFile(option, path) as file:
        file.write(content)
