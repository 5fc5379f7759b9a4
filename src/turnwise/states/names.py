"""The words of the machine: states, triggers and the small vocabularies that rows and facts are written in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

import msgspec


class ChatState(StrEnum):
    """The state of a chat. The value is the text in the database."""

    waiting = "waiting"
    """Nothing to do until someone writes. No lease, no open call, an empty queue."""
    pending = "pending"
    """Work to do, and no lease: any worker may claim it."""
    streaming = "streaming"
    """Leased. The model is answering; no open call."""
    executing_tools = "executing_tools"
    """Leased. The step's assistant message is committed and has local calls, open or just finished."""
    compacting = "compacting"
    """Leased. The history is being summarised; no compaction is committed for this step yet."""
    requires_action = "requires_action"
    """The turn of the client or of subagents: at least one call of theirs is open, no local call, no lease."""
    interrupted = "interrupted"
    """The user interrupted. Unsettled while partial work is being committed, then a resting state."""
    error = "error"
    """Cannot go on without the user. `last_error` says why; no lease, no open call."""


class Job(StrEnum):
    """The work that belongs to a state and runs while a chat is in it."""

    stream_step = "stream_step"
    run_tools = "run_tools"
    compact = "compact"
    settle = "settle"


class Stage(StrEnum):
    """How far the chat's current step is."""

    asking = "asking"
    """The step has started, and the model's reply is not committed yet."""
    refused = "refused"
    """The step has started, and the provider refused its prompt as too long: it is asked again once there is room."""
    acting = "acting"
    """The reply is committed and its local calls are not concluded."""
    done = "done"
    """The reply is committed and no local call is left; or no step has started."""


class Tail(StrEnum):
    """How the history that the model sees ends."""

    empty = "empty"
    awaits_answer = "awaits_answer"
    answered = "answered"
    partial = "partial"


class Need(StrEnum):
    """Whether the current step owes a compaction, and why."""

    none = "none"
    due = "due"
    requested = "requested"


class StopReason(StrEnum):
    """Why a turn ended."""

    end_turn = "end_turn"
    max_steps = "max_steps"
    stop_after_tool = "stop_after_tool"
    max_tokens = "max_tokens"
    content_filter = "content_filter"
    unknown = "unknown"
    token_budget = "token_budget"  # noqa: S105 - tokens of a model, no secret
    time_budget = "time_budget"
    cost_budget = "cost_budget"
    interrupted = "interrupted"
    error = "error"


class Audience(StrEnum):
    """Who may see a message."""

    everyone = "everyone"
    model = "model"
    user = "user"


class Executor(StrEnum):
    """Who runs a tool call."""

    local = "local"
    client = "client"
    provider = "provider"
    chat = "chat"
    """Another chat, a subagent of this one, answers it."""


class CallStatus(StrEnum):
    """How far a tool call has come. `planned` and `started` are open; every other status is final."""

    planned = "planned"
    started = "started"
    succeeded = "succeeded"
    failed = "failed"
    interrupted = "interrupted"
    cancelled = "cancelled"
    timed_out = "timed_out"
    unknown = "unknown"


OPEN_STATUSES: Final = frozenset({CallStatus.planned, CallStatus.started})

NEW: Final = "new"
"""The source of `create`: where a chat is before it exists."""

UNKNOWN: Final = "unknown"
"""The source of `repaired` for a stored state that the table does not declare."""

DEFAULT_AGENT: Final = "default"
"""The name of the agent that an engine makes of its own model and tools."""

SYSTEM: Final = "system"
"""The default actor: turnwise itself."""

WORKER: Final = "worker:"
"""The prefix of a worker's name as an actor; no other actor has it."""

Party = Literal["client", "lease holder", "clock", "administrator"]
"""Who fires triggers."""

WhenBusy = Literal["queue", "steer", "interrupt", "reject"]
"""What `send_message` does while a chat works."""

WhenDue = Literal["queue", "steer", "skip"]
"""What becomes of a scheduled message that is due while the chat works."""

