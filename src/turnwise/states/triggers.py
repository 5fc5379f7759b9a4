"""What can happen to a chat, typed: a class for each trigger, with its arguments and who may fire it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from turnwise.states.arguments import Cut, Erasing, Inheritance, Partial, StepReply, SubagentAnswer, Summary
from turnwise.states.budgets import Funds
from turnwise.states.calls import CallOutcome, ClientTool, ToolResult
from turnwise.states.errors import WrongCall
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Limits, Profile
from turnwise.states.left_out import LeftOut
from turnwise.states.messages import ModelFailure, Part, ScheduledMessage, Wakeup
from turnwise.states.names import SYSTEM, Party, WhenBusy, WhenDue, snake_case
from turnwise.states.usage import Usage
from turnwise.states.values.values import Value

_Value = TypeVar("_Value")


class TransitionContext(Value, frozen=True, kw_only=True):
    """The arguments that every trigger has."""

    now: datetime
    """The database's time."""
    limits: Limits
    """The settings in force."""
    salt: str = ""
    """Random, new for every commit: salts the digests of erasable content. Empty: they have no salt."""
    actor: str = SYSTEM
    """Who acts: `worker:` and its name for a worker, which alone fires what is for the lease holder."""
    reason: str | None = None
    funds: Funds | None = None
    """The budgets of the chat and its owner; `None` if there are none."""


class Trigger(Value, frozen=True, kw_only=True):
    """A request or an event that can change a chat, with its arguments. Names of events are in the past tense."""

    name: ClassVar[str]
    """The name in records, errors and pictures: that of the class, in small letters."""
    party: ClassVar[Party]
    """Who may fire it."""
    while_archived: ClassVar[bool]
    """Whether an archived chat accepts it."""
    own_write: ClassVar[str | None]
    """The kind of the write that it makes exactly once, and only triggers that declare it make at all."""

    if TYPE_CHECKING:  # of a struct without fields msgspec's types say that it takes any argument

        def __init__(self) -> None: ...


class Held(Trigger, frozen=True, kw_only=True):
    """A trigger that only the lease holder may fire, or the party that ends the lease."""

    token: int | None
    """The lease's fencing token; `None` if no worker holds the chat."""


TRIGGERS: Final[dict[str, type[Trigger]]] = {}
"""Every trigger by its name, in the order of declaration."""

_Kind = TypeVar("_Kind", bound=Trigger)


def _declared(
    party: Party, *, while_archived: bool = False, own_write: str | None = None
) -> Callable[[type[_Kind]], type[_Kind]]:
    """Return what makes a class that of a trigger."""

    def declared(kind: type[_Kind]) -> type[_Kind]:
        kind.name = snake_case(kind.__name__)
        kind.party, kind.while_archived, kind.own_write = party, while_archived, own_write
        TRIGGERS[kind.name] = kind
        return kind

    return declared


# From outside


@_declared("client", own_write="profile")
class Create(Trigger, frozen=True, kw_only=True):
    """A chat is created: a fork with what it takes over from its parent, another perhaps with an imported history."""

    profile: Profile
    inheritance: Inheritance | None = None


@_declared("client")
class SendMessage(Trigger, frozen=True, kw_only=True):
    """The user sends a message."""

    parts: tuple[Part, ...]
    when_busy: WhenBusy = "queue"
    client_id: str | None = None
    content_digest: str | None = None
    """Needed with a `client_id`: a repeated message must have the same digest."""
    trace: str | None = None
    """The observers' trace of the turn; see `TurnFacts.trace`."""
    asker: str | None = None
    """The chat that sends its own subagent a task or a message; `None` for the client."""
    wakeup: ClassVar[Wakeup | None] = None


@_declared("client")
class SubmitToolResults(Trigger, frozen=True, kw_only=True):
    """The client answers its calls, or subagents one that was delegated."""

    results: tuple[ToolResult, ...]
    subagents: tuple[SubagentAnswer, ...] = ()
    """The subagents that answer; none for the client."""
    edited: Mapping[str, dict[str, Any]] = {}
    """By call, the checked arguments that the client gives it instead of the model's."""


@_declared("client")
class Interrupt(Trigger, frozen=True, kw_only=True):
    """The user interrupts the chat."""


@_declared("client")
class Resume(Trigger, frozen=True, kw_only=True):
    """The user lets a chat continue that was interrupted or failed."""

    trace: str | None = None


