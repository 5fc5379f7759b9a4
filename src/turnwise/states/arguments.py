"""The larger arguments of triggers."""

from __future__ import annotations

from turnwise.states.calls import ToolCall
from turnwise.states.facts import Profile
from turnwise.states.messages import Message, Part
from turnwise.states.names import DEFAULT_AGENT, StopReason, Tail
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.values.values import Value


class Origin(Value, frozen=True, kw_only=True):
    """The agent and the model that were asked for a reply, with digests of the parameters and tools."""

    agent: str = DEFAULT_AGENT
    agent_version: str | None = None
    model: str
    provider: str
    response_id: str | None = None
    parameters_digest: str | None = None
    tools_digest: str | None = None


class StepReply(Value, frozen=True, kw_only=True):
    """One finished reply of the model."""

    parts: tuple[Part, ...]
    calls: tuple[ToolCall, ...] = ()
    """The local and client calls among the parts, in order."""
    usage: Usage | None = None
    stop_reason: StopReason = StopReason.end_turn
    provider_reason: str | None = None
    context_tokens: int | None = None
    context_limit: int | None = None
    estimated: bool = False
    origin: Origin | None = None
    refused: bool = False
    """Whether this is an answer without the form that the agent wants: the model is asked again."""
    should_compact: bool | None = None
    """What the embedding service decides about a compaction; `None` leaves it to the threshold."""


class Partial(Value, frozen=True, kw_only=True):
    """The shown part of an attempt that has ended, to be stored as a partial message."""

    step: int
    attempt: int
    parts: tuple[Part, ...]
    calls: tuple[ToolCall, ...] = ()
    """The complete local and client calls among the parts."""
    usage: Usage | None = None
    origin: Origin | None = None
    """`None` if the worker that asked is gone."""


class SubagentAnswer(Value, frozen=True, kw_only=True):
    """What a subagent has to do with the answer of a call, as it stood then."""

    chat_id: str
    """The subagent; the chat itself if no subagent has a say in its answer."""
    version: int = 0
    """0 if it is gone, or was not asked."""
    head: str = ""
    """The hash of the record of that version of its log."""
    usage: Usage = NO_USAGE
    """What the subagent and its own subagents have used since an answer of it was last brought."""
    owes: bool = False
    """Whether its answer is still to come."""


class Summary(Value, frozen=True, kw_only=True):
    """The result of a compaction: everything that the model sees from then on, in order."""

    messages: tuple[int | Message, ...]
    """The positions of messages that stay as they are, and new messages. One that has a position stands for the
    message there, whose turn and step it keeps."""
    folded: int
    """How many messages the model no longer sees."""
    tokens: int | None = None
    """About how many tokens the model's prompt has from then on."""

    @property
    def carried(self) -> tuple[int, ...]:
        """The positions of the messages that stay as they are."""
        return tuple(entry for entry in self.messages if isinstance(entry, int))


class Cut(Value, frozen=True, kw_only=True):
    """Where an edit cuts the history, as it stood at `history_version`."""

    position: int
    first_removed: str
    boundary: int
    """The newest boundary that remains."""
    foldable: int
    history_version: int


class Inheritance(Value, frozen=True, kw_only=True):
    """What a chat begins with: a fork with its parent's history as it stood, another with an imported history.

    Every call in it is answered.
    """

    messages: tuple[Message, ...]
    """In order of position, of every audience; those of a parent keep their ids, turns and steps."""
    boundary: int
    """The position of the newest boundary marker; 0 for none."""
    foldable: int
    serial: int
    """The last message number that was given."""
    tail: Tail
    compactions: int
    tokens: int | None = None
    """About how many tokens the messages have that the model sees; `None` if that is unknown."""


class Erasing(Value, frozen=True, kw_only=True):
    """The content of a chat that an erasure blanks."""

    messages: tuple[Message, ...] = ()
    """The messages as they are afterwards."""
    results: tuple[Message, ...] = ()
    """Results that stay, as they are afterwards: without the arguments that a client gave their call."""
    cut: frozenset[str] = frozenset()
    """Which of both are cut out of the history."""
    queued: frozenset[str] = frozenset()
    """Queued messages, and those that left the queue without entering the history."""
    profile: Profile | None = None
    """The profile as it is afterwards."""
    errors: bool = False
    reasons: bool = False
    quarantine: bool = False
    """Whether to delete the rows in `quarantine`: it is unknown whose text they hold."""
    schedules: bool = False
    """Whether to drop what is scheduled."""

    @property
    def is_empty(self) -> bool:
        """Whether the chat never had anything of what is to be erased; what is blank already is erased anew."""
        return self == Erasing(cut=self.cut)
