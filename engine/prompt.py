"""Prompts: what a model is asked, built from copies of the history."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.states.messages import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    in_call_order,
)
from turnwise.states.names import Audience


def sendable(messages: Sequence[Message]) -> list[Message]:
    """Return the history as a strict provider takes it.

    Sources are not sent. Reasoning that an interrupt left without its signature is not, nor is anything empty.
    """
    sent: list[Message] = []
    for message in messages:
        parts = message.parts
        if not all(_is_sent(part, partial=message.partial) for part in parts):
            parts = tuple(part for part in parts if _is_sent(part, partial=message.partial))
        if parts:
            sent.append(message if parts is message.parts else message.model_copy(update={"parts": parts}))
    return in_call_order(sent)


def continued(messages: list[Message], continue_prompt: str) -> list[Message]:
    """Return the messages, with a transient request to go on if they end in an answer.

    It is a partial one, or one that a strategy kept and after which a compaction lets the turn go on.
    """
    if not messages or messages[-1].role != "assistant":
        return messages
    return [*messages, transient("user", continue_prompt, messages[-1])]


def transient(role: str, text: str, like: Message) -> Message:
    """Return a message for one request only: it has no position and is never stored."""
    return Message(
        id=f"{role}-transient",
        role="user" if role == "user" else "system",
        parts=(TextPart(text=text),),
        turn=like.turn,
        step=like.step,
        created_at=like.created_at,
        audience=Audience.model,
        synthetic=True,
    )


def unanswered(messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the positions of the user messages that no reply follows."""
    positions: list[int] = []
    for message in reversed(messages):
        if message.role != "user" or message.synthetic:
            break
        positions.append(message.position)
    return tuple(reversed(positions))


def _is_sent(part: Part, *, partial: bool) -> bool:
    match part:
        case SourcePart():
            return False
        case TextPart():
            return bool(part.text.strip())
        case ReasoningPart():
            return part.signature is not None or (bool(part.text.strip()) and not partial)
        case _:
            return True


def length_of(part: Part) -> int:
    """Return about how many characters a part puts into a prompt."""
    match part:
        case TextPart() | ReasoningPart():
            return len(part.text)
        case FilePart():
            return len(part.data or part.url or "") // 16
        case _:
            return len(part.model_dump_json())
