"""Events: what a follower of a chat sees, in one sequence.

They are numbered without gaps when they are stored. The parts of replies that are over may be pruned later, those of an
erased message at once; their numbers are then skipped.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue, TypeAdapter

from turnwise.states.calls import ToolCall
from turnwise.states.messages import Message, QueuedMessage
from turnwise.states.names import CallStatus, ChatState, CompactionPhase, Executor, StopReason
from turnwise.states.usage import Usage


class ErrorInfo(BaseModel, frozen=True):
    """An error, as text for users and fields for programs."""

    kind: str
    """The kind of a `ModelError`, or `tool`, `internal`, `repaired`."""
    message: str
    step: int | None = None
    attempt: int | None = None
    retryable: bool = False
    status: int | None = None
    """The provider's HTTP status, where there was one."""


class PartDelta(BaseModel, frozen=True):
    """A piece of a part of a reply under way. A complete part has `complete` set and no `delta`."""

    type: Literal["text", "reasoning", "tool_call", "tool_result", "source", "file"]
    delta: str | None = None
    """Text, reasoning, or a fragment of a tool call's arguments."""
    signature: str | None = None
    call_id: str | None = None
    name: str | None = None
    executor: Executor | None = None
    complete: dict[str, Any] | None = None
    """The finished part, as it will be in the message."""


class _Event(BaseModel, frozen=True):
    seq: int = 0
    """The place in the chat's sequence, from 1, given when the event is stored."""
    chat_id: str = ""
    at: datetime | None = None


class StatusEvent(_Event):
    """The chat's state changed."""

    kind: Literal["status"] = "status"
    state: ChatState
    previous: ChatState | None = None


class MessageEvent(_Event):
    """A message entered the history, or replaced the message of the same id (an erasure)."""

    kind: Literal["message"] = "message"
    message: Message


class PartEvent(_Event):
    """A piece of the reply that the model is giving."""

    kind: Literal["part"] = "part"
    step: int
    attempt: int
    index: int
    """The place of the part in the reply."""
    part: PartDelta


class ToolResultEvent(_Event):
    """A call of the current step has its result."""

    kind: Literal["tool_result"] = "tool_result"
    step: int
    call_id: str
    index: int
    name: str
    output: JsonValue
    is_error: bool
    outcome: CallStatus


class ToolProgressEvent(_Event):
    """A running tool reported progress."""

    kind: Literal["tool_progress"] = "tool_progress"
    step: int
    call_id: str
    progress: JsonValue


class QueueEvent(_Event):
    """The queue changed; this is all of it, first message first."""

    kind: Literal["queue"] = "queue"
    queue: tuple[QueuedMessage, ...]


class ActionRequiredEvent(_Event):
    """The client has to answer these open calls."""

    kind: Literal["action_required"] = "action_required"
    calls: tuple[ToolCall, ...]


class RetryEvent(_Event):
    """An attempt failed and another will be made."""

    kind: Literal["retry"] = "retry"
    step: int
    attempt: int
    """The attempt that failed."""
    delay: float
    """Seconds until the next attempt."""
    error: ErrorInfo
    retry_at: datetime


class AttemptDiscardedEvent(_Event):
    """The parts of this attempt are taken back."""

    kind: Literal["attempt_discarded"] = "attempt_discarded"
    step: int
    attempt: int
    reason: str


class CompactionEvent(_Event):
    """A compaction started, got its summary, was stored, finished, failed or proved unproductive."""

    kind: Literal["compaction"] = "compaction"
    phase: CompactionPhase
    step: int
    percent: float | None = None
    """Context tokens as a share of the limit, in percent."""
    context_tokens: int | None = None
    context_limit: int | None = None
    estimated: bool = False
    """True when the tokens are turnwise's estimate and not the provider's figure."""
    folded: int | None = None
    """How many messages the summary stands for."""
    carried: int | None = None
    """How many messages were carried past the boundary verbatim."""
    error: ErrorInfo | None = None


class HistoryResetEvent(_Event):
    """The history was cut: the message `first_removed` and all after it are gone."""

    kind: Literal["history_reset"] = "history_reset"
    first_removed: str


class TurnFinishedEvent(_Event):
    """A turn ended. `provider_reason` is the provider's own word for it."""

    kind: Literal["turn_finished"] = "turn_finished"
    turn: int
    stop_reason: StopReason
    provider_reason: str | None = None
    usage: Usage


class ErrorEvent(_Event):
    """The chat cannot continue without the user."""

    kind: Literal["error"] = "error"
    error: ErrorInfo


Event = Annotated[
    StatusEvent
    | MessageEvent
    | PartEvent
    | ToolResultEvent
    | ToolProgressEvent
    | QueueEvent
    | ActionRequiredEvent
    | RetryEvent
    | AttemptDiscardedEvent
    | CompactionEvent
    | HistoryResetEvent
    | TurnFinishedEvent
    | ErrorEvent,
    Field(discriminator="kind"),
]

event_adapter: TypeAdapter[Event] = TypeAdapter(Event)
"""Reads and writes any event as JSON."""
