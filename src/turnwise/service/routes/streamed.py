"""Bodies that are streamed: lines and pieces, in and out."""

from __future__ import annotations

import codecs
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse

from turnwise.http_problems import PROBLEM_AFTER, InvalidRequest
from turnwise.service.problems import build_problem
from turnwise.states.errors import TurnwiseError
from turnwise.states.messages import Message
from turnwise.states.transcript import Transcript

JSON_LINES: Final = "application/x-ndjson"
Piece = TypeVar("Piece", str, bytes)


async def streamed(pieces: AsyncGenerator[Piece], *, media_type: str, headers: Mapping[str, str]) -> StreamingResponse:
    """Return a response with the pieces as its body.

    An error before the first piece is raised, and answered as a problem. After a later one the body ends with a random
    mark, which a header names, and the problem; then it breaks off, so that its reader does not take it for whole.
    """
    mark, first = secrets.token_hex(16), await anext(pieces, None)

    async def whole() -> AsyncGenerator[Piece | str]:
        if first is None:
            return
        yield first
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except TurnwiseError as error:
            yield mark + json.dumps(build_problem(error))
            raise

    return StreamingResponse(whole(), media_type=media_type, headers={**headers, PROBLEM_AFTER: mark})


async def iterate_pages(pages: AsyncGenerator[Transcript]) -> AsyncGenerator[list[Message]]:
    """Yield the messages of a transcript, a page at a time."""
    async with aclosing(pages):
        async for page in pages:
            yield page.messages


async def read_lines(request: Request) -> AsyncIterator[str]:
    """Yield the lines of a request's body."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    partial_line: list[str] = []  # joined at its end: to copy a long line for each piece takes hours
    try:
        async for piece in request.stream():
            *ends, rest = decoder.decode(piece).split("\n")
            for end in ends:
                yield "".join((*partial_line, end, "\n"))
                partial_line.clear()
            partial_line.append(rest)
        partial_line.append(decoder.decode(b"", final=True))
    except UnicodeDecodeError:
        raise InvalidRequest([{"field": "body", "problem": "must be UTF-8"}]) from None
    if rest := "".join(partial_line):
        yield rest
