"""Marks: messages that a repair inserts where it put a message aside, or found none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from turnwise.persistence.stored_chat import is_count
from turnwise.states.messages import Message, TextPart
from turnwise.states.names import Audience

MARK: Final = "[This message could not be read. A repair has put it aside.]"


def is_mark(said: Message) -> bool:
    """Return whether a message is a mark."""
    return said.synthetic and said.text == MARK


def mark_for(row: Mapping[str, Any], at: datetime) -> Message | None:
    """Return the mark for a message that was put aside; `None` for one without a place.

    A tool result needs its content: what stands for it is what stands for a missing message.
    """
    if not is_count(row["position"]):
        return None
    return mark_at(row["position"], at) if row["role"] == "tool" else _mark(row, at)


def mark_at(position: int, at: datetime) -> Message:
    """Return the mark for a missing message: the user sees it, the model does not."""
    return _mark({"position": position, "id": None, "role": "system", "turn": 0, "step": 0, "audience": "user"}, at)


def _mark(row: Mapping[str, Any], at: datetime) -> Message:
    position, role, audience = row["position"], row["role"], row["audience"]
    return Message(
        id=row["id"] if isinstance(row["id"], str) else f"unreadable-{position}",
        role=role if role in ("system", "assistant") else "user",
        parts=(TextPart(text=MARK),),
        turn=row["turn"] if is_count(row["turn"]) else 0,
        step=row["step"] if is_count(row["step"]) else 0,
        created_at=at,
        position=position,
        audience=Audience(audience) if audience in set(Audience) else Audience.everyone,
        synthetic=True,
    )
