"""Reads a stream of bytes to its end, and cuts it into pieces of one size for stores that keep a piece in a row."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from turnwise.persistence.blobs.protocol import BlobGone

T = TypeVar("T")

PIECE: Final = 512 * 1024
"""Bytes that a row holds; the last row of a blob holds fewer."""


@asynccontextmanager
async def closing(items: AsyncIterable[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Yield an iterator over the items, and close it in the end if it can be closed: it may have a file open.

    A generator that is left in the middle, as by a full disk, is else closed by a garbage collection.
    """
    iterator = aiter(items)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()


async def in_pieces(content: AsyncIterable[bytes], *, size: int = PIECE) -> AsyncIterator[bytes]:
    """Yield the same bytes in pieces of `size` bytes, the last one shorter; none is empty."""
    waiting = bytearray()
    async with closing(content) as given:
        async for data in given:
            for first in range(0, len(data), size):
                waiting += data[first : first + size]
                if len(waiting) >= size:
                    yield bytes(waiting[:size])
                    del waiting[:size]
    if waiting:
        yield bytes(waiting)


async def intact(digest: str, pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a blob.

    Raises:
        BlobGone: after the last piece, if all of them together are not what the digest says.
    """
    sha256 = hashlib.sha256()
    async with closing(pieces) as given:
        async for piece in given:
            sha256.update(piece)
            yield piece
    if sha256.hexdigest() != digest:
        raise BlobGone(digest, "is damaged: its bytes are not those that it is named after")
