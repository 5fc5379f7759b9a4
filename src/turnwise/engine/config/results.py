"""What callers get back: chats as they stand, receipts, and the results of turns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec
from pydantic.dataclasses import dataclass

from turnwise.persistence.fleet import HeldChat
from turnwise.persistence.stored_chat import IntegrityIssue, PartialRead, unread
from turnwise.states.budgets import Amount, StoredBudget
from turnwise.states.calls import ClientTool, ToolCall
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import Message
from turnwise.states.names import Awaited, ChatState, Period, Purpose, StopReason
from turnwise.states.usage import NO_USAGE, Usage, reported
from turnwise.states.values.values import Value, unshared

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Output = TypeVarWithDefault("Output", default=Any)
else:
    Output = TypeVar("Output")
Item = TypeVar("Item")

MessageState = Literal["taken", "queued", "removed"]
"""What became of a message: its turn has started, it waits in the queue, or it was deleted or cut away by an edit."""


class Chat(Value, frozen=True, kw_only=True):
    """A chat as it stood at `version`."""

    id: str
    """The chat's id."""
    agent: str
    """The agent that answers."""
    state: ChatState
    """The state of the chat."""
    version: int
    """How many transitions the chat has made: the version of its last audit record."""
    history_version: int
    """The version that last changed messages."""
    last_seq: int
    """The number of the last event: `events(after=last_seq)` yields what comes after it."""
    turn: int
    """The number of the current or last turn, from 1; 0 before the first message."""
    step: int
    """The number of the current or last step, counted through the whole chat; 0 before the first."""
    attempt: int
    """The number of the current or last attempt of that step, from 1; 0 before its first."""
    owner: str | None
    """The owner, such as a user of your application; `None` for a chat without one."""
    title: str | None
    """A title for users."""
    metadata: dict[str, Any]
    """JSON values that the application keeps with the chat."""
    archived: bool
    """Whether the chat is archived: it accepts nothing but `unarchive`."""
    last_error: ErrorInfo | None
    """Why the turn failed, in the state `error`."""
    stop_reason: StopReason | None
    """Why the last turn ended; `None` while one is under way."""
    usage: Usage
    """What all model calls of the chat have used."""
    open_calls: list[ToolCall]
    """The calls of the current step that have no result yet."""
    queued: int
    """Messages that wait in the queue."""
    settled: bool
    """False only in `interrupted`, until the partial reply is stored and the chat rests."""
    parent: str | None
    """The id of another chat: of the parent for a subagent, else what `create_chat` was given."""
    unread: bool = False
    """Whether a turn has ended since the chat was last marked as read (`mark_read`); never of a subagent."""
    awaits: Awaited | None = None
    """Who has to answer the open calls in `requires_action`: the client, subagents or both."""
    context_tokens: int | None = None
    """About how many tokens the next prompt has; `None` if the model reports no usage."""
    context_limit: int | None = None
    """The size of the context window, as the model reported it last or as it is set; `None` if it is unknown."""
    parent_call: str | None = None
    """For a subagent: the call of its parent that it answers."""
    subagents_usage: Usage = NO_USAGE
    """What its subagents, at every depth, have used, as far as the chat has read their answers."""
    model: str | None = None
    """The model that is asked instead of the agent's; `None` for the agent's."""
    parameters: dict[str, Any] | None = None
    """Parameters of model calls, each instead of the agent's of that name."""
    active_tools: tuple[str, ...] | None = None
    """The tools that are offered instead of the agent's active ones."""
    client_tools: tuple[ClientTool, ...] = ()
    """The tools that only the client can run."""
    created_at: datetime
    """When the chat was created."""
    updated_at: datetime
    """When the chat last changed."""
    unreadable: str | None = None
    """Why the chat cannot be read, and where in the store; `None` for a sound chat. Other fields may be empty."""


class SendReceipt(Value, frozen=True):
    """Proof that a message was accepted."""

    chat: Chat
    """The chat after the message was accepted."""
    message_id: str
    """The message's id."""
    queued: bool
    """Whether it waits in the queue instead of being answered next: a message that interrupts is next."""
    replayed: bool
    """Whether the message had been accepted before, under the same client id."""
    seq: int
    """The number of the last event before it was accepted: `events(after=seq)` yields everything after it."""


