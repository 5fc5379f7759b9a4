"""Pieces of one turn for a front end, in order. Every part starts before it grows, and ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from turnwise.states.calls import ToolCall
from turnwise.states.messages import FilePart, Message, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus, Executor

Kind = Literal["text", "reasoning"]


class StepStarted(msgspec.Struct, frozen=True):
    """The model starts a reply."""

    step: int


class TextStarted(msgspec.Struct, frozen=True):
    """A part of text or reasoning starts. The reply has one part under an index."""

    step: int
    index: int
    kind: Kind


class TextAdded(msgspec.Struct, frozen=True):
    """The part goes on."""

    step: int
    index: int
    kind: Kind
    text: str


class TextEnded(msgspec.Struct, frozen=True):
    """The part is over."""

    step: int
    index: int
    kind: Kind


class ToolCallStarted(msgspec.Struct, frozen=True):
    """A tool call starts."""

    step: int
    call_id: str
    name: str
    executor: Executor | None


class ArgumentsAdded(msgspec.Struct, frozen=True):
    """A fragment of the JSON text of the call's arguments."""

    call_id: str
    text: str


class CallCompleted(msgspec.Struct, frozen=True):
    """The call is complete. Its arguments may have been repaired: then they differ from the fragments."""

    call: ToolCallPart
    arguments_text: str
    """The fragments, joined."""


class CallAborted(msgspec.Struct, frozen=True):
    """The call will never be complete: the reply was cut short."""

    call_id: str
    name: str


class CallRemoved(msgspec.Struct, frozen=True):
    """The call was complete, and the stored reply does not hold it."""

    call_id: str


class WholePart(msgspec.Struct, frozen=True):
    """A part that comes in one piece."""

    step: int
    index: int
    part: FilePart | SourcePart


class CallResult(msgspec.Struct, frozen=True):
    """A call has its result."""

    message_id: str
    result: ToolResultPart
    by_provider: bool


class StepReset(msgspec.Struct, frozen=True):
    """The step so far is discarded; it may start again."""

    step: int
    attempt: int
    reason: str
    open_texts: tuple[TextEnded, ...]
    """The parts that have not ended."""
    open_calls: tuple[CallAborted, ...]
    """The calls that are not complete."""
    complete_calls: tuple[str, ...]
    """The ids of complete calls."""


class StepEnded(msgspec.Struct, frozen=True):
    """The reply is over. `message` is the stored one; `None` if nothing is stored."""

    step: int
    message: Message | None


class ActionRequired(msgspec.Struct, frozen=True):
    """The client has to answer these calls."""

    calls: tuple[ToolCall, ...]


SUBAGENT_SEPARATOR: Final = "/"
"""Between the chat of a subagent and the id of a call of it, in the id that the page of its parent uses."""


def operators_calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls that an owner may not answer: those of each chat with a call that needs an operator's approval.

    The open calls of a chat are answered together.
    """
    by_chat: dict[str, list[ToolCall]] = {}
    for call in calls:
        by_chat.setdefault(call.call_id.rpartition(SUBAGENT_SEPARATOR)[0], []).append(call)
    needs_operator = (any(one.approval == "asked" and one.approver != "owner" for one in of) for of in by_chat.values())
    return tuple(call for of, needs in zip(by_chat.values(), needs_operator, strict=True) if needs for call in of)


Piece = (
    StepStarted
    | TextStarted
    | TextAdded
    | TextEnded
    | ToolCallStarted
    | ArgumentsAdded
    | CallCompleted
    | CallAborted
    | CallRemoved
    | WholePart
    | CallResult
    | StepReset
    | StepEnded
    | ActionRequired
)


def has_failed(result: ToolResultPart) -> bool:
    """Whether the result holds an error, or a note about an interrupted call, and no output of the tool."""
    return result.is_error or result.outcome is not CallStatus.succeeded
