"""Finds the forks and the children of a chat by the parent that their profiles name."""

from __future__ import annotations

import json
from collections.abc import Iterable

from turnwise.persistence.rows import PROFILES
from turnwise.states.errors import ChatUnreadable


def naming(parent: str) -> str:
    """Return a text that is in the body of every profile with this parent, and in few others."""
    return f'"parent":{json.dumps(parent, ensure_ascii=False)}'


def forks_among(parent: str, profiles: Iterable[tuple[str, str]]) -> list[str]:
    """Return the chats that are forks of `parent`, and those whose profile cannot be read: they may be forks, too."""
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
    return profile.parent == parent and profile.forked_from is not None
