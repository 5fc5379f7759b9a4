"""Which provider made a part, so that its own data about the part goes back to it alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_core import to_jsonable_python

from turnwise.states.messages import Part
from turnwise.states.values.values import Value


class ProviderOrigin(Value, frozen=True):
    """A provider and its address, as they stand in the metadata of the parts it made."""

    provider: str
    endpoint: str

    def metadata(self, provider: str | None, item_id: str | None, details: Any) -> dict[str, Any] | None:
        """Return what is to be kept of a part the provider made; `None` if it said nothing about it."""
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
