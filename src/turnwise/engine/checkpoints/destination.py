"""A destination of checkpoints: where they are published."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from turnwise.persistence.audit.checkpoints import Head
from turnwise.persistence.audit.signing import SigningKey
from turnwise.states.errors import TurnwiseError


class NotPublished(TurnwiseError):
    """Checkpoints could not be published now. Nothing is lost: they are published later."""


class Destination(Protocol):
    """Takes checkpoints. Every method raises `NotPublished` if that does not go now."""

    name: str
    """What logs call it; it holds no secret."""

    async def check(self) -> None:
        """Raise a `SettingsError` if nothing can ever be published there."""

    async def published_versions(self, chat_ids: Collection[str]) -> Mapping[str, int]:
        """Return up to which version chats were published, as far as that is known here."""

    async def publish(self, heads: Sequence[Head], *, at: datetime, key: SigningKey) -> None:
        """Sign and publish checkpoints, in this order. Called again with the same ones after it has failed."""
