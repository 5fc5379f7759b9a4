"""Limits of a user's message by the settings: its size, and its files."""

from __future__ import annotations

import binascii
from base64 import b64decode

from turnwise.engine.config.settings import Settings
from turnwise.states.errors import InvalidContent
from turnwise.states.file_heads import HEAD_BYTES, fault_of_head
from turnwise.states.files import bytes_in, is_of_type
from turnwise.states.messages import Content, FilePart, Part, parts_of, size_of


def parts_within(settings: Settings, content: Content) -> tuple[Part, ...]:
    """Return a client's content as parts.

    Raises:
        InvalidContent: it says nothing, cannot be stored, or is larger than a message may be.
    """
    parts = parts_of(content)
    limit, size = settings.message_limit_bytes, size_of(parts)
    if size > limit:
        most = f"a message holds at most {limit:,} bytes (Settings.message_limit_bytes)"
        raise InvalidContent(f"{most}; this one has {size:,}")
    return parts


def check_message(settings: Settings, content: Content) -> tuple[Part, ...]:
    """Return the parts of a message, once what it says by itself is checked: before anything is done.

    Raises:
        InvalidContent: no chat would take it, as it is now or as its files are.
    """
    parts = parts_within(settings, content)
    for part in parts:
        problem = refusal_of(settings, part) if isinstance(part, FilePart) else None
        if problem is not None:
            raise InvalidContent(problem)
    return parts


def refusal_of(settings: Settings, part: FilePart) -> str | None:
    """Return why a file that someone says is not allowed, and what would be; `None` if it is."""
    if part.data is None:
        return refusal_of_file(settings, part.media_type, None)
    problem = refusal_of_file(settings, part.media_type, bytes_in(part.data))
    return problem or fault_of_head(part.media_type, _head_of(part.data), settings.picture_limit_pixels)


def _head_of(data: str) -> bytes:
    try:
        return b64decode(data[: HEAD_BYTES // 3 * 4])
    except binascii.Error:
        return b""  # reading it reports that


def refusal_of_file(settings: Settings, media_type: str, size: int | None) -> str | None:
    """Return why a file of that type and size is not allowed; the size may not be known yet."""
    allowed, most = settings.file_types, settings.file_limit_bytes
    if allowed is not None and not is_of_type(media_type, allowed):
        types = ", ".join(allowed) or "none"
        return f"files of the type {media_type[:80]!r} are not allowed here (Settings.file_types: {types})"
    if size is not None and size > most:
        return f"a file holds at most {most:,} bytes (Settings.file_limit_bytes); this one has {size:,}"
    return "a file must not be empty" if size == 0 else None
