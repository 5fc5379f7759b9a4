"""Bodies of bytes: lines in and out, inline files, and bodies that a service breaks off to report a problem."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

import msgspec

from turnwise.states.errors import InvalidArgument
from turnwise.states.messages import FilePart


async def lines_out(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Yield the lines in a body, each with its line feed."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode() + "\n"
    if rest:
        yield rest.decode()


async def lines_in(lines: Any) -> AsyncGenerator[bytes, None]:
    """Yield lines as the body of a request.

    Raises:
        InvalidArgument: they are no lines, or one of them is no string.
    """
    number = 0
    async for line in _each(lines):
        if not isinstance(line, str):
            raise InvalidArgument(f"lines[{number}]", f"must be a line of text; it was {type(line).__name__}")
        yield _encoded(line, number)
        number += 1


def _encoded(line: str, number: int) -> bytes:
    try:
        return (str.__str__(line).removesuffix("\n") + "\n").encode()
    except UnicodeEncodeError:
        problem = "must be well-formed text; it holds half a character (a lone surrogate)"
        raise InvalidArgument(f"lines[{number}]", problem) from None


async def _each(lines: Any) -> AsyncIterator[Any]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield line
    elif isinstance(lines, Iterable):
        for line in lines.split("\n") if isinstance(lines, str) else lines:
            yield line
    else:
        raise InvalidArgument("lines", f"must be the lines that `export_chat` yields; it was {type(lines).__name__}")


def decoded(file: FilePart) -> bytes:
    """Return the bytes of a file that is given inline."""
    return base64.b64decode(file.data or "")


class InterruptibleBody:
    """What was received of a body that may break off.

    Args:
        mark: precedes the problem; empty if the service announces none.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self.rest = b""
        """What came last: it may be the beginning of the mark, or the mark and what follows it."""

    def content(self, piece: bytes) -> bytes:
        """Take the next piece; return the part of it that is content, whatever comes next."""
        came = self.rest + piece
        place = came.find(self._mark) if self._mark else len(came)
        end = place if place >= 0 else max(len(came) - len(self._mark) + 1, 0)
        self.rest = came[end:]
        return came[:end]

    @property
    def problem(self) -> Mapping[str, Any] | None:
        """The problem for which the service broke the body off; `None` without one."""
        if not self._mark or not self.rest.startswith(self._mark):
            return None
        try:
            return msgspec.json.decode(self.rest.removeprefix(self._mark), type=dict[str, Any])
        except msgspec.DecodeError:
            return None
