"""Whose data a part carries: it goes back to who made it, and to where."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.providers.pydantic_ai.origin import Origin
from turnwise.states.messages import TextPart

HERE = Origin("openai", "https://one.example")
OWN = {"provider": "openai", "endpoint": "https://one.example"}
OTHER = {"provider": "stranger", "endpoint": "https://two.example", "id": "i", "details": {"key": "k"}}


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        (OTHER, {}),
        (OWN, {"provider_name": "openai", "id": None, "provider_details": None}),
        (
            OWN | {"id": "i", "details": {"key": "k"}},
            {"provider_name": "openai", "id": "i", "provider_details": {"key": "k"}},
        ),
    ],
    ids=str,
)
def test_provider_gets_back_only_its_own_data(metadata: dict[str, Any] | None, data: dict[str, Any]) -> None:
    assert HERE.data(TextPart(text="a", metadata=metadata)) == data


def test_reply_endpoint_is_that_of_its_first_own_part() -> None:
    """Ids mean nothing at another address of the same provider."""
    elsewhere = OWN | {"endpoint": "https://three.example"}
    parts = [TextPart(text="a", metadata=metadata) for metadata in (None, OTHER, elsewhere, OWN)]
    assert HERE.address(parts) == {"provider_name": "openai", "provider_url": "https://three.example"}
    assert HERE.address(parts[:2]) == {}
