"""Sends files that a provider takes; replaces any other by a note to the model, so that the chat can go on."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any, Final

from pydantic_ai import messages as theirs
from pydantic_ai.models import Model

from turnwise.providers.pydantic_ai.classes import classes_of
from turnwise.states.files import is_address, kind_of
from turnwise.states.messages import FilePart, fault_of_part

_URLS: Final = {"image": theirs.ImageUrl, "audio": theirs.AudioUrl, "video": theirs.VideoUrl}
_PICTURES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_SOUNDS: Final = frozenset({"audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3"})

_NOT_TAKEN: Final = "this model does not take files of that type"
_LARGEST_PICTURE: Final = 5 * 1024 * 1024 * 3 // 4
"""Bytes of a picture that Anthropic takes: 5 MiB of base64."""

Takes = Callable[[str], bool]
"""Whether a provider takes a media type."""


def taken_by(model: Model) -> Takes:
    """Return what a model's provider takes: of those that are not known here, everything."""
    classes = classes_of(model)
    if "AnthropicModel" in classes:
        return (_PICTURES | {"application/pdf", "text/plain"}).__contains__
    if not classes & {"OpenAIResponsesModel", "OpenAIChatModel"}:
        return lambda _: True
    heard_and_seen = _PICTURES | _SOUNDS if "OpenAIChatModel" in classes else _PICTURES
    return lambda kind: kind in heard_and_seen or not kind.startswith(("audio/", "video/", "image/"))


def refusal_of_file(model: Model, media_type: str, size: int) -> str | None:
    """Return why a model's provider does not take a file of that type and size in bytes."""
    kind = kind_of(media_type)
    if not taken_by(model)(kind):
        return _NOT_TAKEN
    if "AnthropicModel" in classes_of(model) and kind in _PICTURES and size > _LARGEST_PICTURE:
        return f"this model takes pictures of at most {_LARGEST_PICTURE:,} bytes, and this one has {size:,}"
    return None


def sendable_file(part: FilePart, takes: Takes) -> theirs.UserContent:
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
    if fault is not None:
        return f"[The file {part.name or 'without a name'} ({part.media_type}) is left out here: {fault}.]"
    if part.data is not None:
        return theirs.BinaryContent(b64decode(part.data), media_type=kind)
    url_class: Any = _URLS.get(kind.partition("/")[0], theirs.DocumentUrl)
    url: theirs.MultiModalContent = url_class(part.url or "", media_type=kind)
    return url


def _is_text(data: str) -> bool:
    try:
        b64decode(data).decode()
    except UnicodeDecodeError:
        return False
    return True
