"""Writes as values: what a store must do, in one transaction, to perform a decision.

The pure floor makes them, a store applies them, the audit record lists them by `kind`, `id` and `digest`.
Beside them a store always stores the chat's new facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from turnwise.states.calls import ToolCall
from turnwise.states.digests import digest
from turnwise.states.facts import Lease, Profile
from turnwise.states.messages import Message, QueuedMessage
from turnwise.states.names import BoundaryReason, CallStatus, Purpose
from turnwise.states.usage import Usage


@dataclass(frozen=True)
class InsertMessage:
    """Append a message to the history."""

    kind: ClassVar[str] = "message"
    message: Message

    @property
    def id(self) -> str:
        """The message's id."""
        return self.message.id

    @cached_property
    def digest(self) -> str:
        """The digest of what was said; it outlives an erasure."""
        return digest_of_message(self.message)


@dataclass(frozen=True, slots=True)
class CutHistory:
    """Take every message from `position` on out of the history. The rows stay, for the audit."""

    kind: ClassVar[str] = "cut"
    position: int
    first_removed: str

    @property
    def id(self) -> str:
        """The first message that is gone."""
        return self.first_removed

    @property
    def digest(self) -> str:
        """The digest of the place."""
        return digest(self.position)


@dataclass(frozen=True, slots=True)
class EraseMessage:
    """Blank a message's payload; its digest stays."""

    kind: ClassVar[str] = "erase"
    message: Message
    """The message as it stands afterwards."""

    @property
    def id(self) -> str:
        """The message's id."""
        return self.message.id

    @property
    def digest(self) -> str:
        """The digest of the blanked message."""
        return digest_of_message(self.message)


@dataclass(frozen=True, slots=True)
class PutCall:
    """Insert a call, or replace what is known of it."""

    call: ToolCall

    @property
    def kind(self) -> str:
        """`call:` and the status; of a planned call also who runs it, `client`, or what a crash of it means.

        A call that the client has allowed is `call:approved:` and what a crash of it means.
        """
        if self.call.status is not CallStatus.planned:
            return f"call:{self.call.status}"
        if self.call.approval == "granted":
            return f"call:approved:{self.call.crash}"
        return f"call:planned:{'client' if self.call.is_client else self.call.crash}"

    @property
    def id(self) -> str:
        """The call's id."""
        return self.call.call_id

    @property
    def digest(self) -> str:
        """The digest of the call's arguments, and of its answer where it has one."""
        answer = self.call.answer.digest if self.call.answer else None
        return digest(
            [
                self.call.name,
                self.call.arguments,
                self.call.executor,
                self.call.crash,
                answer,
            ]
        )


@dataclass(frozen=True, slots=True)
class PutQueued:
    """Put a message into the queue, or replace the one of its id."""

    kind: ClassVar[str] = "enqueue"
    queued: QueuedMessage
    rank: int | None
    """Orders the queue, lowest first; `None` keeps the place of the message that is replaced."""

    @property
    def id(self) -> str:
        """The message's id."""
        return self.queued.id

    @property
    def digest(self) -> str:
        """The digest of what waits."""
        return digest([part.model_dump(mode="json") for part in self.queued.parts])


@dataclass(frozen=True, slots=True)
class DropQueued:
    """Take a message out of the queue: into the history, or away."""

    queued_id: str
    why: Literal["taken", "deleted"]

    @property
    def kind(self) -> str:
        """`dequeue:` and why."""
        return f"dequeue:{self.why}"

    @property
    def id(self) -> str:
        """The message's id."""
        return self.queued_id

    @property
    def digest(self) -> str:
        """The digest of the id."""
        return digest(self.queued_id)


@dataclass(frozen=True, slots=True)
class InsertBoundary:
    """Start the context anew at a marker message. At most one of reason `compaction` per chat and step."""

    reason: BoundaryReason
    step: int
    position: int
    """The marker's position. The model sees `carried` and what has a higher position."""
    carried: tuple[int, ...]
    usage: Usage | None = None

    @property
    def kind(self) -> str:
        """`boundary:` and the reason."""
        return f"boundary:{self.reason}"

    @property
    def id(self) -> str:
        """The step, as text."""
        return str(self.step)

    @property
    def digest(self) -> str:
        """The digest of where it stands and what it carries."""
        return digest([self.position, self.carried])


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Give the lease to a worker, for `seconds` from the database's now."""

    kind: ClassVar[str] = "lease"
    lease: Lease
    seconds: float

    @property
    def id(self) -> str:
        """The fencing token, as text."""
        return str(self.lease.token)

    @property
    def digest(self) -> str:
        """The digest of worker and token."""
        return digest({"token": self.lease.token, "worker": self.lease.worker})


@dataclass(frozen=True, slots=True)
class DropLease:
    """End a lease."""

    kind: ClassVar[str] = "lease:dropped"
    token: int

    @property
    def id(self) -> str:
        """The fencing token that is dead now, as text."""
        return str(self.token)

    @property
    def digest(self) -> str:
        """The digest of the token."""
        return digest(self.token)


@dataclass(frozen=True, slots=True)
class RecordUsage:
    """Add a model call to the ledger."""

    kind: ClassVar[str] = "usage"
    purpose: Purpose
    turn: int
    step: int
    attempt: int
    usage: Usage

    @property
    def id(self) -> str:
        """Purpose, step and attempt."""
        return f"{self.purpose}:{self.step}:{self.attempt}"

    @property
    def digest(self) -> str:
        """The digest of the counts."""
        return digest(self.usage.model_dump(mode="json"))


@dataclass(frozen=True, slots=True)
class PutProfile:
    """Store what is said about the chat."""

    kind: ClassVar[str] = "profile"
    profile: Profile

    @property
    def id(self) -> str:
        """The owner, or nothing."""
        return self.profile.owner or ""

    @property
    def digest(self) -> str:
        """The digest of labels and declarations."""
        known = self.profile
        tools = [[tool.name, tool.description, tool.input_schema, tool.deadline] for tool in known.client_tools]
        labels = [
            known.system,
            known.owner,
            known.title,
            dict(known.metadata),
            known.parent,
            known.forked_from,
        ]
        return digest([labels, tools])


@dataclass(frozen=True, slots=True)
class RecordReceipt:
    """Remember that a client's message was accepted. A second receipt for a `client_id` is refused."""

    kind: ClassVar[str] = "receipt"
    client_id: str
    content_digest: str
    message_id: str
    queued: bool

    @property
    def id(self) -> str:
        """The client's id for the message."""
        return self.client_id

    @property
    def digest(self) -> str:
        """The digest of the content."""
        return self.content_digest


Write = (
    InsertMessage
    | CutHistory
    | EraseMessage
    | PutCall
    | PutQueued
    | DropQueued
    | InsertBoundary
    | GrantLease
    | DropLease
    | RecordUsage
    | PutProfile
    | RecordReceipt
)


def digest_of_message(message: Message) -> str:
    """Return the digest by which a message is known: role and parts, nothing that storing it adds."""
    return digest([message.role, [part.model_dump(mode="json") for part in message.parts]])
