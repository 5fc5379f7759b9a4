"""Events: what a subscriber of a chat sees, in one sequence.

They are numbered without gaps when they are stored. The parts of replies that are over may be pruned later, those of an
erased message at once; their numbers are then skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import msgspec
from msgspec.structs import replace
from pydantic import Field

from turnwise.states.calls import ToolCall
from turnwise.states.messages import Message, QueuedMessage
from turnwise.states.names import CallStatus, ChatState, CompactionPhase, Executor, QueueChange, StopReason, snake_case
from turnwise.states.usage import Usage
from turnwise.states.values.values import Checked, Json, Time, Value


class ErrorInfo(Value, metaclass=Checked, frozen=True, kw_only=True):
    """An error: a text for users that says what happened and what to do, and fields for programs."""

    kind: str
    """The kind of a `ModelError`, or an `OwnErrorKind`: `tool`, `deps`, `internal`, `unreadable`, `repaired`.

    Open set: custom models may add kinds.
    """
    message: str
    """A text for users: what happened and what to do."""
    step: int | None = None
    """The step that failed."""
    attempt: int | None = None
    """The attempt that failed."""
    retryable: bool = False
    """Whether another attempt may help."""
    status: int | None = None
    """The provider's HTTP status, where there was one."""
    message_id: str | None = None
    """The message of the chat that the provider refused, where it named one."""
    detail: str | None = None
    """The words of the provider, or of the code that failed: for operators. Only `Engine.explain` has it."""

    @property
    def public(self) -> ErrorInfo:
        """The error as everybody may see it."""
        return self if self.detail is None else replace(self, detail=None)


class PartDelta(Value, metaclass=Checked, frozen=True, kw_only=True):
    """A piece of a part of a reply under way. A complete part has `complete` set and no `delta`."""

    type: Literal["text", "reasoning", "tool_call", "tool_result", "source", "file"]
    """The kind of part."""
    delta: str | None = None
    """Text, reasoning, or a fragment of a tool call's arguments."""
    call_id: str | None = None
    """The call's id, of a tool call or its result."""
    name: str | None = None
    """The name of the tool or file."""
    executor: Executor | None = None
    """Who runs the call."""
    complete: dict[str, Any] | None = None
    """The finished part, as it will be in the message."""


class _Event(
    Value, frozen=True, kw_only=True, tag_field="kind", tag=lambda name: snake_case(name.removesuffix("Event"))
):
    fleeting: ClassVar[bool] = False
    """Whether it shows work under way: it may be pruned or erased, so no record of the audit log covers it."""
    seq: int = 0
    """The place in the chat's sequence, from 1, given when the event is stored."""
    chat_id: str = ""
    """The chat's id."""
    at: Time | None = None
    """When the event was stored."""


class StatusEvent(_Event, frozen=True, kw_only=True):
    """The chat's state changed."""

    kind: ClassVar[Literal["status"]] = "status"
    state: ChatState
    """The new state."""
    previous: ChatState | None = None
    """The state before; `None` for a new chat."""


class MessageEvent(_Event, frozen=True, kw_only=True):
    """A message entered the history, or replaced the message of the same id (an erasure)."""

    kind: ClassVar[Literal["message"]] = "message"
    message: Message
    """The message."""


class PartEvent(_Event, frozen=True, kw_only=True):
    """A piece of the reply that the model is giving."""

    kind: ClassVar[Literal["part"]] = "part"
    fleeting: ClassVar[bool] = True
    step: int
    """The step."""
    attempt: int
    """The attempt."""
    index: int
    """The place of the part in the reply."""
    part: PartDelta
    """What is added to the part."""


class ToolResultEvent(_Event, frozen=True, kw_only=True):
    """A call of the current step has its result."""

    kind: ClassVar[Literal["tool_result"]] = "tool_result"
    step: int
    """The step."""
    call_id: str
    """The call's id."""
    index: int
    """The place of the call in its step."""
    name: str
    """The tool's name."""
    output: Json
    """The result, as JSON."""
    is_error: bool
    """Whether the call failed."""
    outcome: CallStatus
    """How the call ended."""


class ToolProgressEvent(_Event, frozen=True, kw_only=True):
    """A running tool reported progress."""

    kind: ClassVar[Literal["tool_progress"]] = "tool_progress"
    fleeting: ClassVar[bool] = True
    step: int
    """The step."""
    call_id: str
    """The call's id."""
    progress: Json
    """What the tool reported, as JSON."""


