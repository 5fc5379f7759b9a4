"""Keeps blobs as the files of a folder."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import anyio
import anyio.to_thread

from turnwise.persistence.blobs.protocol import SWEPT, Blob, BlobGone, FileStore, IsUnreferenced, Note, closing
from turnwise.states.errors import SettingsError, StoreError
from turnwise.states.values.checked import checked

_PIECE: Final = 256 * 1024
"""Bytes that are read at a time."""
_BLOBS, _INCOMING, _LEAVING = "blobs", "incoming", "leaving"
_NAMED: Final = "folder "
"""What the name of a folder begins with."""
_T = TypeVar("_T")


class FolderFiles(FileStore):
    """Keeps blobs in a folder.

    Every process that uses the chat store must see the folder under its own path, on one file system that renames
    files atomically: a local disk, or a volume that all machines mount.

    Args:
        path: the folder; the one above it must exist.
        create: whether it is created if it is missing. If not, opening it refuses a folder that holds no files.

    Raises:
        SettingsError: `path` is no path.
    """

    @checked
    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        if not str(path) or "\0" in str(path):
            raise SettingsError("path", "must be the path of a folder; it was empty, or held the character NUL")
        self._root = Path(path).absolute()
        self._create = create
        self._own_name = f"{_NAMED}{self._root}"

    @property
    def name(self) -> str:
        """The name that was written into the folder when it was new: it may be mounted elsewhere, or moved."""
        return self._own_name

    async def open(self) -> None:
        """Create the folder if it is missing and may be created.

        Raises:
            StoreError: it is missing, or no folder of files, or has lost its name, or cannot be created.
        """
        await self._do(self._make)

    def _make(self) -> None:
        if not self._create and not (self._root / "name").is_file():
            what = "holds no files of a store" if self._root.is_dir() else "is not there"
            raise StoreError(f"the folder {str(self._root)!r} of files {what}; nothing was written")
        self._root.mkdir(exist_ok=True)
        for name in (_BLOBS, _INCOMING, _LEAVING):
            (self._root / name).mkdir(exist_ok=True)
        own = self._root / "name"
        if not own.exists():
            incoming = self._root / _INCOMING / secrets.token_hex(16)
            with incoming.open("xb") as file:
                file.write(f"{_NAMED}{secrets.token_hex(8)}".encode())
                _sync(file)
            with suppress(FileExistsError):
                own.hardlink_to(incoming)
            incoming.unlink()
            _sync_folder(self._root)
        name = own.read_text(encoding="ascii", errors="replace")
        if not name.startswith(_NAMED):
            problem = "its file 'name' holds none; write back the one in the database's table `file_store`"
            raise StoreError(f"the folder {str(self._root)!r} of files: {problem}; nothing was written")
        self._own_name = name

    async def close(self) -> None:
        """Do nothing: no file stays open."""

    async def put(self, content: AsyncIterable[bytes], note: Note) -> Blob:
        """Write a new file beside the others, sync it, and give it its name."""
        incoming = self._root / _INCOMING / secrets.token_hex(16)
        sha256, size = hashlib.sha256(), 0
        file = await self._do(lambda: incoming.open("xb"))
        try:
            try:
                async with closing(content) as pieces:
                    async for piece in pieces:
                        sha256.update(piece)
                        size += len(piece)
                        await self._do(partial(file.write, piece))
                await self._do(lambda: _sync(file))
            finally:
                with suppress(OSError):  # it is closed even if the disk is too full for what is left in memory
                    file.close()
            blob = Blob(sha256.hexdigest(), size)
            await note(blob)
            with anyio.CancelScope(shield=True):
                await self._give_name(incoming, blob.digest)
        finally:
            incoming.unlink(missing_ok=True)
        return blob

    async def _give_name(self, incoming: Path, digest: str) -> None:
        try:
            await self._do(lambda: self._name(incoming, digest))
        except FileNotFoundError:
            raise StoreError(SWEPT) from None

    def _name(self, incoming: Path, digest: str) -> None:
        """Give a file its name even if another has it: that one may be about to leave."""
        place = self._place(digest)
        place.parent.mkdir(exist_ok=True)
        incoming.replace(place)
        for folder in (place.parent, place.parent.parent):
            _sync_folder(folder)

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the file piece by piece; what is removed meanwhile is read to its end."""
        file = await self._do(lambda: self._found(digest, lambda place: place.open("rb")))
        if file is None:
            raise BlobGone(digest)
        try:
            while piece := await self._do(lambda: file.read(_PIECE)):
                yield piece
        finally:
            file.close()

    async def size(self, digest: str) -> int | None:
        status = await self._do(lambda: self._found(digest, Path.stat))
        return None if status is None else status.st_size

    async def remove(self, digest: str, is_unreferenced: IsUnreferenced) -> None:
        """Rename the file, look whether it is still unreferenced, then unlink it or put it back.

        A chat that begins to hold the blob before the check gets it back. One that begins after it names a file of its
        own later still. After a crash in between the next call finishes.
        """
        place, leaving = self._place(digest), self._root / _LEAVING / digest
        await self._do(lambda: _move(place, leaving))
        if await is_unreferenced():
            await self._do(lambda: leaving.unlink(missing_ok=True))
            await self._do(lambda: _sync_folder(leaving.parent))
        else:
            await self._do(lambda: _move(leaving, place))

    async def tidy(self, seconds: float) -> None:
        await self._do(lambda: self._tidy(time.time() - seconds))

    def _tidy(self, before: float) -> None:
        for incoming in (self._root / _INCOMING).iterdir():
            try:
                if incoming.stat().st_mtime <= before:
                    incoming.unlink()
            except FileNotFoundError:
                continue  # it has got its name, or another process was faster

    def _found(self, digest: str, look: Callable[[Path], _T]) -> _T | None:
        """Return what `look` finds where a blob is, or where it is while it may leave; `None` if it is nowhere.

        It may be put back between two looks.
        """
        place, leaving = self._place(digest), self._root / _LEAVING / digest
        for one in (place, leaving, place, leaving, place):
            try:
                return look(one)
            except FileNotFoundError:
                continue
        if not self._root.is_dir():
            raise FileNotFoundError
        return None

    def _place(self, digest: str) -> Path:
        return self._root / _BLOBS / digest[:2] / digest

    async def _do(self, work: Callable[[], _T]) -> _T:
        """Run `work` in a thread and return its result.

        Raises:
            FileNotFoundError: the file is not there.
            StoreError: the file system refused.
        """
        try:
            return await anyio.to_thread.run_sync(work)
        except FileNotFoundError:
            if not self._root.is_dir():
                raise StoreError(f"the folder {str(self._root)!r} of files cannot be reached") from None
            raise
        except OSError as error:
            problem = os.strerror(error.errno) if error.errno else str(error)
            raise StoreError(f"the folder {str(self._root)!r} of files: {problem}; nothing was written") from error


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _move(place: Path, target: Path) -> None:
    try:
        place.replace(target)
    except FileNotFoundError:
        return
