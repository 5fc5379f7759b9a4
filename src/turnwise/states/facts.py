"""The facts about a chat: all that guards may ask and actions may change, as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

from msgspec import field
from msgspec.structs import force_setattr, replace

from turnwise.states.calls import ClientTool, ToolCall
from turnwise.states.events import ErrorInfo
from turnwise.states.left_out import LeftOut
from turnwise.states.messages import ModelFailure, QueuedMessage, ScheduledMessage
from turnwise.states.names import (
    DEFAULT_AGENT,
    NEW,
    RESTING,
    UNKNOWN,
    ActionOf,
    AfterFinalStep,
    Awaited,
    ChatState,
    Need,
    Purpose,
    Stage,
    StopReason,
    Tail,
)
from turnwise.states.step_calls import NO_CALLS, StepCalls
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.values.digests import canonical
from turnwise.states.values.values import Counter, Time, Value

_T = TypeVar("_T")
_QUERIED: Final = "queried"
Queried = Annotated[_T, _QUERIED]
"""The type of a field of `Profile` by which chats are found: stores repeat it in a column of its name."""

MOST_LOST: Final = 25
"""How many workers one stage of a step may lose: what it does may be what kills them."""


class Lease(Value, frozen=True):
    """The right to run a chat's jobs."""

    worker: str
    token: int
    """The fencing token: rises with every claim of the chat, never used twice."""


class Profile(Value, frozen=True, kw_only=True):
    """The declarations of a chat: who answers and how, its client's tools, and its labels."""

    created_at: Time
    agent: str = DEFAULT_AGENT
    """The name of the agent that answers."""
    model: str | None = None
    """The name of the model that is asked instead of the agent's own."""
    parameters: Mapping[str, Any] | None = None
    """Parameters of model calls: each stands for the agent's own of that name."""
    active_tools: tuple[str, ...] | None = None
    """The tools that are offered instead of the agent's active ones, by the names that `Settings.active_tools` uses."""
    system: str | None = None
    """The system prompt, instead of the agent's."""
    client_tools: tuple[ClientTool, ...] = ()
    owner: Queried[str | None] = None
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    forked_from: str | None = None
    """For a fork: the parent's version and head hash, as `version:hash`."""
    ancestors: tuple[str, ...] = ()
    """For a fork of a fork: the chats above its parent whose messages it may have, too, the nearest first."""
    imported: int = 0
    """How many imported messages the chat began with."""
    parent_call: str | None = None
    """For a subagent: the id of the parent's call that it answers."""
    parent_version: str | None = None
    """For a subagent: the parent's version and head hash when it was made, as `version:hash`."""
    detached: bool = False
    """For a subagent: whether it works on if its parent waits for it no longer."""
    depth: Counter = 0
    """For a subagent: how many chats stand above it."""

    @property
    def queried(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in QUERIED}


QUERIED: Final = {
    name: get_args(hint)[0]
    for name, hint in get_type_hints(Profile, include_extras=True).items()
    if _QUERIED in getattr(hint, "__metadata__", ())
}
"""The types of the fields of `Profile` by which chats are found, by name."""