class Compaction(Value, frozen=True, kw_only=True):
    """A compaction: what the model sees in place of older messages."""

    step: int
    """The step before which the history was compacted."""
    at: datetime
    """When it was stored."""
    summary: str
    """The text of the new messages, joined: what the model reads, with turnwise's words before a summary."""
    raw: str
    """The same without those words: what the summary model or the strategy wrote."""
    messages: list[Message]
    """The new messages for the model: by default one with the user's role that holds the summary."""
    carried: int
    """How many messages the model goes on to see unchanged."""
    usage: Usage | None
    """What the summary cost; `None` if no model was called for it."""


class UsageEntry(Value, frozen=True):
    """The usage of one model call."""

    purpose: Purpose
    """`"step"` for an answer, `"summary"` for a compaction, `"title"` for a title."""
    turn: int
    """The turn of the call. Turn, step and attempt are 0 for a title."""
    step: int
    """The step of the call."""
    attempt: int
    """The attempt of the call."""
    usage: Usage
    """What the call used."""


class UsageSum(Value, frozen=True, kw_only=True):
    """What the model calls of one group used: of those that the report does not sum up by, the fields are `None`."""

    owner: str | None = None
    """The owner."""
    agent: str | None = None
    """The agent."""
    model: str | None = None
    """As `provider:name`."""
    day: str | None = None
    """As `2026-01-31`."""
    calls: int
    """Entries of ledgers: attempts of steps, compactions and titles."""
    usage: Usage
    """`cost` lacks what the unpriced calls cost, and `cost_partial` says so."""
    unpriced: int
    """How many of the calls have no known price, or one that leaves something out."""


class Unspent(Value, frozen=True):
    """What is left of a budget: tokens, and US dollars; `None` without a limit."""

    tokens: int | None = None
    """Tokens that are left."""
    cost: Decimal | None = None
    """US dollars that are left."""


class Budget(Value, frozen=True, kw_only=True):
    """A budget of an owner's chats or of one chat, as it stands."""

    owner: str | None
    """The owner whose chats spend it; `None` for the budget of a chat."""
    chat_id: str | None
    """The chat that spends it; `None` for the budget of an owner."""
    tokens: int | None
    """The limit of tokens in a period; `None` for none."""
    cost: Decimal | None
    """The limit of US dollars; `None` for none."""
    per: Period | None
    """The period; `None` if the budget is never renewed."""
    timezone: str
    """The time zone of the period."""
    until: datetime | None
    """When the next period begins."""
    spent: Amount
    """What was spent in this period."""
    reserved: Amount
    """What the model calls under way may use at most. A call of unknown price reserves all dollars that are left."""
    left: Unspent
    """What is left in this period, reservations deducted."""
    unpriced: int
    """How many calls of the period have no known price: `spent.cost` lacks what they cost."""
    actor: str
    """Who set the limits."""


def budget_of(stored: StoredBudget) -> Budget:
    """Return a stored budget as callers see it."""
    left = Unspent(*stored.left_of(stored.spent + stored.reserved))
    return Budget(**{name: getattr(stored, name) for name in Budget.__struct_fields__ if name != "left"}, left=left)


class OwnerErasure(Value, frozen=True, kw_only=True):
    """What was erased of an owner."""

    owner: str
    """The owner."""
    deleted: list[str]
    """The chats that were deleted by this call."""
    left: dict[str, str]
    """Chats that could not be deleted, each with the reason: call again."""
    overwritten: bool
    """Whether the database's files are free of the chats that were deleted."""


class OwnerImport(Value, frozen=True, kw_only=True):
    """What was imported of an owner."""

    owner: str
    imported: list[str]
    present: list[str]
    """Chats that were there already: they are left as they are."""
    budgets: int
    """How many budgets were set."""


class WorkerInfo(Value, frozen=True, kw_only=True):
    """A worker of the store."""

    name: str
    """The worker's name."""
    host: str
    """The name of its machine."""
    pid: int | None
    """The id of its process."""
    is_alive: bool
    """Whether it has reported lately, and its process is not known to be gone."""
    started_at: datetime | None
    """`None`, as is all that it says of itself, if it has never reported."""
    seen_at: datetime | None
    """When it reported last."""
    agents: dict[str, tuple[str, ...]]
    """The agents that it runs, each with its tools: chats of others it leaves alone."""
    max_running: int | None
    """How many chats it runs at once."""
    chats: list[HeldChat]
    """The chats that it holds, the one that is longest in its state first; of all workers at most 10,000 are listed."""


class SubmissionReceipt(Value, frozen=True):
    """Proof that tool results were accepted. A replay has the first submission's `receipt_id`."""

    chat: Chat
    """The chat after the results were accepted."""
    receipt_id: str
    """The id of the submission."""
    replayed: bool
    """Whether the same results had been accepted before."""