@_declared("client", own_write="cut")
class EditMessage(Trigger, frozen=True, kw_only=True):
    """The user replaces a message, and everything after it is cut."""

    cut: Cut
    parts: tuple[Part, ...]
    client_id: str | None = None
    content_digest: str | None = None
    trace: str | None = None
    usage: Usage | None = None
    """What an open attempt has used, as far as that is known where the chat is edited."""


@_declared("client")
class RequestCompaction(Trigger, frozen=True, kw_only=True):
    """The user wants the history folded now."""


@_declared("client", own_write="boundary:clear")
class ClearContext(Trigger, frozen=True, kw_only=True):
    """The user clears the model's context."""


@_declared("client")
class EditQueued(Trigger, frozen=True, kw_only=True):
    """The user changes a queued message."""

    queued_id: str
    parts: tuple[Part, ...]


@_declared("client")
class DeleteQueued(Trigger, frozen=True, kw_only=True):
    """The user deletes a queued message."""

    queued_id: str


@_declared("client")
class PromoteQueued(Trigger, frozen=True, kw_only=True):
    """The user makes a queued message the next turn at once."""

    queued_id: str


@_declared("client", own_write="schedule")
class Schedule(Trigger, frozen=True, kw_only=True):
    """The user has the clock send a message, instead of the scheduled one of its id if there is one."""

    message: ScheduledMessage
    """Without `by`, which is the actor."""


@_declared("client")
class Unschedule(Trigger, frozen=True, kw_only=True):
    """The user takes a scheduled message back."""

    schedule_id: str


# From the lease holder


@_declared("lease holder")
class Claimed(Trigger, frozen=True, kw_only=True):
    """A worker takes the chat, and begins an attempt unless a retry has to wait."""

    worker: str


@_declared("lease holder")
class AttemptStarted(Held, frozen=True, kw_only=True):
    """A model call begins that did not begin with the step: a retry, above all."""


@_declared("lease holder")
class AttemptDiscarded(Held, frozen=True, kw_only=True):
    """A model call failed: another is made, or a compaction makes room for a prompt that was too long."""

    error: ErrorInfo
    delay: float | None = None
    """Seconds until the next attempt may start. This and `retry_at` are needed unless the step waits for room."""
    retry_at: datetime | None = None
    paid: bool = False
    """Whether the model had started to answer."""
    timed_out: bool = False
    """Whether a time limit ended the attempt."""
    from_first: bool = False
    """Whether all of the agent's models have failed: the next attempt asks the first one again."""
    rejected_as: str | None = None
    """The provider's word for the reply, if it rejected it."""
    usage: Usage | None = None
    left_out: tuple[LeftOut, ...] = ()
    """What the provider has refused, and the next attempt does not send."""


@_declared("lease holder", own_write="fallback")
class FallbackStarted(Held, frozen=True, kw_only=True):
    """A model call failed, and the agent's next model is asked at once: by an attempt that the budgets allow."""

    failure: ModelFailure
    error: ErrorInfo
    next_model: str
    """The name of the model that is asked now."""
    paid: bool = False
    """Whether the model had started to answer."""
    usage: Usage | None = None


@_declared("lease holder")
class StepFinished(Held, frozen=True, kw_only=True):
    """The model has replied."""

    reply: StepReply
    starts: tuple[str, ...] = ()
    """The local calls that start with it: as many of the first ones as the toolbox runs at once."""


NOT_DONE: Final = "its tool says that it was not done"
"""The reason for which a call of any policy starts again after a crash."""


@_declared("lease holder", own_write="call:started")
class CallStarted(Held, frozen=True, kw_only=True):
    """A local call starts that did not start with the reply."""

    call_id: str
    not_done: bool = False
    """Whether its tool reported, after a crash, that the call took no effect: then it starts under any policy."""


@_declared("lease holder")
class CallFinished(Held, frozen=True, kw_only=True):
    """A local call has ended."""

    outcome: CallOutcome


@_declared("lease holder")
class ToolsFinished(Held, frozen=True, kw_only=True):
    """Every local call of the step has ended, and the attempt at what comes next begins."""


@_declared("lease holder", own_write="boundary:compaction")
class Compacted(Held, frozen=True, kw_only=True):
    """The history is folded."""

    summary: Summary
    usage: Usage | None = None
    """`None` if no model was called."""


@_declared("lease holder")
class CompactionFailed(Held, frozen=True, kw_only=True):
    """The history was not folded."""

    error: ErrorInfo
    declined: bool = False
    """Whether nothing failed: there was nothing to fold, or the strategy wanted to fold nothing."""
    usage: Usage | None = None
    """`None` if no model was called."""


