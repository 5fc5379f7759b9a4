"""Views: the history as a user, a model or an auditor sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from turnwise.states.messages import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    in_call_order,
    without_metadata,
)
from turnwise.states.names import Audience

View = Literal["user", "model", "raw"]
ERASED = "[erased]"


def user_view(messages: Sequence[Message]) -> list[Message]:
    """Return what a client may see: nothing meant for the model alone, no provider's metadata."""
    seen = [without_metadata(message) for message in messages if message.audience is not Audience.model]
    return in_call_order(seen)


def raw_view(messages: Sequence[Message]) -> list[Message]:
    """Return what users, models and tools really said: no row that turnwise wrote."""
    return in_call_order([without_metadata(message) for message in messages if not message.synthetic])


def erased(message: Message) -> Message:
    """Return the message with its payload blanked; calls and results keep their pairing."""
    parts = tuple(blank for part in message.parts if (blank := _blank(part)) is not None)
    return message.model_copy(update={"parts": parts or (TextPart(text=ERASED),), "erased": True})


def _blank(part: Part) -> Part | None:
    match part:
        case TextPart():
            return TextPart(text=ERASED)
        case ToolCallPart():
            return part.model_copy(update={"arguments": {}, "metadata": None})
        case ToolResultPart():
            return part.model_copy(update={"output": ERASED, "attachments": (), "metadata": None})
        case ReasoningPart() | FilePart():
            return None
        case _:
            return part.model_copy(update={"metadata": None})
