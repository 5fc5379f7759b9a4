"""Reads a stream of bytes to its end, and cuts it into pieces of one size for stores that keep a piece in a row."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

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
