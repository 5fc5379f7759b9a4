"""Ids of chats: new ones, and those derived from a client's own id."""

from __future__ import annotations

import hashlib
import json
import secrets
import time

from turnwise.states.values.plain import Misfit, text


def new_chat_id() -> str:
    """Return an id that no chat has. Ids rise with time, so that chats of one hour are near each other on disk."""
    return f"c{time.time_ns() // 1_000_000:011x}{secrets.token_hex(7)}"


def chat_id_for(owner: str | None, client_id: str) -> str:
    """Return the chat id for an owner's `client_id`. Different owners get different ids."""
    return f"c{hashlib.sha256(json.dumps([owner, client_id]).encode()).hexdigest()[:25]}"


def may_be_one(name: object) -> bool:
    """Whether a chat may have that id of a model's: a database may refuse to look up malformed text."""
    try:
        return isinstance(name, str) and text(name) == name
    except Misfit:
        return False
