"""Bodies that are streamed: lines and pieces, in and out."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from typing import Final, TypeVar

from starlette.requests import Request

from turnwise.service.problems import InvalidRequest

JSON_LINES: Final = "application/x-ndjson"
Piece = TypeVar("Piece", str, bytes)


async def begun(pieces: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    """Return the same pieces, the first one read: what goes wrong before it can still be answered as a problem."""
    first = await anext(pieces, None)

    async def whole() -> AsyncIterator[Piece]:
        if first is not None:
            yield first
            async for piece in pieces:
                yield piece

    return whole()


async def lines_of(request: Request) -> AsyncIterator[str]:
    """Yield the text of a request's body, piece by piece.

    Raises:
        InvalidRequest: it is no UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    try:
        async for piece in request.stream():
            *lines, rest = (rest + decoder.decode(piece)).split("\n")
            for line in lines:
                yield f"{line}\n"
        rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InvalidRequest([{"field": "body", "problem": "must be UTF-8"}]) from None
    if rest:
        yield rest