QueueChange = Literal["added", "edited", "moved", "taken", "deleted", "kept"]
"""What became of messages in the queue."""

Approval = Literal["asked", "granted"]
"""Whether the client has to allow a local call before it runs."""

Approver = Literal["operator", "owner"]
"""Who may allow a local call: operators alone, or the chat's owner, too."""

Crash = Literal["at_most_once", "at_least_once"]
"""What a crash during a tool call means: its outcome is unknown, or it runs again with the same key."""

Answerer = Literal["client", "subagents"]
"""Who may have to answer calls of a chat in `requires_action`."""

ActionOf = Literal["operator", "owner", "client", "subagents"]
"""Whose action moves a chat in `requires_action` on: who may allow its calls, or else who answers them."""

Awaited = Literal["client", "subagents", "both"]
"""Who has to answer the open calls of a chat in `requires_action`."""

SubagentAction = Literal["ask", "start", "wait", "message", "stop", "list"]
"""What a delegated call is to do: have a task done, have one done in the background, or see to those."""

Period = Literal["day", "month"]
"""How long a budget lasts: by the calendar of its time zone."""

UsageKey = Literal["owner", "agent", "model", "day"]
"""By what a report of usage sums up."""

Purpose = Literal["step", "summary", "title"]
"""What a model is called for."""

AfterFinalStep = Literal["continue", "rest"]
"""What comes after a compaction that a turn's final step made due."""

BoundaryReason = Literal["compaction", "clear"]
"""Why the context starts anew."""

CompactionPhase = Literal["started", "summarised", "stored", "finished", "failed", "declined", "unproductive"]
"""How far a compaction has come."""

StateKind = Literal["resting", "claimable", "leased"]
"""What a state asks of the workers: nothing, to be claimed, to be held."""

Colour = Literal["green", "yellow", "cyan", "blue", "magenta", "bold yellow", "bold magenta", "bold red"]
"""A colour that every terminal has, bold for states that wait for a person; drawings have a shade for each."""


class StateSpec(msgspec.Struct, frozen=True):
    """The declaration of a state."""

    kind: StateKind
    colour: Colour
    sentence: str
    """What happens in it, for an operator, where `explain` knows nothing more precise."""
    job: Job | None = None
    """The job that runs in it (`settle` only while unsettled)."""


SPECS: Final[Mapping[ChatState, StateSpec]] = {
    ChatState.waiting: StateSpec("resting", "green", "Nothing to do: the chat waits for the next message."),
    ChatState.pending: StateSpec("claimable", "yellow", "There is work to do: the chat waits for a worker."),
    ChatState.streaming: StateSpec("leased", "cyan", "The model is asked, or is answering.", Job.stream_step),
    ChatState.executing_tools: StateSpec("leased", "blue", "Tools are running.", Job.run_tools),
    ChatState.compacting: StateSpec("leased", "magenta", "The history is being summarised.", Job.compact),
    ChatState.requires_action: StateSpec("resting", "bold yellow", "Waiting for the client or for subagents."),
    ChatState.interrupted: StateSpec("resting", "bold magenta", "The interrupt is being settled.", Job.settle),
    ChatState.error: StateSpec("resting", "bold red", "The chat cannot go on without the user."),
}
"""Every state. The sets below, the colours of the terminal and the diagrams are derived from it."""

RESTING: Final = frozenset(state for state, spec in SPECS.items() if spec.kind == "resting")
"""The states in which a chat stays until someone or a deadline moves it (`interrupted` once settled)."""

LEASED: Final = frozenset(state for state, spec in SPECS.items() if spec.kind == "leased")
"""The states in which a worker must hold the chat."""

JOBS: Final = {state: spec.job for state, spec in SPECS.items() if spec.job is not None}
"""The job of each state that has one."""


def job_in(state: ChatState, *, settled: bool) -> Job | None:
    return None if state is ChatState.interrupted and settled else JOBS.get(state)


def snake_case(class_name: str) -> str:
    """Return the name of a class in small letters with underscores: `StepFinished` is `step_finished`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).lower()
