"""Cuts a stream of bytes into pieces of one size, for stores that keep a piece in a row."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

PIECE: Final = 512 * 1024
"""Bytes that a row holds; the last row of a blob holds fewer."""


async def in_pieces(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in pieces of `PIECE` bytes, the last one shorter; none is empty."""
    waiting = bytearray()
    async for given in content:
        for first in range(0, len(given), PIECE):
            waiting += given[first : first + PIECE]
            if len(waiting) >= PIECE:
                yield bytes(waiting[:PIECE])
                del waiting[:PIECE]
    if waiting:
        yield bytes(waiting)