@_declared("lease holder")
class Settled(Held, frozen=True, kw_only=True):
    """The work that an interrupt stopped has ended."""

    partial: Partial | None = None


@_declared("lease holder")
class Released(Held, frozen=True, kw_only=True):
    """The holder gives the chat back."""

    usage: Usage | None = None
    """What an attempt at a summary has used, as far as that is known."""


@_declared("lease holder")
class Failed(Held, frozen=True, kw_only=True):
    """The chat cannot go on."""

    error: ErrorInfo
    partial: Partial | None = None
    takes_back: bool = False
    """Whether subscribers have to discard the shown parts of the reply: it could not be stored or read."""


# From the clock


@_declared("clock")
class LeaseExpired(Held, frozen=True, kw_only=True):
    """The holder did not renew its lease."""


@_declared("clock")
class DeadlinePassed(Trigger, frozen=True, kw_only=True):
    """The client did not answer in time."""


@_declared("clock", own_write="schedule:fired")
class ScheduleFired(Trigger, frozen=True, kw_only=True):
    """The time of a scheduled message has come. The actions that accept a message find in it what a client sends."""

    message: ScheduledMessage
    next_due: datetime | None = None
    """When the series goes on; `None` if that was the last time."""
    trace: ClassVar[str | None] = None
    asker: ClassVar[str | None] = None
    client_id: ClassVar[str | None] = None
    content_digest: ClassVar[str | None] = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.message.parts

    @property
    def when_busy(self) -> WhenDue:
        return self.message.when_busy

    @property
    def wakeup(self) -> Wakeup:
        return self.message.wakeup


@_declared("clock", while_archived=True)
class Repaired(Trigger, frozen=True, kw_only=True):
    """The chat broke an invariant or could not be read, and is brought to `error`."""

    error: ErrorInfo


# Administration


@_declared("administrator")
class Archived(Trigger, frozen=True, kw_only=True):
    """The chat is closed."""


@_declared("administrator", while_archived=True)
class Unarchived(Trigger, frozen=True, kw_only=True):
    """The chat is opened again."""


@_declared("administrator", own_write="profile")
class Renamed(Trigger, frozen=True, kw_only=True):
    """The chat gets another title, or turnwise notes what it took to ask for one."""

    title: str | None
    usage: Usage | None = None
    """What the model calls for the title used; `None` if no model was called."""
    final: bool = True
    """Whether turnwise makes no title for the chat from now on."""


@_declared("administrator", own_write="profile")
class MetadataChanged(Trigger, frozen=True, kw_only=True):
    """The chat gets other metadata."""

    metadata: dict[str, Any]


@_declared("administrator")
class MarkedRead(Trigger, frozen=True, kw_only=True):
    """The end of the last turn has been read."""


@_declared("administrator", own_write="profile")
class Configured(Trigger, frozen=True, kw_only=True):
    """Another agent answers from the next model call on, or the same one otherwise; see `Profile`."""

    agent: str
    model: str | None = None
    parameters: dict[str, Any] | None = None
    active_tools: tuple[str, ...] | None = None
    system: str | None = None
    client_tools: tuple[ClientTool, ...] | None = None
    """The client's tools from now on; `None` leaves them as they are."""


@_declared("administrator", while_archived=True)
class MessageErased(Trigger, frozen=True, kw_only=True):
    """Content of the chat is erased."""

    erasing: Erasing


@_declared("administrator", while_archived=True)
class Imported(Trigger, frozen=True, kw_only=True):
    """The chat came from another store. A lease that it was exported with expires in the same commit."""


def trigger_of(kind: type[Trigger], arguments: Mapping[str, Any]) -> tuple[Trigger, TransitionContext]:
    """Return a trigger and its circumstances, made from arguments by name.

    Raises:
        WrongCall: an argument is missing, or the trigger has none of that name.
    """
    own = {name: value for name, value in arguments.items() if name not in _AROUND}
    around = {name: value for name, value in arguments.items() if name in _AROUND}
    return _made(kind, kind.name, own), _made(TransitionContext, kind.name, around)


def _made(kind: type[_Value], trigger: str, arguments: Mapping[str, Any]) -> _Value:
    try:
        return kind(**arguments)
    except TypeError:
        parameters = inspect.signature(kind).parameters
    for name in arguments:
        if name not in parameters:
            raise WrongCall(name, f"{trigger} has no such argument; it has {', '.join((*parameters, *_AROUND))}")
    missing = next(name for name, one in parameters.items() if one.default is one.empty and name not in arguments)
    raise WrongCall(missing, f"{trigger} needs it")


_AROUND: Final = TransitionContext.__struct_fields__
