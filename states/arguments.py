"""What triggers bring along: the larger of their arguments."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.states.calls import ToolCall
from turnwise.states.facts import Profile
from turnwise.states.messages import Message, Part
from turnwise.states.names import StopReason, Tail
from turnwise.states.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which model was asked for a reply, and with what."""

    agent: str = "default"
    model: str
    provider: str
    response_id: str | None = None
    parameters_digest: str | None = None
    tools_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
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
    should_compact: bool | None = None
    """What the embedding service decides about a compaction; `None` leaves it to the threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """What a dead attempt had shown, to be kept as a partial message."""

    step: int
    attempt: int
    parts: tuple[Part, ...]
    calls: tuple[ToolCall, ...] = ()
    """The complete local and client calls among the parts."""
    usage: Usage | None = None
    origin: Origin | None = None
    """`None` if the worker that asked is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a compaction made of the history: all that the model sees from then on, in its order."""

    messages: tuple[int | Message, ...]
    """The positions of messages that stay as they are, and new messages. One that has a position stands for the
    message there, whose turn and step it keeps."""
    folded: int
    """How many messages are not in view any more."""

    @property
    def carried(self) -> tuple[int, ...]:
        """The positions of the messages that stay as they are."""
        return tuple(entry for entry in self.messages if isinstance(entry, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where an edit cuts the history, as it stood at `history_version`."""

    position: int
    first_removed: str
    boundary: int
    """The newest boundary that remains."""
    foldable: int
    history_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """What a fork takes over from its parent: the history as it stood, every call in it answered."""

    messages: tuple[Message, ...]
    """In order of position, of every audience; they keep their ids, turns and steps."""
    boundary: int
    """The position of the newest boundary marker; 0 for none."""
    carried: tuple[int, ...]
    """The positions that the boundary carries."""
    compacted: bool
    """Whether the boundary is a compaction's."""
    foldable: int
    serial: int
    """The parent's last message number."""
    tail: Tail
    compactions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasing:
    """What is to be erased of a chat."""

    messages: tuple[Message, ...] = ()
    """As they stand afterwards."""
    results: tuple[Message, ...] = ()
    """Results that stay without the arguments that a client gave one of their calls, as they stand afterwards."""
    cut: frozenset[str] = frozenset()
    """Those of both that are in the history no more."""
    queued: frozenset[str] = frozenset()
    """Messages that wait, or that waited and were never taken."""
    profile: Profile | None = None
    """As it stands afterwards."""
    errors: bool = False
    reasons: bool = False
    quarantine: bool = False
    """What repairs have put aside: nobody can tell whose words it holds."""
