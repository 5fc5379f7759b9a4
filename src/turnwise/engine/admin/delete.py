"""Deleting: which chats may be deleted."""

from __future__ import annotations

from datetime import datetime

from turnwise.persistence.stored_chat import PartialRead
from turnwise.states.errors import NotResting, VersionMismatch


def if_resting(if_version: int | None, rest: PartialRead, now: datetime) -> None:  # noqa: ARG001 - a permission's signature
    """Permit the deletion of a chat that rests, archived or not, or that cannot be read.

    Raises:
        NotResting: it works.
        VersionMismatch: it is not at the version that is asked for.
    """
    readable = not rest.issues and rest.facts.stored_state is None
    if if_version is not None and rest.facts.version != if_version:
        raise VersionMismatch(rest.facts.chat_id, if_version, rest.facts.version)
    if readable and not rest.facts.resting:
        raise NotResting(rest.facts.chat_id, rest.facts.state)
