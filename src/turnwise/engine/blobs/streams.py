"""Incoming content: the parts of a message, and the bytes of a file, piece by piece."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from functools import partial
from os import PathLike
from typing import Any, Final, NamedTuple

import anyio

from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.user_code import in_thread
from turnwise.persistence.blobs.protocol import closing
from turnwise.states.errors import InvalidContent
from turnwise.states.file_heads import HEAD_BYTES, fault_of_head
from turnwise.states.files import OnDisk, bytes_in, guessed_type, is_of_type, path_text
from turnwise.states.messages import Content, FilePart, Part, parts_of, size_of
from turnwise.states.values.plain import shown, well_formed


def parts_within(settings: Settings, content: Content) -> tuple[Part, ...]:
    """Return a client's content as parts, or raise `InvalidContent`."""
    parts = parts_of(content)
    limit, size = settings.message_limit_bytes, size_of(parts)
    if size > limit:
        most = f"a message holds at most {limit:,} bytes (Settings.message_limit_bytes)"
        raise InvalidContent(f"{most}; this one has {size:,}")
    return parts


def check_message(settings: Settings, content: Content) -> tuple[Part, ...]:
    parts = parts_within(settings, content)
    for part in parts:
        problem = refusal_of(settings, part) if isinstance(part, FilePart) else None
        if problem is not None:
            raise InvalidContent(problem)
    return parts


def refusal_of(settings: Settings, part: FilePart) -> str | None:
    """Return why a file of a message is not allowed; `None` if it is."""
    if part.data is None:
        return refusal_of_file(settings, part.media_type, None)
    problem = refusal_of_file(settings, part.media_type, bytes_in(part.data))
    return problem or fault_of_head(part.media_type, _decode_head(part.data), settings.picture_limit_pixels)


def _decode_head(data: str) -> bytes:
    try:
        return b64decode(data[: HEAD_BYTES // 3 * 4])
    except binascii.Error:
        return b""  # reading it reports that


def refusal_of_file(settings: Settings, media_type: str, size: int | None) -> str | None:
    """Return the reason to refuse a file of that type and size; the size may be unknown."""
    allowed, most = settings.file_types, settings.file_limit_bytes
    if allowed is not None and not is_of_type(media_type, allowed):
        types = ", ".join(allowed) or "none"
        return f"files of the type {media_type[:80]!r} are not allowed here (Settings.file_types: {types})"
    if size is not None and size > most:
        return f"a file holds at most {most:,} bytes (Settings.file_limit_bytes); this one has {size:,}"
    return "a file must not be empty" if size == 0 else None


FileContent = str | OnDisk | bytes | Iterable[bytes] | AsyncIterable[bytes]
"""The content of a file: the path of a file on the disk, bytes, or something that yields bytes."""

_PIECE: Final = 256 * 1024
"""Bytes of a file that are read at a time."""


class Source(NamedTuple):
    """The bytes of a file, and its properties before reading."""

    pieces: AsyncGenerator[bytes, None]
    media_type: str | None = None
    """Guessed from the name."""
    name: str | None = None
    """Well-formed, unlike some names on disks."""
    size: int | None = None
    """In bytes; `None` if it is unknown before reading."""


async def source_of(content: Any) -> Source:
    """Return an iterator over the bytes of a file. Nothing but its size has been read."""
    if isinstance(content, bytes | bytearray | memoryview):
        whole = bytes(content)
        return Source(_cut(whole), size=len(whole))
    if isinstance(content, str | PathLike):
        return await _on_disk(content)
    if isinstance(content, AsyncIterable):
        return Source(_iterate(content))
    if isinstance(content, Iterable):
        return Source(_drawn(iter(content)))
    raise InvalidContent(
        f"content: must be a path, bytes, or something that yields bytes; it was {shown(content)}", argument="content"
    )


async def _on_disk(given: Any) -> Source:
    path = path_text(given)
    if path is None:
        raise InvalidContent(f"content: must be a path of text; it was {shown(given)}", argument="content")
    place = anyio.Path(path)
    try:
        status = await place.stat()
        is_file = await place.is_file()
    except (OSError, ValueError) as error:
        raise _unreadable(path, type(error).__name__) from error
    if not is_file:
        raise _unreadable(path, "it is no file")
    return Source(_read(place), guessed_type(place.name), well_formed(place.name), status.st_size)


def _unreadable(path: str, problem: str) -> InvalidContent:
    return InvalidContent(f"content: the file {path[-80:]!r} cannot be read: {problem}", argument="content")


async def _read(place: anyio.Path) -> AsyncGenerator[bytes, None]:
    try:
        file = await place.open("rb")
        try:
            while piece := await file.read(_PIECE):
                yield piece
        finally:
            with anyio.CancelScope(shield=True):
                await file.aclose()
    except OSError as error:
        raise _unreadable(str(place), type(error).__name__) from error


async def _cut(whole: bytes) -> AsyncGenerator[bytes, None]:
    for first in range(0, len(whole), _PIECE):
        yield whole[first : first + _PIECE]


async def _iterate(content: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    async with closing(content) as pieces:
        async for piece in pieces:
            yield _bytes(piece)


async def _drawn(content: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of an iterator, which may block, from a thread."""
    while (piece := await in_thread(partial(next, content, None))) is not None:
        yield _bytes(piece)


def _bytes(piece: object) -> bytes:
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise InvalidContent(f"content: must yield bytes; it yielded {shown(piece)}", argument="content")
    return bytes(piece)
