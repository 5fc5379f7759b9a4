"""Keeps the blobs of a chat that arrives on the disk, until all of its lines were checked."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import anyio

from turnwise.states.errors import StoreError

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

_PIECE: Final = 256 * 1024


class Spool:
    """A folder of its own for blobs that come in pieces, one blob after another. It is gone when it is left.

    It is made for the first blob: a chat without files needs no place on the disk.
    """

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._sizes: dict[str, int] = {}
        self._next = 0
        self._found = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def blobs(self) -> Mapping[str, int]:
        return self._sizes

    def add(self, digest: str, number: int, piece: bytes) -> str | None:
        """Take the next piece; return what is wrong with it.

        Raises:
            StoreError: the temporary folder cannot take it.
        """
        if digest not in self._sizes:
            problem = self.end()
            if problem is not None:
                return problem
            self._sizes[digest], self._next, self._found = 0, 0, hashlib.sha256()
        if digest != [*self._sizes][-1] or number != self._next or not piece:
            return "the next piece of a file belongs here"
        with _on_the_disk(), self._path(digest).open("ab") as file:
            file.write(piece)
        self._found.update(piece)
        self._sizes[digest] += len(piece)
        self._next += 1
        return None

    def end(self) -> str | None:
        """Return the problem of the last blob, which is complete now."""
        last = [*self._sizes][-1:]
        if last and self._found.hexdigest() != last[0]:
            return f"the pieces before it are not the file {last[0]}"
        return None

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield a blob piece by piece, or raise `StoreError`: the temporary folder does not give it back."""
        with _on_the_disk():
            file = await anyio.open_file(self._path(digest), "rb")
        try:
            while True:
                with _on_the_disk():
                    piece = await file.read(_PIECE)
                if not piece:
                    return
                yield piece
        finally:
            with anyio.CancelScope(shield=True):
                await file.aclose()

    def _path(self, digest: str) -> Path:
        if self._folder is None:
            import tempfile  # noqa: PLC0415 - takes long to import, and only an import of files needs it

            self._folder = tempfile.TemporaryDirectory(prefix="turnwise-", ignore_cleanup_errors=True)
        return Path(self._folder.name) / digest


@contextmanager
def _on_the_disk() -> Iterator[None]:
    """Replace what the file system says by a `StoreError`."""
    try:
        yield
    except OSError as error:
        problem = f"the temporary folder, where the files of a chat wait until all of it is checked: {error}"
        raise StoreError(f"{problem}; nothing was written") from error
