"""Pieces: what a front end is shown of one turn, in order. Every part is begun before it grows, and ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turnwise.states.calls import ToolCall
from turnwise.states.messages import FilePart, Message, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus, Executor

Kind = Literal["text", "reasoning"]


@dataclass(frozen=True, slots=True)
class StepBegun:
    """The model begins a reply."""

    step: int


@dataclass(frozen=True, slots=True)
class WordsBegun:
    """A part of text or reasoning begins. The reply has one part under an index."""

    step: int
    index: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class WordsAdded:
    """The part goes on."""

    step: int
    index: int
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class WordsEnded:
    """The part is over."""

    step: int
    index: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool call begins."""

    step: int
    call_id: str
    name: str
    executor: Executor | None


@dataclass(frozen=True, slots=True)
class CallAdded:
    """A fragment of the JSON text of the call's arguments."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class CallMade:
    """The call is complete. What was shown of its arguments may differ from what they are: they are repaired."""

    call: ToolCallPart
    arguments_text: str
    """The fragments that were shown, joined."""


@dataclass(frozen=True, slots=True)
class CallDropped:
    """The call will never be complete: the reply was cut short."""

    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallWithdrawn:
    """The call was shown complete, and is no part of what is kept of the reply."""

    call_id: str


@dataclass(frozen=True, slots=True)
class WholeShown:
    """A part that comes in one piece."""

    step: int
    index: int
    part: FilePart | SourcePart


@dataclass(frozen=True, slots=True)
class ResultGiven:
    """A call has its result."""

    message_id: str
    result: ToolResultPart
    by_provider: bool


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What was shown of the step is not kept; the step may begin again."""

    step: int
    attempt: int
    reason: str
    open_words: tuple[WordsEnded, ...]
    """The parts that were begun and not ended."""
    open_calls: tuple[CallDropped, ...]
    """The calls that were begun and are not complete."""
    made_calls: tuple[str, ...]
    """The ids of complete calls."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The reply is over. `message` is what is kept of it; `None` if that is nothing."""

    step: int
    message: Message | None


@dataclass(frozen=True, slots=True)
class ActionRequired:
    """The client has to answer these calls."""

    calls: tuple[ToolCall, ...]


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
