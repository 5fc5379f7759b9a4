"""Finds the forks and the children of a chat by the parent and the ancestors that their profiles name."""

from __future__ import annotations

import json
from collections.abc import Iterable

from turnwise.persistence.rows import PROFILES
from turnwise.states.errors import ChatUnreadable


def naming(parent: str) -> str:
    """Return a text that is in the body of every profile with this parent or ancestor, and in few others."""
    return json.dumps(parent, ensure_ascii=False)


def forks_among(parent: str, profiles: Iterable[tuple[str, str]]) -> list[str]:
    """Return the forks of `parent` and the forks of those, and whose profile cannot be read: it may be one, too."""
    return [chat_id for chat_id, body in profiles if _is_fork(parent, chat_id, body)]


def children_among(parent: str, profiles: Iterable[tuple[str, str]]) -> list[str]:
    """Return the chats that name `parent` as theirs and are no forks of it."""
    children: list[str] = []
    for chat_id, body in profiles:
        try:
            profile = PROFILES.load(body, chat_id)
        except ChatUnreadable:
            continue  # among the forks
        if profile.parent == parent and profile.forked_from is None:
            children.append(chat_id)
    return children


def _is_fork(parent: str, chat_id: str, body: str) -> bool:
    try:
        profile = PROFILES.load(body, chat_id)
    except ChatUnreadable:
        return True
    return profile.forked_from is not None and parent in (profile.parent, *profile.ancestors)