class TurnFacts(Value, frozen=True):
    """The turn under way, or the last one."""

    number: Counter = 0
    steps: Counter = 0
    """Model steps started in this turn; compactions don't count."""
    first_step: int = 0
    after: int = 0
    """The position in the history after which the turn's messages stand."""
    started_at: Time | None = None
    waited: float = 0.0
    """Seconds for which it waited since then, for a worker to begin its first step or for the client."""
    reentries: Counter = 0
    """How often a compaction reopened the turn after its final step."""
    compactions: Counter = 0
    """Compactions that ended in this turn, committed or failed."""
    compacts_no_more: bool = False
    """A compaction in this turn proved unproductive."""
    ended_by: StopReason | None = None
    """Set once the model, a stop-after tool or a budget has ended the turn; it may still have to compact or settle."""
    provider_reason: str | None = None
    has_results: bool = False
    """Whether a call of the turn has its result: from then on the model is free to answer."""
    refused: int = 0
    """Answers of the chat's agent in this turn that did not have the form that it wants."""
    open: bool = False
    """Whether the end of the turn is still to be published."""
    usage: Usage = NO_USAGE
    subagents_usage: Usage = NO_USAGE
    """What subagents have used for this turn, in chats of their own."""
    spent_before: Usage = NO_USAGE
    """What the turn and its subagents had used when it was last reopened: the budgets count what came after."""
    trace: str | None = None
    """An observer's text for this turn, with which observers in other processes continue its trace."""
    asker: str | None = None
    """The chat whose message to a subagent of its own began the turn."""
    fallback_from: tuple[ModelFailure, ...] = ()
    """The agent's first models, as far as they failed in this turn: the one behind them is asked."""

    @property
    def spent(self) -> Usage:
        """What the turn and its subagents have used."""
        return self.usage + self.subagents_usage if self.subagents_usage.known else self.usage

    def having_waited(self, *, since: datetime, until: datetime) -> TurnFacts:
        return replace(self, waited=self.waited + (until - since).total_seconds())


class StepFacts(Value, frozen=True):
    """The step under way, or the last one."""

    number: Counter = 0
    stage: Stage = Stage.done
    attempt: Counter = 0
    attempt_open: bool = False
    """An attempt was started and not finished, discarded or settled: the parts it has shown still count."""
    failures: Counter = 0
    """Attempts of this step that failed in a row."""
    paid: Mapping[str, Counter] = field(default_factory=dict)
    """How many of these failed after the model had started to answer, by the kind of their error."""
    timeouts: Counter = 0
    """Attempts of this step that a time limit ended in a row: the next one gets a longer limit."""
    rejected_as: str | None = None
    """The provider's word for the last reply of this step that it rejected."""
    lost: Counter = 0
    """How often a worker went, at this stage of the step, with an attempt or with calls that it had started."""
    retry_at: Time | None = None
    retry_delay: float = 0.0
    """Seconds until `retry_at` when it was set: the most that is waited, even if the clock is set back."""

    @property
    def purpose(self) -> Purpose:
        """The purpose of an attempt: the model's answer or, once the answer is committed, a summary."""
        return "step" if self.stage is Stage.asking else "summary"

    @property
    def over_before(self) -> tuple[int, int]:
        """The step and attempt before which all replies are over: stored as messages, or discarded."""
        return (self.number, self.attempt) if self.stage is Stage.asking else (self.number + 1, 0)

    def failed(self, kind: str, *, paid: bool, timed_out: bool = False, rejected_as: str | None = None) -> StepFacts:
        """Return the step after an attempt that failed by an error of that kind."""
        return replace(
            self,
            attempt_open=False,
            failures=self.failures + 1,
            paid={**self.paid, kind: self.paid.get(kind, 0) + 1} if paid else self.paid,
            timeouts=self.timeouts + 1 if timed_out else 0,
            rejected_as=rejected_as,
        )

    def moved_to(self, stage: Stage) -> StepFacts:
        """Return the step at `stage`, at which nothing has failed and no worker was lost yet."""
        return StepFacts(number=self.number, stage=stage, attempt=self.attempt)


class HistoryFacts(Value, frozen=True):
    """The shape of the history, without its content."""

    length: Counter = 0
    """The highest position given to a message; cut messages keep theirs."""
    tail: Tail = Tail.empty
    boundary: int = 0
    """The position of the newest boundary marker; 0 for none."""
    foldable: int = 0
    """How many messages a compaction could fold: those the model sees since the boundary."""

    @property
    def unfinished(self) -> bool:
        """Whether the history awaits an answer or ends in a partial one."""
        return self.tail in (Tail.awaits_answer, Tail.partial)


