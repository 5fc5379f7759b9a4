"""Files that commands write and read; an error names the file and says what is wrong, without a traceback."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from turnwise.states.errors import SettingsError, TurnwiseError

_MISUSES: Final[dict[int | None, str]] = {
    errno.ENOENT: "there is no folder {folder!r}; make it first",
    errno.ENOTDIR: "{folder!r} is no folder",
    errno.EISDIR: "{path!r} is a folder; name a file in it",
    errno.EEXIST: "{path!r} is there already, and is no folder",
    errno.EACCES: "{path!r} may not be written by this user",
    errno.EPERM: "{path!r} may not be written by this user",
    errno.EROFS: "{path!r} lies on a file system that is read-only",
    errno.ENAMETOOLONG: "the name is longer than the file system takes",
    errno.ELOOP: "{path!r} is a link that leads to itself",
}
"""Errors that the person who typed the name can correct."""


class FileFailed(TurnwiseError):
    """A file could not be written although its name was right. What was written of it is not complete."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{str(path)!r}: {error.strerror or error}; the file is not whole")


def write_file(option: str, path: Path, content: str | bytes | Iterable[str]) -> None:
    """Write a file that was named on the command line; the content may be given in pieces.

    Raises:
        SettingsError: there cannot be a file of that name.
        FileFailed: the disk is full, or broken.
    """
    try:
        with path.open("wb") as file:
            for piece in [content] if isinstance(content, str | bytes) else content:
                file.write(piece.encode() if isinstance(piece, str) else piece)
    except (OSError, ValueError) as error:
        raise _meaning(option, path, error) from error


def make_folder(option: str, path: Path) -> None:
    """Make a folder that was named on the command line, unless it is there; raises what `write_file` raises."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _meaning(option, path, error) from error


def read_file(option: str, path: Path) -> bytes:
    """Return what is in a file that was named on the command line.

    Raises:
        SettingsError: there is no such file, or it may not be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise SettingsError(option, f"there is no file {str(path)!r}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(option, f"{str(path)!r} cannot be read: {reason}") from error


def _meaning(option: str, path: Path, error: OSError | ValueError) -> TurnwiseError:
    if isinstance(error, ValueError):
        return SettingsError(option, f"{str(path)!r} is no name of a file: {error}")
    template = _MISUSES.get(error.errno)
    if template is None:
        return FileFailed(path, error)
    return SettingsError(option, template.format(path=str(path), folder=str(path.parent)))