@dataclass(frozen=True, slots=True, config={"defer_build": True})
class TurnResult(Generic[Output]):
    """The result of a message: of its own turn only, whatever else happened in the chat."""

    chat: Chat
    """The chat after the turn; it may already work on the next message."""
    text: str
    """The text of the last answer; empty if there is none."""
    stop_reason: StopReason | None
    """Why the turn ended; `None` if it did not end: see `message_state` and `open_calls`."""
    usage: Usage
    """What the turn used."""
    messages: list[Message]
    """What the turn added to the history, the message first."""
    output: Output | None
    """The answer in the form that the agent which gave it declares (`Agent.output`); `None` without one, if the turn
    gave none that fits, or if it was erased."""
    open_calls: list[ToolCall]
    """The turn waits for the client to answer these."""
    message_state: MessageState = "taken"
    """"queued": the message waits because the chat does: for `chat.open_calls`, or after an interrupt or an error."""


@dataclass(frozen=True, slots=True, config={"defer_build": True})
class Page(Generic[Item]):
    """A part of a long list. `next` goes into `after` to get the following part; `None` ends it."""

    items: Sequence[Item]
    """The items of the page."""
    next: str | None
    """Pass it as `after` to get the next page; `None` on the last page."""


class ChatCounts(Value, frozen=True, kw_only=True):
    """How many chats there are."""

    states: dict[str, int]
    """By state, without those that are archived."""
    archived: int
    """Archived chats, in any state."""


class ChatChange(Value, frozen=True, kw_only=True):
    """A changed chat in its current state. States in between are left out."""

    number: int
    """`watch(after=number)` goes on after it."""
    chat_id: str
    """Empty if the database was restored to an earlier state: discard all chats. The current ones follow."""
    chat: Chat | None
    """`None` if the chat is gone: it was deleted, or another agent answers than the one that is watched."""


class InboxItem(Value, frozen=True, kw_only=True):
    """A chat that waits for a person."""

    chat_id: str
    """Where the calls are answered, by `submit_tool_results`."""
    calls: list[ToolCall]
    """The open calls that a person, or the client, has to answer."""
    title: str | None
    """The chat's title."""
    owner: str | None
    """The chat's owner."""
    agent: str
    """The chat's agent."""
    since: datetime
    """When the chat changed last."""
    within: str | None
    """For a subagent: the chat above all others that it works for."""


def chat_of(source: Facts | PartialRead) -> Chat:
    """Return the public view of a chat, or of what could be read of it: a copy, which whoever gets it may change."""
    facts, issues = (source, ()) if isinstance(source, Facts) else (source.facts, source.issues)
    if facts.stored_state is not None and not issues:
        issues = (IntegrityIssue("chats.state", f"{facts.stored_state!a:.60} is none of the table's states"),)
    unreadable = unread(issues) if issues else None
    profile = unshared(facts.profile)
    own = {
        "id": facts.chat_id,
        "turn": facts.turn.number,
        "step": facts.step.number,
        "attempt": facts.step.attempt,
        "last_error": facts.last_error.public if facts.last_error else unreadable,
        "open_calls": [] if unreadable else [call.shown for call in facts.open_calls],
        "queued": len(facts.queue),
        "awaits": None if unreadable else facts.awaits,
        "context_tokens": facts.compaction.next_tokens,
        "context_limit": facts.compaction.context_limit or None,
        "updated_at": facts.updated_at or profile.created_at,
        "unreadable": unreadable.message if unreadable else None,
    }
    shared = dict(zip((*_OF_PROFILE, *_OF_FACTS), (*_in_profile(profile), *_in_facts(facts)), strict=True))
    return Chat(**{**shared, **own})


_OF_PROFILE: Final = sorted({*Chat.__struct_fields__} & {*Profile.__struct_fields__})
_OF_FACTS: Final = sorted({*Chat.__struct_fields__} & {*Facts.__struct_fields__})
"""The fields of chats that are fields of their profile, or of their facts, by the same name: declaring one in `Chat`
makes it public."""
_in_profile, _in_facts = attrgetter(*_OF_PROFILE), attrgetter(*_OF_FACTS)


class Spending(msgspec.Struct):
    """The usage of the model calls of one compaction, or of one title."""

    usage: Usage | None = None
    """`None` while no model was called."""

    def add(self, usage: Usage | None) -> None:
        """Add a model call; one that reported nothing makes the sum partial."""
        self.usage = reported(usage) if self.usage is None else self.usage + reported(usage)
