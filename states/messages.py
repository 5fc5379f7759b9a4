"""Messages and their parts: turnwise's own, versioned form of what users, models and tools said."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turnwise.states.errors import InvalidContent
from turnwise.states.names import Audience, BoundaryReason, CallStatus, Executor

FORMAT: Final = 1
"""The version of the stored form of a message. Older versions stay readable."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)

    metadata: dict[str, Any] | None = None
    """The provider's own data about the part: stored, sent back to it, never shown to a client."""


_AnyPart = TypeVar("_AnyPart", bound=_Part)


class TextPart(_Part):
    """What was said."""

    type: Literal["text"] = "text"
    text: str


class ReasoningPart(_Part):
    """What the model thought. `signature` goes back to the provider byte-identical."""

    type: Literal["reasoning"] = "reasoning"
    text: str = ""
    signature: str | None = None


class ToolCallPart(_Part):
    """A tool call the model asked for."""

    type: Literal["tool_call"] = "tool_call"
    call_id: str
    name: str
    arguments: dict[str, Any]
    executor: Executor = Executor.local


class FilePart(_Part):
    """A file: inline (`data`, base64) or by address (`url`)."""

    type: Literal["file"] = "file"
    media_type: str
    data: str | None = None
    url: str | None = None
    name: str | None = None


class ToolResultPart(_Part):
    """The one result of a call. `outcome` tells how the call ended."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str
    output: JsonValue
    is_error: bool = False
    outcome: CallStatus = CallStatus.succeeded
    attachments: tuple[FilePart, ...] = ()


class SourcePart(_Part):
    """A source the model cited. Stored and shown, never sent back to the model."""

    type: Literal["source"] = "source"
    url: str
    title: str | None = None


class MarkerPart(_Part):
    """A line in the user's transcript that says the context was compacted or cleared here."""

    type: Literal["marker"] = "marker"
    reason: BoundaryReason
    text: str
    carried: tuple[int, ...] = ()
    """Positions of earlier messages that stay in the model's view."""


Part = Annotated[
    TextPart | ReasoningPart | ToolCallPart | ToolResultPart | SourcePart | FilePart | MarkerPart,
    Field(discriminator="type"),
]
Role = Literal["system", "user", "assistant", "tool"]
Content = str | Sequence[TextPart | FilePart]
"""What a user may send: text, or a sequence of text and file parts."""


class Message(BaseModel):
    """One entry of a chat's history. A `tool` message holds exactly one result."""

    model_config = ConfigDict(frozen=True)

    id: str
    role: Role
    parts: tuple[Part, ...]
    turn: int
    step: int
    created_at: datetime
    position: int = 0
    """The place in the history, rising with every stored message; 0 for a message that is not stored."""
    audience: Audience = Audience.everyone
    call_index: int | None = None
    """For a tool message, the place of its call among the calls of the step."""
    partial: bool = False
    """True for the part of a reply that was there when the user said stop."""
    synthetic: bool = False
    """True when turnwise wrote the message: a result for an interrupted call, a summary, a marker."""
    erased: bool = False

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls the message asks for, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def result(self) -> ToolResultPart | None:
        """The result that a `tool` message holds."""
        part = self.parts[0] if self.role == "tool" and self.parts else None
        return part if isinstance(part, ToolResultPart) else None


class QueuedMessage(BaseModel):
    """A user message that was accepted while the chat was busy and waits for its turn."""

    model_config = ConfigDict(frozen=True)

    id: str
    """The id the message will keep in the history."""
    parts: tuple[Part, ...]
    accepted_at: datetime

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


def parts_of(content: Content) -> tuple[TextPart | FilePart, ...]:
    """Return `content` as parts, without empty text.

    Raises:
        InvalidContent: nothing is left to say, or a part is neither text nor a file.
    """
    given: Sequence[TextPart | FilePart] = [TextPart(text=content)] if isinstance(content, str) else content
    if not isinstance(given, Sequence) or any(not isinstance(part, TextPart | FilePart) for part in given):
        raise InvalidContent("the content of a message must be text, or a sequence of TextPart and FilePart")
    parts = tuple(part for part in given if not (isinstance(part, TextPart) and not part.text.strip()))
    if not parts:
        raise InvalidContent("the content of a message must hold text or a file; it was empty")
    return parts


def without_metadata(message: Message) -> Message:
    """Return the message as a client may see it: the provider's metadata taken out of every part."""
    if all(part.metadata is None for part in message.parts):
        return message
    return message.model_copy(update={"parts": tuple(shown(part) for part in message.parts)})


def shown(part: _AnyPart) -> _AnyPart:
    """Return the part without the provider's metadata."""
    return part if part.metadata is None else part.model_copy(update={"metadata": None})


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Return the messages as they stand, but neighbouring results of one step by call index.

    Results are stored as they finish; every view and every request shows them in the order of their calls.
    """
    ordered: list[Message] = []
    for _, run in itertools.groupby(messages, key=lambda message: (message.step, message.role == "tool")):
        ordered.extend(sorted(run, key=lambda message: message.call_index or 0))
    return ordered
