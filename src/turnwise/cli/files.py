"""Files that commands read and write; an error names the file and says what is wrong, without a traceback."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from turnwise.states.errors import ImportRefused, SettingsError, TurnwiseError

STANDARD_INPUT: Final = "-"
_PIECE: Final = 256 * 1024
_LONGEST_FIRST: Final = 64 * 1024
_LONGEST: Final = 2**30
"""Bytes of a line. No store keeps a longer row, and the first line of a chat is short."""


class InputLines(msgspec.Struct, frozen=True):
    """The lines of a file or pipe, read one by one: there may be many, or no end."""

    option: str
    """The option that named the file, for errors."""
    name: str
    """The path of a file, or `-`."""

    def opened(self) -> AbstractContextManager[io.BufferedReader]:
        """Open the file; a named pipe waits for a writer."""
        with _naming(self.option, self.name):
            if self.name == STANDARD_INPUT:
                return nullcontext(cast("io.BufferedReader", sys.stdin.buffer))
            return Path(self.name).open("rb")

    async def read(self, source: io.BufferedReader) -> AsyncGenerator[str, None]:
        """Yield the lines without their line feeds. The reader of a line refuses bytes that are no UTF-8."""
        line_start, number = bytearray(), 1
        waits = _waits(source)
        while True:
            # To wait in the event loop, and not for the bytes themselves, lets Ctrl-C end it.
            await (anyio.wait_readable(source) if waits else checkpoint())
            with _naming(self.option, self.name):
                piece = source.read1(_PIECE)
            if not piece:
                break
            first, *further = piece.split(b"\n")
            line_start += first
            for line in further:
                yield line_start.decode(errors="surrogateescape")
                line_start, number = bytearray(line), number + 1
            if len(line_start) > (_LONGEST if number > 1 else _LONGEST_FIRST):
                raise ImportRefused(
                    number, f"it does not end after {len(line_start):,} bytes, as a line of a chat does"
                )
        if line_start:
            yield line_start.decode(errors="surrogateescape")


def read_file(option: str, path: Path) -> bytes:
    """Read a file that was named on the command line; `-` is standard input."""
    with _naming(option, str(path)):
        return sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path.read_bytes()


@contextmanager
def _naming(option: str, name: str) -> Iterator[None]:
    """Raise a `SettingsError` that names the option and the file, if it cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        raise SettingsError(option, f"there is no file {name!r}") from error
    except OSError as error:
        raise SettingsError(option, f"{name!r} cannot be read: {error.strerror}") from error


def _waits(source: io.BufferedReader) -> bool:
    """Whether reading may have to wait for a writer."""
    try:
        number = source.fileno()
        mode = os.fstat(number).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)


_MISUSES: Final[dict[int | None, str]] = {
    errno.ENOENT: "there is no folder {folder!r}; make it first",
    errno.ENOTDIR: "{folder!r} is no folder",
    errno.EISDIR: "{path!r} is a folder; name a file in it",
    errno.EACCES: "{path!r} may not be written by this user",
    errno.EPERM: "{path!r} may not be written by this user",
    errno.EROFS: "{path!r} lies on a file system that is read-only",
    errno.ENAMETOOLONG: "the name is longer than the file system takes",
    errno.ELOOP: "{path!r} is a link that leads to itself",
}
"""Errors that the person who typed the name can correct."""


class FileFailed(TurnwiseError):
    """A file could not be written although its name was right."""

    def __init__(self, path: Path, error: OSError, *, outcome: str) -> None:
        super().__init__(f"{str(path)!r}: {error.strerror or error}; {outcome}")


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
        with self._os_errors_explained():
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
        """Write the next piece."""
        with self._os_errors_explained():
            self._file.write(piece.encode() if isinstance(piece, str) else piece)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the file its name, or leave nothing of it."""
        try:
            with self._os_errors_explained():
                self._close(is_whole=exc is None)
        except TurnwiseError:
            if exc is None:
                raise

    def _close(self, *, is_whole: bool) -> None:
        if self._part is None:
            self._file.close()
            return
        try:
            if is_whole:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._part.replace(self._place)
        finally:
            with suppress(OSError):
                self._file.close()
            self._part.unlink(missing_ok=True)

    @contextmanager
    def _os_errors_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if template := _MISUSES.get(error.errno):
                problem = template.format(path=str(self._path), folder=str(self._path.parent))
                raise SettingsError(self._option, problem) from error
            outcome = "the file is not whole" if self._part is None else "no file was written"
            raise FileFailed(self._path, error, outcome=outcome) from error


def write_file(option: str, path: Path, content: str | bytes) -> None:
    """Write a file that was named on the command line."""
    with WholeFile(option, path) as file:
        file.write(content)
