"""Asides: what is stored beside an audit record and not in it, because it can be erased."""

from __future__ import annotations

import json
from typing import NamedTuple

import msgspec

from turnwise.states.decide import Decision
from turnwise.states.digests import derived
from turnwise.states.writes import NoteReason


class Aside(NamedTuple):
    """What is stored beside a record: the salts of its digests, and the reason, which can be erased."""

    events: str = ""
    """The salt of the digest of the commit's events."""
    reason: str | None = None
    """Why somebody interrupted, in their words."""
    salt: str = ""
    """The salt of the reason's digest."""

    def dump(self) -> str:
        """Return the aside as JSON."""
        return msgspec.json.encode(self._asdict()).decode()

    @classmethod
    def load(cls, text: str | None) -> Aside:
        """Return the aside that JSON holds; an empty one for an old record without an aside.

        Raises:
            ValueError: the JSON is not an aside.
        """
        if text is None:
            return cls()
        if not isinstance(text, str):
            raise ValueError("a text belongs here")  # noqa: TRY004 - what is stored is wrong
        found = json.loads(text)
        if not isinstance(found, dict) or set(found) != set(cls._fields):
            raise ValueError(f"an object with the fields {', '.join(cls._fields)} belongs here")
        aside = cls(**found)
        if not isinstance(aside.events, str) or not isinstance(aside.reason, str | None) or type(aside.salt) is not str:
            raise ValueError(f"texts belong into the fields {', '.join(cls._fields)}")
        return aside


def aside_of(decision: Decision) -> Aside:
    """Return the aside of a decision's record."""
    noted = next((write for write in decision.writes if isinstance(write, NoteReason)), None)
    reason = (None, "") if noted is None else (noted.reason, noted.salt)
    return Aside(derived(decision.salt, decision.facts.version, "events"), *reason)
