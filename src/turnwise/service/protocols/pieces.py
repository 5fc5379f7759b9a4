"""Pieces: what a front end is shown of one turn, in order. Every part is begun before it grows, and ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from turnwise.states.calls import ToolCall
from turnwise.states.messages import FilePart, Message, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus, Executor

Kind = Literal["text", "reasoning"]


class StepBegun(msgspec.Struct, frozen=True):
    """The model begins a reply."""

    step: int


class WordsBegun(msgspec.Struct, frozen=True):
    """A part of text or reasoning begins. The reply has one part under an index."""

    step: int
    index: int
    kind: Kind


class WordsAdded(msgspec.Struct, frozen=True):
    """The part goes on."""

    step: int
    index: int
    kind: Kind
    text: str


class WordsEnded(msgspec.Struct, frozen=True):
    """The part is over."""

    step: int
    index: int
    kind: Kind


class CallBegun(msgspec.Struct, frozen=True):
    """A tool call begins."""

    step: int
    call_id: str
    name: str
    executor: Executor | None


class CallAdded(msgspec.Struct, frozen=True):
    """A fragment of the JSON text of the call's arguments."""

    call_id: str
    text: str


class CallMade(msgspec.Struct, frozen=True):
    """The call is complete. What was shown of its arguments may differ from what they are: they are repaired."""

    call: ToolCallPart
    arguments_text: str
    """The fragments that were shown, joined."""


class CallDropped(msgspec.Struct, frozen=True):
    """The call will never be complete: the reply was cut short."""

    call_id: str
    name: str


class CallWithdrawn(msgspec.Struct, frozen=True):
    """The call was shown complete, and is no part of the stored reply."""

    call_id: str


class WholeShown(msgspec.Struct, frozen=True):
    """A part that comes in one piece."""

    step: int
    index: int
    part: FilePart | SourcePart


class ResultGiven(msgspec.Struct, frozen=True):
    """A call has its result."""

    message_id: str
    result: ToolResultPart
    by_provider: bool


class TakenBack(msgspec.Struct, frozen=True):
    """What was shown of the step is discarded; the step may begin again."""

    step: int
    attempt: int
    reason: str
    open_words: tuple[WordsEnded, ...]
    """The parts that were begun and not ended."""
    open_calls: tuple[CallDropped, ...]
    """The calls that were begun and are not complete."""
    made_calls: tuple[str, ...]
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
    StepBegun
    | WordsBegun
    | WordsAdded
    | WordsEnded
    | CallBegun
    | CallAdded
    | CallMade
    | CallDropped
    | CallWithdrawn
    | WholeShown
    | ResultGiven
    | TakenBack
    | StepEnded
    | ActionRequired
)


def has_failed(result: ToolResultPart) -> bool:
    """Return whether what it holds is not what the tool gives: a sentence about an interrupted call is no output."""
    return result.is_error or result.outcome is not CallStatus.succeeded
