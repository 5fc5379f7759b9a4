"""Origin: which provider made a part, so that its own data about the part goes back to it and to nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from turnwise.states.messages import Part


@dataclass(frozen=True, slots=True)
class Origin:
    """A provider at an address, as it is named in the metadata of the parts it made."""

    provider: str
    endpoint: str

    def metadata(self, provider: str | None, item_id: str | None, details: Any) -> dict[str, Any] | None:
        """Return what is to be kept of a part the provider made; `None` if it said nothing about it."""
        if provider is None:
            return None
        kept = {"provider": provider, "endpoint": self.endpoint}
        if item_id is not None:
            kept["id"] = item_id
        return kept | {"details": to_jsonable_python(details)} if details else kept

    def made(self, part: Part) -> bool:
        """Whether this provider made the part and said something about it."""
        known = part.metadata or {}
        return known.get("provider") == self.provider and known.get("endpoint") == self.endpoint

    def data(self, part: Part) -> dict[str, Any]:
        """Return the provider's own data about a part, in pydantic-ai's words; nothing for a stranger's part."""
        if not self.made(part) or part.metadata is None:
            return {}
        return {
            "provider_name": self.provider,
            "id": part.metadata.get("id"),
            "provider_details": part.metadata.get("details"),
        }
