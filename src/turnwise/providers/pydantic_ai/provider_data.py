"""The provider's own data about parts, which goes back to it alone.

It is stored in the metadata of each part. A compaction by the provider is stored as reasoning whose metadata names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic_ai import messages as theirs
from pydantic_core import to_jsonable_python

from turnwise.providers.protocol import ModelPart
from turnwise.states.messages import Part, ReasoningPart
from turnwise.states.values.values import Value

_COMPACTION: Final = "compaction"


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


def stored_compaction(part: theirs.CompactionPart, origin: ProviderOrigin) -> ModelPart:
    """Convert a compaction to the reasoning that turnwise stores; its signature ends the part."""
    provider = part.provider_name or origin.provider
    metadata = origin.metadata(provider, part.id, part.provider_details) or {}
    sealed = (part.provider_details or {}).get("encrypted_content")
    signature = sealed if isinstance(sealed, str) and sealed else _COMPACTION
    metadata["kind"] = _COMPACTION
    return ModelPart("reasoning_delta", text=part.content or "", signature=signature, metadata=metadata)


def is_compaction(part: Part) -> bool:
    """Whether a stored part is a compaction by the provider."""
    return isinstance(part, ReasoningPart) and (part.metadata or {}).get("kind") == _COMPACTION
