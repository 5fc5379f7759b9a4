"""The true type of a file, and the size of an image, by the file's first bytes."""

from __future__ import annotations

import re
from typing import Final

from turnwise.states.files import kind_of

HEAD_BYTES: Final = 256 * 1024
"""The number of bytes to read: a JPEG may have this much metadata before its size."""
_TYPES: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"....ftyp(?:hei[cxms]|mif1|msf1)", re.DOTALL), "image/heic"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "image/avif"),
    (re.compile(rb"II\*\0|MM\0\*"), "image/tiff"),
    (re.compile(rb"%PDF-"), "application/pdf"),
    (re.compile(rb"PK\x03\x04"), "application/zip"),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html)", re.IGNORECASE), "text/html"),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<svg", re.IGNORECASE), "image/svg+xml"),
)
_CLAIMS: Final = {
    **{one: one for one in ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")},
    "image/jpg": "image/jpeg",
}
"""The media types whose content providers check, with their standard names."""
_JPEG_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE: Final = frozenset({0x01, 0xFF, *range(0xD0, 0xD9)})

_PAGES: Final = re.compile(rb"(\d{1,10})\s{1,4}\d{1,5}\s{1,4}obj\b|/Type\s{0,4}/Page(?![A-Za-z])")
_MARKER: Final = 0xFF
_PNG, _GIF, _WEBP = 24, 10, 30
"""The number of bytes up to the end of the image's size."""


def fault_of_head(media_type: str, head: bytes, most_pixels: int | None) -> str | None:
    """Return what is wrong with a file, and what would be right, by its first bytes; `None` if nothing is.

    Args:
        media_type: the media type that the file is given with.
        head: the first bytes, up to `HEAD_BYTES`.
        most_pixels: the limit of each side of an image; `None` for no limit.
    """
    claimed, true = _CLAIMS.get(kind_of(media_type)), type_of(head)
    if claimed is None:
        return None
    if true is not None and true != claimed:
        return (
            f"the file is said to be {media_type[:80]!r}, but its first bytes are those of {true!r}; give its true type"
        )
    size = pixels_of(head)
    if size is None or most_pixels is None or 0 < min(size) <= max(size) <= most_pixels:
        return None
    limit = f"a picture has from 1 to {most_pixels:,} pixels on each side (Settings.picture_limit_pixels)"
    return f"{limit}; this one has {size[0]:,} x {size[1]:,}"


def type_of(head: bytes) -> str | None:
    """Return the media type by the first bytes of a file; `None` if they match no known type."""
    return next((media_type for beginning, media_type in _TYPES if beginning.match(head)), None)


def pixels_of(head: bytes) -> tuple[int, int] | None:
    """Return the width and height of an image in pixels; `None` if its first bytes do not have them."""
    match type_of(head):
        case "image/png" if head[12:16] == b"IHDR" and len(head) >= _PNG:
            return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
        case "image/gif" if len(head) >= _GIF:
            return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
        case "image/webp" if len(head) >= _WEBP:
            return _pixels_of_webp(head)
        case "image/jpeg":
            return _pixels_of_jpeg(head)
    return None


def _pixels_of_webp(head: bytes) -> tuple[int, int] | None:
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8 ":
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _pixels_of_jpeg(head: bytes) -> tuple[int, int] | None:
    """Follow the segments of a JPEG to the one with the size."""
    place = 2
    while place + 9 <= len(head) and head[place] == _MARKER:
        marker = head[place + 1]
        if marker in _JPEG_SIZES:
            return int.from_bytes(head[place + 7 : place + 9]), int.from_bytes(head[place + 5 : place + 7])
        if marker in _JPEG_ALONE:
            place += 1 if marker == _MARKER else 2
        else:
            place += 2 + max(int.from_bytes(head[place + 2 : place + 4]), 2)
    return None


def pages_of(pdf: bytes) -> int | None:
    """Return the number of pages of a PDF; `None` if its page objects are compressed."""
    pages, number = set[bytes](), b""
    for found in _PAGES.finditer(pdf):
        if found[1]:
            number = found[1]
        else:
            pages.add(number)  # an edited file may have a page twice, under the same number
    return len(pages) or None
