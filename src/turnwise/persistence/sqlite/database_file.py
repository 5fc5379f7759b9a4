"""Checks whether a store's file is still the one that was opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import anyio

from turnwise.states.errors import StoreError

_PARTS: Final = ("", "-wal", "-shm")
"""The database, its write-ahead log and the log's index: SQLite keeps them for as long as anybody is connected."""


async def check_folder(path: str) -> None:
    """Check that the folder of a database is there: SQLite makes none, and does not say that it lacks one.

    Raises:
        StoreError: it is not there, or cannot be looked at.
    """
    folder = Path(path).parent
    try:
        is_there = await anyio.Path(folder).is_dir()
    except OSError as error:
        problem = f"its folder cannot be looked at: {error.strerror or error}"
        raise StoreError(f"the store {path!r}: {problem}; nothing was written") from error
    if not is_there:
        raise StoreError(f"the store {path!r}: there is no folder {str(folder)!r}; create it first")


class DatabaseFile:
    """Notices when an open database was deleted or replaced: everything written to it after that would be lost.

    A database in memory has no path, and is not checked.
    """

    def __init__(self, path: str | None) -> None:
        self._path = Path(path or "/").absolute()
        beside = os.path.realpath(self._path)  # SQLite follows a link, and puts the log beside the file itself
        self._paths = [f"{beside if part else self._path}{part}" for part in _PARTS if path is not None]
        self._opened: dict[str, tuple[int, int]] = {}

    def check(self, *, committed: bool = False, reads: bool = False) -> None:
        """Compare the files with those that were there first.

        Args:
            committed: whether something was written before, which one that is gone may have taken.
            reads: whether only the database itself is compared: that is enough before reading.

        Raises:
            StoreError: one of them is gone, or was replaced.
        """
        for path in self._paths[:1] if reads else self._paths:
            try:
                status = os.stat(path)  # noqa: PTH116 - it is asked twice a commit, and a Path takes longer
            except FileNotFoundError:
                identity, before = None, self._opened.get(path)
            except OSError:
                continue  # it cannot be inspected now; SQLite itself reports whether it can be written
            else:
                identity = (status.st_dev, status.st_ino)
                before = self._opened.setdefault(path, identity)
            if before != identity:
                what = "deleted" if identity is None else "replaced"
                name = Path(path).name
                fate = "what is written to it would be lost; nothing was written"
                if committed:
                    fate = "it is not known whether what was written last is kept"
                raise StoreError(
                    f"the store {str(self._path)!r}: its file {name!r} was {what} while it was open;"
                    f" {fate}. Stop every process that uses it,"
                    " put the right file in its place, beside its own -wal file and never another's, and start again",
                    written="unknown" if committed else "no",
                )
