"""Keeps blobs in the rows of a database, a piece of them in each: what both databases do alike."""

from __future__ import annotations

import hashlib
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Final

import anyio

from turnwise.persistence.blobs.pieces import closing, in_pieces
from turnwise.persistence.blobs.protocol import Blob, BlobGone, FileStore, IsUnreferenced, Note

AT_ONCE: Final = 16
"""Pieces that are deleted in one transaction, so that other work never waits for it for long."""


class RowFiles(FileStore):
    """Keeps blobs in the database of a chat store, which opens and closes it."""

    name = "database"

    async def open(self) -> None:
        """Do nothing: the chat store opens the database."""

    async def close(self) -> None:
        """Do nothing: the chat store closes the database."""

    async def put(self, content: AsyncIterable[bytes], note: Note) -> Blob:
        """Write the pieces under a place of their own, then give that its name."""
        place, digest, size = secrets.token_hex(16), hashlib.sha256(), 0
        try:
            number = 0
            async with closing(in_pieces(content)) as pieces:
                async for piece in pieces:
                    digest.update(piece)
                    size += len(piece)
                    await self._add(place, number, piece)
                    number += 1
            blob = Blob(digest.hexdigest(), size)
            await note(blob)
            is_named = await self._name(place, blob)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clear(place)
            raise
        if not is_named:
            await self._clear(place)
        return blob

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the pieces, each read when it is asked for."""
        size, number = await self.size(digest), 0
        if size is None:
            raise BlobGone(digest)
        while size > 0:
            piece = await self._piece(digest, number)
            if piece is None:
                raise BlobGone(digest, "was removed while it was read")
            yield piece
            size -= len(piece)
            number += 1

    async def remove(self, digest: str, is_unreferenced: IsUnreferenced) -> None:  # noqa: ARG002 - the transaction looks for itself
        """Take the name away unless a chat holds the blob, in one transaction, then delete the pieces."""
        place = await self._unname(digest)
        if place is not None:
            await self._clear(place)

    async def tidy(self, seconds: float) -> None:
        """Delete the pieces of places without a name that got their last piece that long ago."""
        for place in await self._left(seconds):
            await self._clear(place)

    async def _clear(self, place: str) -> None:
        """Delete the pieces of a place that has no name."""
        while await self._clear_some(place):
            pass

    @abstractmethod
    async def _add(self, place: str, number: int, piece: bytes) -> None:
        """Write one piece."""

    @abstractmethod
    async def _name(self, place: str, blob: Blob) -> bool:
        """Give the pieces of a place their name; return whether no others have it.

        Raises:
            StoreError: the place was swept.
        """

    @abstractmethod
    async def _piece(self, digest: str, number: int) -> bytes | None:
        """Read one piece; return `None` if it is gone."""

    @abstractmethod
    async def _unname(self, digest: str) -> str | None:
        """Take the name away unless a chat holds the blob; return the place that has lost it."""

    @abstractmethod
    async def _left(self, seconds: float) -> Iterable[str]:
        """Return the places without a name that got their last piece that long ago."""

    @abstractmethod
    async def _clear_some(self, place: str) -> bool:
        """Delete some pieces of a place that has no name; return whether there may be more."""
