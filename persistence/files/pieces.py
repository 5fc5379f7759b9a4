"""Cuts a stream of bytes into pieces of one size, for stores that keep a piece in a row or in an object."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

PIECE: Final = 512 * 1024
"""Bytes that a row holds; the last row of a blob holds fewer."""


async def in_pieces(content: AsyncIterable[bytes], *, size: int = PIECE) -> AsyncIterator[bytes]:
    """Yield the same bytes in pieces of `size` bytes, the last one shorter; none is empty."""
    waiting = bytearray()
    async for data in content:
        for first in range(0, len(data), size):
            waiting += data[first : first + size]
            if len(waiting) >= size:
                yield bytes(waiting[:size])
                del waiting[:size]
    if waiting:
        yield bytes(waiting)
