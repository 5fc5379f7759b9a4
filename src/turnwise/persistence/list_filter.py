"""What lists of chats may ask of profiles, beside what has an index."""

from __future__ import annotations

import string
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from turnwise.states.facts import Profile
from turnwise.states.names import DEFAULT_AGENT

_FOLDED: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_MISSING: Final = object()


class ListFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on the profiles of chats; `None` sets none."""

    agent: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None

    def fits(self, profile: Profile) -> bool:
        title = (profile.title or "").translate(_FOLDED)
        entries = (self.metadata or {}).items()
        return (
            self.agent in (None, profile.agent)
            and (self.title is None or self.title.translate(_FOLDED) in title)
            and all(profile.metadata.get(name, _MISSING) == value for name, value in entries)
            and (self.created_after is None or profile.created_at >= self.created_after)
            and (self.created_before is None or profile.created_at < self.created_before)
        )

    @property
    def texts(self) -> list[str]:
        """What the JSON of every profile that fits contains: a database looks for it without reading the JSON."""
        texts = [f'"agent":{_json(self.agent)}'] if self.agent not in (None, DEFAULT_AGENT) else []
        return texts + [
            f"{_json(name)}:{_json(value)}" for name, value in (self.metadata or {}).items() if _is_plain(value)
        ]

    @property
    def words(self) -> str | None:
        """What it contains in letters of either case."""
        return None if self.title is None else _json(self.title)[1:-1]

    @property
    def earliest(self) -> str | None:
        """With which second the JSON, which begins with the time of creation, begins at the earliest."""
        return None if self.created_after is None else _second(self.created_after)

    @property
    def latest(self) -> str | None:
        return None if self.created_before is None else _second(self.created_before)


def _is_plain(value: object) -> bool:
    """Whether equal values have the same JSON: numbers have several."""
    return value is None or isinstance(value, str | bool)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _second(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
