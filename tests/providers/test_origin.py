"""Whose data a part carries: it goes back to who made it, and to where."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from turnwise.providers.pydantic_ai.origin import Origin
from turnwise.states.messages import TextPart

HERE = Origin("openai", "https://one.example")
OWN = {"provider": "openai", "endpoint": "https://one.example"}
OTHER = {"provider": "stranger", "endpoint": "https://two.example", "id": "i", "details": {"key": "k"}}


@pytest.mark.parametrize(
    ("provider", "item_id", "details", "kept"),
    [
        (None, "i", {"key": "k"}, None),
        ("openai", None, None, OWN),
        ("openai", None, {}, OWN),
        ("openai", "i", None, OWN | {"id": "i"}),
        ("openai", "i", {"key": "k"}, OWN | {"id": "i", "details": {"key": "k"}}),
        (
            "openai",
            None,
            {"at": datetime(2026, 1, 1, tzinfo=UTC)},
            OWN | {"details": {"at": "2026-01-01T00:00:00Z"}},
        ),
    ],
    ids=str,
)
def test_what_the_provider_said_of_a_part_is_kept_as_json(
    provider: str | None, item_id: str | None, details: Any, kept: dict[str, Any] | None
) -> None:
    assert HERE.metadata(provider, item_id, details) == kept


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        (None, {}),
        (OTHER, {}),
        (OWN, {"provider_name": "openai", "id": None, "provider_details": None}),
        (
            OWN | {"id": "i", "details": {"key": "k"}},
            {"provider_name": "openai", "id": "i", "provider_details": {"key": "k"}},
        ),
    ],
    ids=str,
)
def test_only_its_own_data_goes_back_to_a_provider(metadata: dict[str, Any] | None, data: dict[str, Any]) -> None:
    assert HERE.data(TextPart(text="a", metadata=metadata)) == data


def test_a_reply_was_made_where_the_first_of_its_own_parts_was() -> None:
    """Ids mean nothing at another address of the same provider."""
    elsewhere = OWN | {"endpoint": "https://three.example"}
    parts = [TextPart(text="a", metadata=metadata) for metadata in (None, OTHER, elsewhere, OWN)]
    assert HERE.address(parts) == {"provider_name": "openai", "provider_url": "https://three.example"}
    assert HERE.address(parts[:2]) == {}