class CompactionFacts(Value, frozen=True):
    """What is known about the context window."""

    need: Need = Need.none
    context_tokens: int | None = None
    context_limit: int | None = None
    estimated: bool = False
    next_tokens: int | None = 0
    """About how many tokens the prompt of the next step has: what the last reply reported, and what has come since.
    Without the system prompt and the tools as long as no reply has; `None` if it is unknown."""
    step: int = -1
    """The step that was last compacted, or failed to be: it is not tried again. -1 if there is none."""
    unproven: bool = False
    """A compaction is committed and no figure was reported since."""
    count: int = 0
    """Compactions committed in this chat."""


class Facts(Value, frozen=True, kw_only=True):
    """Where a chat stands. Stored whole with every transition; small for chats of any length."""

    chat_id: str
    profile: Profile
    state: ChatState = ChatState.waiting
    stored_state: str | None = None
    """The stored word, if the table does not know it: only `repaired` leaves such a state."""
    version: Counter = 0
    """Transitions committed so far; 0 for a chat that does not exist yet."""
    history_version: Counter = 0
    settled: bool = True
    """False only in `interrupted`, while partial work is not committed."""
    promote: bool = False
    """Whether the first queued message becomes a turn as soon as the interrupt is settled."""
    interrupt_reason: str | None = None
    archived: bool = False
    titled: bool = False
    """Whether the chat was given a title or none could be made: turnwise makes none any more."""
    unread: bool = False
    """Whether a turn has ended that is not marked as read. The turns of a subagent are its parent's to read."""
    lease: Lease | None = None
    fence: Counter = 0
    """The last fencing token given."""
    serial: Counter = 0
    """The last number given to a message id."""
    last_seq: Counter = 0
    """The number of the last event."""
    turn: TurnFacts = TurnFacts()
    step: StepFacts = StepFacts()
    calls: StepCalls = NO_CALLS
    """The calls of the current step, local and client, in call order."""
    queue: tuple[QueuedMessage, ...] = ()
    ahead: tuple[str, ...] = ()
    """The queued messages that someone wanted next: they stand before the others."""
    traces: Mapping[str, str] = field(default_factory=dict)
    """The traces of future turns, by the queued message that begins them."""
    askers: Mapping[str, str] = field(default_factory=dict)
    """The askers of future turns, by the queued message that begins them."""
    schedules: tuple[ScheduledMessage, ...] = ()
    """What the clock will send, in the order in which it was scheduled."""
    history: HistoryFacts = HistoryFacts()
    compaction: CompactionFacts = CompactionFacts()
    usage: Usage = NO_USAGE
    subagents_usage: Usage = NO_USAGE
    """What its subagents, and theirs, have used in chats of their own, as far as their answers were read."""
    left_out: tuple[LeftOut, ...] = ()
    """What the providers of models have refused of its messages."""
    background: tuple[str, ...] = ()
    """The subagents that work in the background, or whose answers it has not read yet."""
    last_error: ErrorInfo | None = None
    stop_reason: StopReason | None = None
    updated_at: Time | None = None
    since: Time | None = None
    """When the state last changed."""
    declared_key: str | None = None
    """The key under which it waits for a worker, as of when it last did; `None` for its owner."""
    capped_model: str = ""
    """Provider and model of the work it last waited for, if settings cap the chats at work of each model."""

    def __post_init__(self) -> None:
        if not isinstance(self.calls, StepCalls):
            force_setattr(self, "calls", StepCalls(self.calls))

    @property
    def last_ended_turn(self) -> int:
        return self.turn.number - int(self.turn.open)

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls without a result, in call order."""
        return tuple(call for call in self.calls if call.open)

    @property
    def wake_at(self) -> datetime | None:
        """When the first scheduled message is due; `None` without one."""
        return min((message.due for message in self.schedules), default=None)

    @property
    def agent_needed(self) -> str:
        """The agent that a worker must run to go on: while tools have to run, the one that asked for them."""
        return self.calls.agent_needed or self.profile.agent

    @property
    def profile_of_calls(self) -> Profile:
        """The profile by which the step's calls run: if another agent answers by now, that of the one that asked."""
        if self.calls.agent in (None, self.profile.agent):
            return self.profile
        return replace(self.profile, agent=self.calls.agent, model=None, parameters=None, active_tools=None)

    def with_last_seq(self, last_seq: int) -> Facts:
        """Return the facts after events up to that number were stored."""
        return self if self.last_seq == last_seq else replace(self, last_seq=last_seq)

    @property
    def fair_key(self) -> str:
        """The key by which claims go round; chats without an owner share one."""
        return self.declared_key if self.declared_key is not None else self.profile.owner or ""

    @property
    def awaits(self) -> Awaited | None:
        """Who has to answer the open calls of a chat in `requires_action`; `None` in other states."""
        return self.calls.awaited if self.state is ChatState.requires_action else None

    @property
    def action_of(self) -> ActionOf | None:
        """Whose action is needed in `requires_action`; `None` in other states."""
        return self.calls.action_of if self.state is ChatState.requires_action else None

    @property
    def place(self) -> str:
        """The place in the table: the state, `NEW` before the chat exists, `UNKNOWN` if its stored state is none."""
        if self.version == 0:
            return NEW
        return UNKNOWN if self.stored_state is not None else self.state

    @property
    def state_as_stored(self) -> str:
        """The stored word for the state, whether the table knows it or not."""
        return str(self.state) if self.stored_state is None else self.stored_state

    @property
    def resting(self) -> bool:
        """Whether only someone outside, or a deadline, can move the chat: its subagents cannot."""
        rests = self.settled and self.state in RESTING and self.stored_state is None
        return rests and self.awaits != "subagents"


