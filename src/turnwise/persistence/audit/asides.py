"""Asides: what is stored beside an audit record and not in it, because it can be erased."""

from __future__ import annotations

import json
from typing import NamedTuple

import msgspec

from turnwise.states.decide import Decision
from turnwise.states.values.digests import derived
from turnwise.states.writes import NoteReason


class Aside(NamedTuple):
    """What is stored beside a record: the salts of its digests, and the reason, which can be erased."""

    events: str = ""
    """The salt of the digest of the commit's events."""
    reason: str | None = None
    """Why somebody interrupted, in their words."""
    salt: str = ""
    """The salt of the reason's digest."""

    def dump(self) -> str | None:
        """Return the aside as JSON; `None` if there is nothing in it."""
        return msgspec.json.encode(self._asdict()).decode() if any(self) else None

    @classmethod
    def load(cls, text: str | None) -> Aside:
        """Return the aside that JSON holds; an empty one for `None`.

        Raises:
            ValueError: the JSON is not an aside.
        """
        if text is None:
            return cls()
        if not isinstance(text, str):
            raise ValueError("a text belongs here")  # noqa: TRY004 - what is stored is wrong
        fields = json.loads(text)
        if not isinstance(fields, dict) or set(fields) != set(cls._fields):
            raise ValueError(f"an object with the fields {', '.join(cls._fields)} belongs here")
        aside = cls(**fields)
        if not isinstance(aside.events, str) or not isinstance(aside.reason, str | None) or type(aside.salt) is not str:
            raise ValueError(f"texts belong into the fields {', '.join(cls._fields)}")
        return aside


def aside_of(decision: Decision, *, tells: bool) -> Aside:
    """Return the aside of a decision's record; `tells` says whether the record covers events of its commit."""
    noted = next((write for write in decision.writes if type(write) is NoteReason), None)
    reason = (None, "") if noted is None else (noted.reason, noted.salt)
    return Aside(salt_of_events(decision) if tells else "", *reason)


def salt_of_events(decision: Decision) -> str:
    """Return the salt for the digest of the events of the commit that ends with a decision."""
    return derived(decision.salt, decision.facts.version, "events")
