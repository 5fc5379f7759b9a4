"""Keeps blobs as the objects of a bucket.

A blob is one object: it is stored whole or not at all. Its key is `blobs/<digest>/<place>`, where each `put` chooses a
new random place.

An object store has no lock, no rename, and no operation on two objects. What chats refer to is kept by order:

- `put` lists the places of the blob, stores it at a new one, and then deletes the places that it has listed. `remove`
  lists the places, then asks whether the blob is unreferenced, and then deletes the places that it has listed. Neither
  deletes any other place.
- A chat refers to the blob from the `note` of a `put` on, and every place that is used later is stored after that. So a
  `remove` that has listed such a place asks after the `note`, and deletes nothing. A `remove` that asked before the
  `note` has not listed such a place.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from turnwise.persistence.blobs.protocol import Blob, BlobGone, FileStore, IsUnreferenced, Note, closing
from turnwise.states.errors import StoreError
from turnwise.states.values.checked import checked

if TYPE_CHECKING:
    from tempfile import SpooledTemporaryFile

    from obstore.store import ObjectStore

    from turnwise.persistence.blobs.objects import Found
else:
    ObjectStore = Any

PIECE: Final = 4 * 1024 * 1024
"""Bytes that are held in memory."""
_MOMENT: Final = 0.05
"""Seconds."""
_YIELDED: Final = 256 * 1024
"""Bytes that a reader is given at a time."""
_OWN: Final = "name"
_OWN_NAME: Final = re.compile(r"bucket [0-9a-f]{16}")
_PLACE: Final = re.compile(r"blobs/[0-9a-f]{64}/[0-9a-f]{32}")
_LOOKS: Final = 3
"""Listings before a blob is gone: one that is not made in a moment misses what a `put` of the same bytes replaces.

Also, how often a name is given to a bucket before that has failed.
"""


class BucketFiles(FileStore):
    """Keeps files in a bucket of S3, Google Cloud Storage or Azure, or of a server that is compatible with one of them.

    The object store must be strongly consistent, also in listings, and support conditional creation. It must not keep
    older versions of objects: otherwise nothing is ever erased. `LocalStore` and `MemoryStore` are for tests; use
    `FolderFiles` for files on a disk.

    Args:
        store: the object store: an `S3Store`, `GCSStore` or `AzureStore` of obstore.
        prefix: the beginning of all keys, before a slash. Give each file store of a bucket its own.

    Raises:
        SettingsError: `store` is no such object store, `prefix` cannot begin a key, or the extra `bucket` is missing.
    """

    @checked
    def __init__(self, store: ObjectStore, *, prefix: str = "") -> None:
        from turnwise.persistence.blobs.objects import Objects  # noqa: PLC0415 - obstore is an extra

        self._objects = Objects(store, prefix)
        self._own_name = str(self._objects)

    @property
    def name(self) -> str:
        """The name that was written into the bucket when it was new: it may be copied elsewhere."""
        return self._own_name

    async def open(self) -> None:
        """Read the name of the bucket, or give it one if it is new.

        Raises:
            StoreError: the bucket cannot be used.
        """
        name, looks = await self._found_name(), 0
        while name is None and looks < _LOOKS:  # S3 refuses while another process creates it, before it can be read
            await self._objects.create(_OWN, f"bucket {secrets.token_hex(8)}".encode())
            name, looks = await self._found_name(), looks + 1
        if name is None or not _OWN_NAME.fullmatch(name):
            raise StoreError(f"{self._objects}: its object {_OWN!r} is not of turnwise; choose another prefix")
        self._own_name = name

    async def _found_name(self) -> str | None:
        name = await self._objects.get(_OWN)
        return None if name is None else str(name, "ascii", "replace")

    async def close(self) -> None:
        """Wait a moment: a process that ends while a thread of obstore still drops the last answer is aborted.

        Source: https://github.com/PyO3/pyo3-async-runtimes/issues/40
        """
        await anyio.sleep(_MOMENT)

    async def put(self, content: AsyncIterable[bytes], note: Note) -> Blob:
        """Keep the bytes on the disk until all have come, note them, then put the object."""
        from tempfile import SpooledTemporaryFile  # noqa: PLC0415 - takes long to import

        sha256, size = hashlib.sha256(), 0
        with SpooledTemporaryFile(PIECE) as file:
            async with closing(content) as pieces:
                async for piece in pieces:
                    sha256.update(piece)
                    size += len(piece)
                    await _write(file, piece)
            blob = Blob(sha256.hexdigest(), size)
            await note(blob)
            file.seek(0)
            with anyio.CancelScope(shield=True):
                others = await self._places(blob.digest)
                place = f"{_to_prefix(blob.digest)}/{secrets.token_hex(16)}"
                try:
                    await self._objects.put(place, file)
                except StoreError:
                    with suppress(StoreError):
                        await self._objects.delete([place])
                    raise
                with suppress(StoreError):  # the blob stands; others can do the rest
                    await self._objects.delete([other.key for other in others])
        return blob

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield what the object holds; where it is gone meanwhile, go on at another place of the blob."""
        done, tried = 0, set[str]()
        while place := await self._standing(digest, tried):
            tried.add(place.key)
            while done < place.size:
                data = await self._objects.get_range(place.key, done, min(done + PIECE, place.size))
                if data is None:
                    break
                for start in range(0, len(data), _YIELDED):
                    yield bytes(data[start : start + _YIELDED])
                done += len(data)
            else:
                return
        raise BlobGone(digest, "was removed while it was read") if done else BlobGone(digest)

    async def size(self, digest: str) -> int | None:
        place = await self._standing(digest)
        return None if place is None else place.size

    async def remove(self, digest: str, is_unreferenced: IsUnreferenced) -> None:
        """List the places of the blob, look whether it is unreferenced, then delete what was listed."""
        places = await self._places(digest)
        if places and await is_unreferenced():
            await self._objects.delete([place.key for place in places])

    async def tidy(self, seconds: float) -> None:
        """Do nothing: no object is put in part."""

    async def _standing(self, digest: str, tried: Collection[str] = ()) -> Found | None:
        """Return a place of a blob that was not tried yet; `None` if it stands nowhere else."""
        for _ in range(_LOOKS):
            for place in await self._places(digest):
                if place.key not in tried:
                    return place
        return None

    async def _places(self, digest: str) -> list[Found]:
        """Return where a blob stands.

        Raises:
            StoreError: it stands nowhere, because the bucket was emptied or is another now.
        """
        places = [one for one in await self._objects.listed(_to_prefix(digest)) if _PLACE.fullmatch(one.key)]
        if not places and await self._found_name() != self._own_name:
            raise StoreError(f"{self._objects} is no longer {self._own_name!r}: another program changed or emptied it")
        return places


async def _write(file: SpooledTemporaryFile[bytes], piece: bytes) -> None:
    try:
        await anyio.to_thread.run_sync(file.write, piece)
    except OSError as error:
        raise StoreError(f"the temporary folder, where a file waits for its last byte: {error}") from error


def _to_prefix(digest: str) -> str:
    return f"blobs/{digest}"