def queried_columns(facts: Facts) -> dict[str, Any]:
    """Return what stores repeat of the facts in columns of their own, by which chats are found."""
    return {
        **facts.profile.queried,
        "agent": facts.agent_needed,
        "needs": [*facts.calls.needs],
        "awaits": facts.awaits,
        "action_of": facts.action_of,
        "fair_key": facts.fair_key,
        "capped_model": facts.capped_model,
    }


class Limits(Value, frozen=True, kw_only=True):
    """The settings that guards and actions may ask, named as in `Settings` or its `CompactionPolicy`."""

    max_steps: int | None = 50
    turn_tokens: int | None = None
    turn_seconds: float | None = None
    turn_cost: float | None = None
    """US dollars."""
    queue_limit: int = 20
    queue_limit_bytes: int = 104_857_600
    schedule_limit: int = 20
    promote_after_interrupt: bool = False
    action_deadline: float | None = None
    """Seconds for client calls that declare no deadline of their own."""
    threshold_percent: float = 80
    context_limit: int | None = None
    """Used where the provider reports none; `None` and 0 mean that compaction is never due."""
    after_final_step: AfterFinalStep = "continue"
    max_reentries: int = 3
    max_per_turn: int | None = 10
    """Compactions."""
    lease: float = 30
    """Seconds a lease lasts unless renewed."""
    fallbacks: int = 0
    """How many models the agent has behind its first one."""
    asked_model: str = ""
    """Provider and model that the chat's agent asks."""
    fair_by: str | None = None
    """Where claims find a chat's key, `owner` or `metadata.NAME`; `None` is the owner, too."""
    capped_model: str = ""
    """Provider and model, if settings cap the chats at work of each model."""

    def declared_key(self, profile: Profile) -> str | None:
        """Return the key of a chat by which claims go round; `None` for its owner."""
        source, _, name = (self.fair_by or "owner").partition(".")
        if source == "owner":
            return None
        value = profile.metadata.get(name, "")
        return value if isinstance(value, str) else canonical(value).decode()
