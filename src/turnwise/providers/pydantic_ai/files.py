"""Sends files that a provider takes; replaces any other by a note to the model, so that the chat can go on."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pydantic_ai import messages as theirs
from pydantic_ai.models import Model

from turnwise.providers.pydantic_ai.naming import classes_of
from turnwise.states.file_heads import HEAD_BYTES, fault_of_head, pages_of, pixels_of
from turnwise.states.files import is_address, kind_of
from turnwise.states.left_out import note_of_file
from turnwise.states.messages import FilePart, fault_of_part

_URLS: Final = {"image": theirs.ImageUrl, "audio": theirs.AudioUrl, "video": theirs.VideoUrl}
_PICTURES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_SOUNDS: Final = frozenset({"audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3"})

_NOT_TAKEN: Final = "this model does not take files of that type"
_LARGEST_PICTURE: Final = 5 * 1024 * 1024 * 3 // 4
"""Bytes of a picture that Anthropic takes: 5 MiB of base64."""

_USUAL_WINDOW: Final = 200_000
"""Tokens; models with a larger window take more pages."""


class FileLimits(NamedTuple):
    """What a provider takes of the content of a file; `None` where no limit is known."""

    pixels: int | None
    """Of a picture, on each side."""
    pages: int | None
    """Of a PDF."""


NO_LIMITS: Final = FileLimits(None, None)
Takes = Callable[[str], bool]
"""Whether a provider takes a media type."""


def taken_by(model: Model) -> Takes:
    """Return what a model's provider takes: of those that are not known here, everything."""
    classes = classes_of(model)
    if "AnthropicModel" in classes:
        return (_PICTURES | {"application/pdf", "text/plain"}).__contains__
    if not classes & {"OpenAIResponsesModel", "OpenAIChatModel"}:
        return lambda _: True
    media_taken = _PICTURES | _SOUNDS if "OpenAIChatModel" in classes else _PICTURES
    return lambda kind: kind in media_taken or not kind.startswith(("audio/", "video/", "image/"))


def refusal_of_file(model: Model, media_type: str, size: int) -> str | None:
    """Return why a model's provider does not take a file of that type and size in bytes."""
    kind = kind_of(media_type)
    if not taken_by(model)(kind):
        return _NOT_TAKEN
    if "AnthropicModel" in classes_of(model) and kind in _PICTURES and size > _LARGEST_PICTURE:
        return f"this model takes pictures of at most {_LARGEST_PICTURE:,} bytes, and this one has {size:,}"
    return None


def limits_of(model: Model) -> FileLimits:
    """Return what a model's provider takes of a file's content; of those that are not known here, everything."""
    classes = classes_of(model)
    if "AnthropicModel" in classes:
        is_large = (model.context_window or 0) > _USUAL_WINDOW
        return FileLimits(8000, 600 if is_large else 100)
    return FileLimits(None, 1000) if "GoogleModel" in classes else NO_LIMITS


def sendable_file(part: FilePart, takes: Takes, limits: FileLimits = NO_LIMITS) -> theirs.UserContent:
    """Return a file as pydantic-ai sends it, or a note in its place that says why it is left out.

    It is sent as what was asked for, in small letters and without parameters: providers compare media types as text.
    """
    kind = kind_of(part.media_type)
    fault = fault_of_part(part)
    if fault is None and part.url is not None and not is_address(part.url):
        fault = "its url is no address"
    if fault is None and not takes(kind):
        fault = _NOT_TAKEN
    if fault is None and kind == "text/plain" and part.data is not None and not _is_text(part.data):
        fault = "it is no UTF-8 text"
    content = b64decode(part.data) if fault is None and part.data is not None else None
    if content is not None:
        fault = fault_of_head(kind, content[:HEAD_BYTES], None) or _fault_of_size(kind, content, limits)
    if fault is not None:
        return note_of_file(part.name, part.media_type, fault)
    if content is not None:
        return theirs.BinaryContent(content, media_type=kind)
    url_class: Any = _URLS.get(kind.partition("/")[0], theirs.DocumentUrl)
    url: theirs.MultiModalContent = url_class(part.url or "", media_type=kind)
    return url


def _fault_of_size(kind: str, content: bytes, limits: FileLimits) -> str | None:
    most_pixels, most_pages = limits
    if kind in _PICTURES and most_pixels is not None:
        width, height = pixels_of(content[:HEAD_BYTES]) or (0, 0)
        if max(width, height) > most_pixels:
            return f"this model takes {most_pixels:,} pixels on a side at most, and this one has {width:,} x {height:,}"
    pages = pages_of(content) or 0 if kind == "application/pdf" and most_pages is not None else 0
    if most_pages is not None and pages > most_pages:
        return f"this model takes at most {most_pages:,} pages of a PDF, and this one has {pages:,}"
    return None


def _is_text(data: str) -> bool:
    try:
        b64decode(data).decode()
    except UnicodeDecodeError:
        return False
    return True