class QueueEvent(_Event, frozen=True, kw_only=True):
    """The queue changed. It says what changed, and not what else waits: `fold` keeps the queue."""

    kind: ClassVar[Literal["queue"]] = "queue"
    change: QueueChange
    """`added`, `edited` and `moved` are about one message. Those `taken` enter the history, those `deleted` never will.
    `kept` follows a repair: messages that are not among `ids` are lost."""
    ids: tuple[str, ...]
    """The messages that the change is about."""
    message: QueuedMessage | None = None
    """The message that was added, or what an edited one says now."""
    before: str | None = None
    """The message before which an added or moved one stands; `None` for the last place."""

    def changed(self, queue: Sequence[QueuedMessage]) -> tuple[QueuedMessage, ...]:
        """Return the queue after the change. Ids that do not wait in `queue` are passed over."""
        named = {queued.id: queued for queued in queue if queued.id in self.ids}
        if self.message is not None:
            named[self.message.id] = self.message
        match self.change:
            case "edited":
                return tuple(named.get(queued.id, queued) for queued in queue)
            case "kept":
                return tuple(named[name] for name in self.ids if name in named)
        left = [queued for queued in queue if queued.id not in named]
        if self.change in {"added", "moved"}:
            place = next((place for place, queued in enumerate(left) if queued.id == self.before), len(left))
            left[place:place] = named.values()
        return tuple(left)


class ActionRequiredEvent(_Event, frozen=True, kw_only=True):
    """All open calls, which the client has to answer; published again if an erasure blanks some of them."""

    kind: ClassVar[Literal["action_required"]] = "action_required"
    calls: tuple[ToolCall, ...]
    """The open calls."""


class RetryEvent(_Event, frozen=True, kw_only=True):
    """An attempt failed and another will be made."""

    kind: ClassVar[Literal["retry"]] = "retry"
    step: int
    """The step."""
    attempt: int
    """The attempt that failed."""
    delay: float
    """Seconds until the next attempt."""
    error: ErrorInfo
    """Why the attempt failed."""
    retry_at: Time
    """When the next attempt begins."""
    next_model: str | None = None
    """The name of the model that is asked next, if it is another one: the agent's next."""


class AttemptDiscardedEvent(_Event, frozen=True, kw_only=True):
    """The parts of this attempt are taken back."""

    kind: ClassVar[Literal["attempt_discarded"]] = "attempt_discarded"
    step: int
    """The step."""
    attempt: int
    """The attempt whose parts are removed."""
    reason: str
    """Why they are removed."""


class CompactionEvent(_Event, frozen=True, kw_only=True):
    """A compaction started, got its summary, was stored, finished, failed, was declined or proved unproductive."""

    kind: ClassVar[Literal["compaction"]] = "compaction"
    phase: CompactionPhase
    """What has happened."""
    step: int
    """The step before which the history is compacted."""
    percent: float | None = None
    """Context tokens as a share of the limit, in percent."""
    context_tokens: int | None = None
    """The tokens of the context before."""
    context_limit: int | None = None
    """The model's limit of the context, in tokens."""
    estimated: bool = False
    """True when the tokens are turnwise's estimate and not the provider's figure."""
    folded: int | None = None
    """How many messages the summary stands for."""
    carried: int | None = None
    """How many messages were carried past the boundary verbatim."""
    messages_after: int | None = None
    """How many messages the model sees from now on."""
    tokens_after: int | None = None
    """About how many tokens these have: an estimate, the next step brings the provider's figure."""
    error: ErrorInfo | None = None
    """Why it failed."""


class HistoryResetEvent(_Event, frozen=True, kw_only=True):
    """The history was cut: the message `first_removed` and all after it are gone.

    `seq` 0 marks an unstored full reset: the database lost commits this subscriber had seen. Discard all local state;
    events restart at `seq` 1.
    """

    kind: ClassVar[Literal["history_reset"]] = "history_reset"
    first_removed: str
    """The id of the first message that is gone."""

    @property
    def begins_anew(self) -> bool:
        """Whether everything before it is void."""
        return self.seq == 0


class TurnFinishedEvent(_Event, frozen=True, kw_only=True):
    """A turn ended. `provider_reason` is the provider's own word for it."""

    kind: ClassVar[Literal["turn_finished"]] = "turn_finished"
    turn: int
    """The number of the turn."""
    stop_reason: StopReason
    """Why the turn ended."""
    provider_reason: str | None = None
    """The same in the provider's word."""
    usage: Usage
    """What the turn used."""


class ErrorEvent(_Event, frozen=True, kw_only=True):
    """The chat cannot continue without the user; published again if the text of the error is erased."""

    kind: ClassVar[Literal["error"]] = "error"
    error: ErrorInfo
    """Why the turn failed."""


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

EVENTS: Final = {event.kind: event for event in get_args(get_args(Event)[0])}
"""The class of each kind of event. A declaration is complete with its class and its place in `Event`."""
FLEETING: Final = frozenset(kind for kind, event in EVENTS.items() if event.fleeting)
"""The kinds of events that show work under way."""


def size_of_event(event: Event) -> int:
    """Return about how many bytes an event holds: what limits the memory that waits for slow readers."""
    match event:
        case StatusEvent():
            return 0
        case PartEvent() if event.part.complete is None:
            return len(event.part.delta or "")
        case _:
            return len(msgspec.json.encode(event))
