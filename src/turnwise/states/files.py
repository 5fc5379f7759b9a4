"""Checks files, so that every stored file can be sent to a provider."""

from __future__ import annotations

import binascii
import re
from base64 import b64encode
from collections.abc import Collection
from typing import Any, Final, Protocol
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from turnwise.states.errors import InvalidContent
from turnwise.states.values.plain import shown, well_formed

_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][\w.+-]*/[A-Za-z0-9*][\w.+-]*(\s*;.*)?", re.ASCII)
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+", re.ASCII)
_SCHEMES: Final = ("https", "http", "gs", "s3")
"""Of addresses from which providers fetch files."""
_UNSEEN: Final = re.compile(r"[\x00-\x20]")
"""Characters that browsers ignore before and in a scheme."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class OnDisk(Protocol):
    """A path, such as `pathlib.Path`."""

    def __fspath__(self) -> str:
        """Return the path as text."""


def file_at(path: Any) -> tuple[str, str | None, bytes]:
    """Return a file's name, its media type as guessed from the name, and its content.

    The name is made well-formed. The only read of this package, for `FilePart.from_path`.

    Raises:
        InvalidContent: there is no such file, or it cannot be read.
    """
    place = path_text(path)
    if place is None:
        raise InvalidContent(f"path: must be a string or a path; it was {shown(path)}", argument="path")
    name = well_formed(place.replace("\\", "/").rpartition("/")[2])
    try:
        with open(place, "rb") as file:  # noqa: PTH123 - this floor knows no paths
            return name, guessed_type(place), file.read()
    except (OSError, ValueError) as error:
        raise InvalidContent(f"the file {name!r} cannot be read: {type(error).__name__}", argument="path") from error


def guessed_type(name: str) -> str | None:
    """Return the media type that the name of a file suggests."""
    from mimetypes import guess_type  # noqa: PLC0415 - takes long to import, and few chats have files

    return guess_type(name)[0]


def path_text(path: Any) -> str | None:
    """Return a path as text of Python's own class; `None` if it is neither text nor like `pathlib.Path`."""
    try:
        place = path if isinstance(path, str) else type(path).__fspath__(path)
    except Exception:  # noqa: BLE001 - user code
        return None
    return str.__str__(place) if isinstance(place, str) else None


def fault_of_file(
    media_type: str,
    data: str | None = None,
    url: str | None = None,
    *,
    blob: str | None = None,
    size: int | None = None,
) -> str | None:
    """Return what is wrong with a file and what would be right; `None` for a valid file."""
    if not _MEDIA_TYPE.fullmatch(media_type):
        return f"a file needs a media type such as 'image/png'; it was {media_type[:80]!r}"
    contents = [one for one in (data, url, blob) if one is not None]
    if len(contents) != 1:
        had = ("neither", "", "both", "all three")[len(contents)]
        return f"a file is given inline (data, base64), by address (url) or by reference (blob); it had {had}"
    if data is not None and not _is_base64(data):
        return "the data of a file must be base64 that is not empty; see FilePart.from_bytes"
    if url is not None and (not url or re.search(r"\s", url)):
        return f"the url of a file must be an address; it was {url[:80]!r}"
    if url is not None and has_unsafe_scheme(url):
        return f"the url of a file must be an address of {', '.join(_SCHEMES)}; it was {url[:80]!r}"
    return _fault_of_blob(blob, size)


def _fault_of_blob(blob: str | None, size: int | None) -> str | None:
    if blob is not None and not is_digest(blob):
        return f"the blob of a file must be a SHA-256, 64 digits from 0 to f; it was {blob[:80]!r}"
    if size is not None and (blob is None or size < 1):
        return "the size of a file is that of its blob, at least 1 byte; a file without a blob has none"
    return None


def fault_of_lines(lines: tuple[int, int] | None, media_type: str, url: str | None) -> str | None:
    """Return what is wrong with the lines of a file that are chosen for the model; `None` if they can be."""
    if lines is None:
        return None
    first, last = lines
    if not 1 <= first <= last:
        return f"the lines of a file must be the first and the last one, counted from 1; they were {first} and {last}"
    if not media_type.startswith("text/") or url is not None:
        return "only a text file (text/*) that is given inline (data) or by reference (blob) has lines to choose"
    return None


def is_digest(blob: str) -> bool:
    return _DIGEST.fullmatch(blob) is not None


def is_of_type(media_type: str, allowed: Collection[str]) -> bool:
    """Return whether a media type is one of those allowed, such as `image/png`, `image/*` or `*/*`."""
    kind = kind_of(media_type)
    family = kind.partition("/")[0]
    return not {kind, f"{family}/*", "*/*"}.isdisjoint(one.lower() for one in allowed)


def kind_of(media_type: str) -> str:
    """Return a media type as it is compared: in small letters, without parameters such as `charset=UTF-8`."""
    return media_type.partition(";")[0].strip().lower()


def is_type_pattern(given: str) -> bool:
    """Return whether this is a media type, or all of a family as `image/*`."""
    return given == "*/*" or _MEDIA_TYPE.fullmatch(given) is not None


def bytes_in(data: str) -> int:
    """Return how many bytes valid base64 stands for."""
    return len(data.rstrip("=")) * 3 // 4


def content_in(url: str) -> str | None:
    """Return the content that stands in a `data:` URL itself, as base64; `None` for any other address."""
    head, comma, content = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    return unquote(content) if head.lower().endswith(";base64") else b64encode(unquote_to_bytes(content)).decode()


def has_unsafe_scheme(url: str) -> bool:
    """Return whether a browser that opens the URL would run a script, read its own disk, or leave the web."""
    scheme, colon, _ = _UNSEEN.sub("", url).partition(":")
    return bool(colon) and not set(scheme) & set("/?#") and scheme.lower() not in _SCHEMES


def is_address(url: str) -> bool:
    """Return whether a URL says how the file can be fetched."""
    try:
        address = urlsplit(url)
        (address.hostname or "").encode("idna")
        has_port = address.port != 0  # raises for what is no port
    except ValueError:
        return False
    return has_port and _ADDRESS.fullmatch(url) is not None


def _is_base64(data: str) -> bool:
    try:
        return len(binascii.a2b_base64(data, strict_mode=True)) > 0
    except (ValueError, binascii.Error):
        return False
