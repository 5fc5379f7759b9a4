"""Requests to a service: the declared commands as HTTP spells them, and bodies of lines and bytes."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from turnwise.engine.chats.declaration import HEADERS, CommandCall
from turnwise.persistence.archive.format import each_line
from turnwise.states.errors import ChatNotFound, InvalidArgument
from turnwise.states.messages import FilePart, parts_of
from turnwise.states.values.plain import shown

_AS_JSON: Final[Mapping[str, Callable[[Any], Any]]] = {
    "content": parts_of,
    "message": parts_of,
    "history": list,
}
"""Converters of arguments that are not plain JSON."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a service."""

    method: str
    path: str
    query: Mapping[str, Any] = {}
    """Without the entries that are `None`."""
    headers: Mapping[str, str | None] = {}
    body: Any = None
    """Sent as JSON."""
    stream: AsyncIterator[bytes] | None = None
    """Sent piece by piece."""
    repeatable: bool = False
    """Whether it is idempotent, and sent again until there is an answer."""
    waits_out_limits: bool = False
    """Whether to retry it after a 429, too: it continues an operation that the service has accepted."""


def build_request(call: CommandCall) -> Request:
    """Return the request of a call. Arguments at their defaults are left out, so that older services take it, too.

    Without a `client_id` a new one is sent, so that a retry after a lost answer is applied once.
    """
    command = call.command
    path: dict[str, str] = {}
    headers: dict[str, str | None] = {}
    fields: dict[str, Any] = {}
    for name, value in call.arguments.items():
        if name in command.path_parameters:
            path[name] = _segment(name, value)
        elif name in HEADERS:
            headers[HEADERS[name]] = _header(name, value)
        elif value != command.parameters[name].default:
            fields[name] = _AS_JSON[name](value) if name in _AS_JSON else value
    is_read = command.is_read
    return Request(
        method=command.verb or "GET",
        path=command.path.format_map(path),
        query={name: _as_text(value) for name, value in fields.items()} if is_read else {},
        headers=headers,
        body=fields if command.has_body else None,
        repeatable=is_read or command.repeatable or "client_id" in call.arguments,
    )


def _as_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return msgspec.json.encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def _header(name: str, value: Any) -> str | None:
    if name == "client_id":
        return new_key() if value is None else str(value)
    return None if value is None else f'"{value}"'


def new_key() -> str:
    """Return a `client_id` for a request whose caller gives none."""
    return f"client-{secrets.token_hex(16)}"


def chat_path(chat_id: str, *rest: str) -> str:
    """Return the path of a resource of a chat; raise `ChatNotFound` for an impossible id."""
    return "/".join(("/chats", _segment("chat_id", chat_id), *rest))


def _segment(name: str, value: str) -> str:
    if value not in ("", ".", "..") and "/" not in value:
        return quote(value)
    if name == "chat_id":
        raise ChatNotFound(value)
    raise InvalidArgument(name, f"must be the id of a message; it was {shown(value)}")


async def decode_lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Decode the lines of a body, each with its line feed."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode() + "\n"
    if rest:
        yield rest.decode()


async def encode_lines(lines: Any) -> AsyncGenerator[bytes, None]:
    """Encode lines as the body of a request."""
    number = 0
    async with aclosing(each_line(lines)) as each:
        async for line in each:
            if not isinstance(line, str):
                raise InvalidArgument(f"lines[{number}]", f"must be a line of text; it was {type(line).__name__}")
            yield _encode_line(line, number)
            number += 1


def _encode_line(line: str, number: int) -> bytes:
    try:
        return (str.__str__(line).removesuffix("\n") + "\n").encode()
    except UnicodeEncodeError:
        problem = "must be well-formed text; it holds half a character (a lone surrogate)"
        raise InvalidArgument(f"lines[{number}]", problem) from None


def decode_file(file: FilePart) -> bytes:
    """Return the bytes of a file that is given inline."""
    return base64.b64decode(file.data or "")


class InterruptibleBody:
    """The received part of a body that may break off with a problem behind `mark` (empty: none is announced)."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self.rest = b""
        """The last bytes: perhaps a part of the mark, or the mark and the problem."""

    def content(self, piece: bytes) -> bytes:
        """Take the next piece; return the part of it that is certainly content."""
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
