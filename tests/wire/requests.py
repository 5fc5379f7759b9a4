"""Handmade requests in turnwise's types."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from msgspec.json import decode, encode

from turnwise.providers.protocol import ModelReply, ModelRequest
from turnwise.states.messages import Message, Part, Role, TextPart, ToolResultPart

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_positions = count(1)


def message(role: Role, *parts: Part | str, **fields: Any) -> Message:
    """Return a stored message; strings are text."""
    position = next(_positions)
    reported = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(
        id=f"m{position}", role=role, parts=reported, turn=1, step=1, created_at=_EPOCH, position=position, **fields
    )


def reply_of(reply: ModelReply) -> Message:
    """Return a model's reply as it is stored: through JSON."""
    return decode(encode(message("assistant", *reply.parts)), type=Message)


def result_of(call_id: str, name: str, output: Any, **fields: Any) -> Message:
    return message("tool", ToolResultPart(call_id=call_id, name=name, output=output, **fields))


def asked(*messages: Message | str, tools: Sequence[Any] = (), **fields: Any) -> ModelRequest:
    """Return a request; strings are user messages."""
    history = [message("user", content) if isinstance(content, str) else content for content in messages]
    return ModelRequest(
        purpose=fields.pop("purpose", "step"), chat_id="c1", messages=history, tools=tuple(tools), **fields
    )
