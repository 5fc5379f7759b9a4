"""The provider's own data about parts, which goes back to it alone.

It is stored in the metadata of each part. pydantic-ai's compactions and speech, which have no deltas, are stored as
reasoning, text and files; their metadata holds the kind and the other fields.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic_ai import messages as theirs
from pydantic_core import to_jsonable_python

from turnwise.providers.protocol import ModelPart
from turnwise.states.messages import FilePart, Part, ReasoningPart, TextPart
from turnwise.states.values.values import Value

WholePart = theirs.CompactionPart | theirs.SpeechPart
_COMPACTION: Final = "compaction"
_SPEECH: Final = "speech"
_OF_SPEECH: Final = ("interrupted_at_ms", "timestamps")


class ProviderOrigin(Value, frozen=True):
    """A provider and its address, as they stand in the metadata of the parts it made."""

    provider: str
    endpoint: str

    def metadata(self, provider: str | None, item_id: str | None, details: Any) -> dict[str, Any] | None:
        """Return the metadata to store with a part that the provider made; `None` if it reported none."""
        if provider is None:
            return None
        metadata = {"provider": provider, "endpoint": self.endpoint}
        if item_id is not None:
            metadata["id"] = item_id
        return metadata | {"details": to_jsonable_python(details)} if details else metadata

    def data(self, part: Part) -> dict[str, Any]:
        """Return the provider's own data about a part, in pydantic-ai's words; nothing for a part of another."""
        metadata = part.metadata or {}
        if metadata.get("provider") != self.provider:
            return {}
        return {"provider_name": self.provider, "id": metadata.get("id"), "provider_details": metadata.get("details")}

    def address(self, parts: Iterable[Part]) -> dict[str, Any]:
        """Return where the provider made the parts: ids mean nothing anywhere else; nothing for another's parts."""
        for part in parts:
            if part.metadata is not None and part.metadata.get("provider") == self.provider:
                return {"provider_name": self.provider, "provider_url": part.metadata["endpoint"]}
        return {}


def parts_of(part: WholePart, origin: ProviderOrigin) -> Iterator[ModelPart]:
    """Convert a compaction or speech to the parts that turnwise stores."""
    provider = part.provider_name or origin.provider
    metadata = {**(origin.metadata(provider, part.id, part.provider_details) or {})}
    if isinstance(part, theirs.CompactionPart):
        sealed = (part.provider_details or {}).get("encrypted_content")
        signature = sealed if isinstance(sealed, str) and sealed else _COMPACTION  # any signature ends the part
        yield ModelPart(
            "reasoning_delta", text=part.content or "", signature=signature, metadata={**metadata, "kind": _COMPACTION}
        )
        return
    spoken = {name: value for name in _OF_SPEECH if (value := getattr(part, name)) is not None}
    metadata |= {"kind": _SPEECH, _SPEECH: to_jsonable_python(spoken)}
    if part.transcript:
        yield ModelPart("text_delta", text=part.transcript, metadata=metadata)
    if part.audio is not None:
        data = b64encode(part.audio.data).decode()
        yield ModelPart("file", media_type=part.audio.media_type, data=data, metadata=metadata)


def whole_part(part: Part, own: dict[str, Any], before: theirs.ModelResponsePart | None) -> WholePart | None:
    """Convert a stored part back to a compaction or speech; `None` if it is neither.

    Args:
        part: the stored part.
        own: the provider's data of the part.
        before: the previous part of the request. If it is speech without audio, it gets the audio of this part.
    """
    metadata = part.metadata or {}
    if not own or metadata.get("kind") not in (_COMPACTION, _SPEECH):
        return None
    match part:
        case ReasoningPart():
            return theirs.CompactionPart(part.text or None, **own)
        case TextPart():
            return _speech(metadata, own, transcript=part.text)
        case FilePart(data=str(data)):
            audio = theirs.BinaryContent(b64decode(data), media_type=part.media_type)
            if isinstance(before, theirs.SpeechPart) and before.audio is None:
                before.audio = audio
                return before
            return _speech(metadata, own, audio=audio)
        case _:
            return None


def _speech(metadata: dict[str, Any], own: dict[str, Any], **content: Any) -> theirs.SpeechPart:
    spoken = metadata.get(_SPEECH) or {}
    timestamps = spoken.get("timestamps")
    return theirs.SpeechPart(
        speaker="assistant",
        interrupted_at_ms=spoken.get("interrupted_at_ms"),
        timestamps=None if timestamps is None else [theirs.SpeechTimestamp(**one) for one in timestamps],
        **content,
        **own,
    )
