"""Keeps blobs as the objects of a bucket.

A blob is cut into pieces. Each is an object of its own, because such an object is put whole or not at all; a
multipart upload that is cut off would stay where no listing shows it. The last piece is the blob's name: its key is
`blobs/<digest>/<place>-<size>`. The pieces before it, if there are any, are `pieces/<place>/<number>`. The place is
drawn anew by every `put`. A blob stands where its name and all of its pieces are.

An object store has no lock, no rename, and nothing that happens to two objects at once. What a chat holds stays:

- A `put` first lists where the blob stands already, then gives it a place of its own all the same, and only when
  that stands, deletes those that it has listed. `remove` lists the places, then asks whether the blob is
  unreferenced, then deletes those that it has listed. No other place is ever deleted.
- Say that a chat holds the blob since the `note` of some put. Its place was named after that. What replaces it was
  named later still, and so on. So a removal that has listed the place where the blob stands now asks after the
  `note`, learns that the blob is held, and deletes nothing. One that asked before that has not listed it.

`Arrivals` says why no piece is tidied away that belongs to a name.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from turnwise.persistence.blobs.arrivals import Arrivals, pieces_of
from turnwise.persistence.blobs.protocol import Blob, BlobGone, FileStore, IsUnreferenced, Note, closing, in_pieces
from turnwise.states.errors import StoreError
from turnwise.states.values.checked import checked

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from turnwise.persistence.blobs.objects import Found
else:
    ObjectStore = Any

PIECE: Final = 4 * 1024 * 1024
"""Bytes that an object holds; the last object of a blob holds fewer."""
_MOMENT: Final = 0.05
"""Seconds."""
_YIELDED: Final = 256 * 1024
"""Bytes that a reader is given at a time."""
_OWN: Final = "name"
_OWN_NAME: Final = re.compile(r"bucket [0-9a-f]{16}")
_BLOB_NAME: Final = re.compile(r"blobs/[0-9a-f]{64}/([0-9a-f]{32})-([0-9]+)")
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
        self._arrivals = Arrivals(self._objects)
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
        """Put the pieces, and last of all the one that names them: it is noted before it is put."""
        place, sha256, size, last = secrets.token_hex(16), hashlib.sha256(), 0, b""
        written: list[str] = []
        try:
            async with closing(in_pieces(content, size=PIECE)) as pieces:
                async for piece in pieces:
                    if last:
                        await self._add(place, written, last)
                    sha256.update(piece)
                    size += len(piece)
                    last = piece
            blob = Blob(sha256.hexdigest(), size)
            name = f"{_to_prefix(blob.digest)}/{place}-{size}"
            if written:
                await self._arrivals.announce(place, name)
            await note(blob)
            with anyio.CancelScope(shield=True):
                others = await self._names(blob.digest)
                written.append(name)
                await self._objects.put(name, last)
                if written != [name]:
                    await self._arrivals.check(place)
        except BaseException:
            # The marks stay: a request that was given up may arrive still, and `tidy` looks again.
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await self._objects.delete(written)
            raise
        with anyio.CancelScope(shield=True), suppress(StoreError):  # the blob stands; others can do the rest
            await self._clear(others)
            if written != [name]:
                await self._arrivals.end(place)
        return blob

    async def _add(self, place: str, written: list[str], piece: bytes) -> None:
        if not written:
            await self._arrivals.begin(place)
        written.append(f"{pieces_of(place)}/{len(written):06}")
        await self._objects.put(written[-1], piece)

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield what each object holds; where one is gone meanwhile, go on at another place of the blob."""
        done, tried = 0, set[str]()
        while pieces := await self._standing(digest, tried):
            tried.add(pieces[-1].key)
            first = 0
            for piece in pieces:
                if first + piece.size > done:
                    data = await self._objects.get(piece.key)
                    if data is None:
                        break
                    for start in range(done - first, len(data), _YIELDED):
                        yield bytes(data[start : start + _YIELDED])
                    done = first + piece.size
                first += piece.size
            else:
                return
        raise BlobGone(digest, "was removed while it was read") if done else BlobGone(digest)

    async def size(self, digest: str) -> int | None:
        pieces = await self._standing(digest)
        return sum(piece.size for piece in pieces) if pieces else None

    async def remove(self, digest: str, is_unreferenced: IsUnreferenced) -> None:
        """List the places of the blob, look whether it is unreferenced, then delete what was listed."""
        names = await self._names(digest)
        if names and await is_unreferenced():
            await self._clear(names)

    async def tidy(self, seconds: float) -> None:
        """Delete the pieces that have got no name, as soon as the object store says that they are so old."""
        await self._arrivals.tidy(seconds)

    async def _clear(self, names: Iterable[Found]) -> None:
        """Delete the pieces of some places, the name last: who goes on after a crash finds them by it."""
        for name in names:
            await self._objects.delete([piece.key for piece in await self._before(name)])
            await self._objects.delete([name.key])

    async def _standing(self, digest: str, tried: Collection[str] = ()) -> list[Found]:
        """Return all pieces of a blob, in order, of a place that was not tried yet; none if it stands nowhere else."""
        for _ in range(_LOOKS):
            for name in await self._names(digest):
                pieces = [*await self._before(name), name]
                if name.key not in tried and sum(piece.size for piece in pieces) == _parse_size(name):
                    return pieces
        return []

    async def _before(self, name: Found) -> list[Found]:
        """Return the pieces that come before the one that is the name, as far as they are there."""
        place = name.key.rpartition("/")[2].partition("-")[0]
        return [] if name.size == _parse_size(name) else await self._objects.listed(pieces_of(place))

    async def _names(self, digest: str) -> list[Found]:
        """Return the names that a blob has.

        Raises:
            StoreError: there is none, because the bucket was emptied or is another now.
        """
        names = [one for one in await self._objects.listed(_to_prefix(digest)) if _BLOB_NAME.fullmatch(one.key)]
        if not names and await self._found_name() != self._own_name:
            raise StoreError(f"{self._objects} is no longer {self._own_name!r}: another program changed or emptied it")
        return names


def _to_prefix(digest: str) -> str:
    return f"blobs/{digest}"


def _parse_size(name: Found) -> int:
    return int(name.key.rpartition("-")[2])
