"""Ids of chats: one that no chat has, and the one that a client's own id stands for."""

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
    """Return the id of the chat that an owner's `client_id` makes: no other owner's makes the same."""
    return f"c{hashlib.sha256(json.dumps([owner, client_id]).encode()).hexdigest()[:25]}"


def may_be_one(name: object) -> bool:
    """Whether a chat may have that id, which a model says: a database may refuse to look for any text at all."""
    try:
        return isinstance(name, str) and text(name) == name
    except Misfit:
        return False
