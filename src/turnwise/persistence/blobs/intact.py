"""Holds the pieces of a blob against the digest that names it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable

from turnwise.persistence.blobs.pieces import closing
from turnwise.persistence.blobs.protocol import BlobGone


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
