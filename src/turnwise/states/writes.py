"""Writes as values: what a store must do, in one transaction, to perform a decision.

The pure floor makes them, a store applies them, the audit record lists them by `kind`, `id` and `digest`.
Beside them a store always stores the chat's new facts.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import msgspec

from turnwise.states.calls import ToolCall
from turnwise.states.errors import InvalidContent
from turnwise.states.facts import Lease, Profile
from turnwise.states.messages import Message, ModelFailure, QueuedMessage, ScheduledMessage
from turnwise.states.names import BoundaryReason, CallStatus, Purpose
from turnwise.states.usage import Usage
from turnwise.states.values.digests import canonical, digest, guarded, salted
from turnwise.states.values.values import Time, Value, changed_fields

ERASED: Final = "[erased]"
"""The text that replaces erased text."""

_Text = Literal["queued", "errors", "reasons", "quarantine"]


class _Stored(Value, frozen=True, gc=True, dict=True):
    _stores: ClassVar[str | None] = None
    """The field that is stored, under the write's salt; `None` stores the whole write, with its salt in it."""

    @cached_property
    def body(self) -> str:
        return _body_of(self if self._stores is None else getattr(self, self._stores))

    @property
    def digest(self) -> str:
        """The digest of what is stored, salted where that may be confidential; it outlives an erasure."""
        return salted("" if self._stores is None else self.salt, self.body)

    if TYPE_CHECKING:

        @property
        def salt(self) -> str: ...


class _OfMessage(_Stored, frozen=True):
    _stores = "message"
    message: Message
    """The message as it stands afterwards."""
    salt: str = ""
    """The salt of the digest: stored with the message, and erased with it; a blanked message has none."""

    @property
    def id(self) -> str:
        return self.message.id


class InsertMessage(_OfMessage, frozen=True):
    """Append a message to the history."""

    kind: ClassVar[str] = "message"


class EraseMessage(_OfMessage, frozen=True):
    """Blank a message; its digest stays, its salt is deleted."""

    kind: ClassVar[str] = "erase"


class EraseEdits(_OfMessage, frozen=True):
    """Take out of a result the arguments that a client put in the place of the model's, now erased; the rest stays.

    The salt is a new one: with the old one the arguments could be guessed.
    """

    kind: ClassVar[str] = "erase:edits"


class CutHistory(Value, frozen=True):
    """Cut every message from `position` on out of the history. The rows stay, for the audit."""

    kind: ClassVar[str] = "cut"
    position: int
    id: str
    """The first message that is gone."""

    @property
    def digest(self) -> str:
        return digest(self.position)


class EraseText(Value, frozen=True):
    """Erase content outside of messages from all rows and events: queued text, errors, reasons, `quarantine`."""

    what: _Text
    id: str = ""
    """The message that waited; empty for the rest."""

    @property
    def kind(self) -> str:
        return f"erase:{self.what}"

    @property
    def digest(self) -> str:
        return digest(self.id)


class PutCall(Value, frozen=True):
    """Insert or update a call."""

    call: ToolCall
    new: bool = False
    """Whether the decision inserts it."""

    @property
    def kind(self) -> str:
        """`call:` and the status; of a planned call also who answers it, or what a crash of it means.

        The client and subagents answer `client` and `chat`. What a crash of a local call means is its policy, or
        `asked_first` for one that runs at most once and whose tool can be asked what became of it. A call that the
        client has allowed is `call:approved:` and what a crash of it means, one that starts as soon as it is planned
        `call:started:` and that.
        """
        if self.call.status is CallStatus.started and self.new:
            return f"call:started:{self._after_crash}"
        if self.call.status is not CallStatus.planned:
            return f"call:{self.call.status}"
        if self.call.approval == "granted":
            return f"call:approved:{self._after_crash}"
        return f"call:planned:{self._after_crash if self.call.is_local else self.call.executor}"

    @property
    def _after_crash(self) -> str:
        asked_first = self.call.reconciles and self.call.crash == "at_most_once"
        return "asked_first" if asked_first else self.call.crash

    @property
    def id(self) -> str:
        return self.call.call_id

    @property
    def digest(self) -> str:
        """The digest of all fields of the call that do not change while it is open, its salt included."""
        return digest_of_call(self.call)


class NoteSubagent(Value, frozen=True):
    """Name in the log the subagent whose answer this is, and where its own log stood; it is stored nowhere else."""

    kind: ClassVar[str] = "subagent"
    chat_id: str
    version: int
    head: str

    @property
    def id(self) -> str:
        return f"{self.chat_id}:{self.version}"

    @property
    def digest(self) -> str:
        return self.head


class NoteFallback(Value, frozen=True):
    """Name in the log the model that did not answer, and why; the reply that comes instead names it, too."""

    kind: ClassVar[str] = "fallback"
    failure: ModelFailure

    @property
    def id(self) -> str:
        return f"{self.failure.provider}:{self.failure.model}:{self.failure.kind}"

    @property
    def digest(self) -> str:
        return digest(msgspec.to_builtins(self.failure))


class NoteDeadline(Value, frozen=True):
    """Store the deadline of a client call."""

    kind: ClassVar[str] = "deadline"
    id: str
    """The call."""
    deadline: Time

    @property
    def digest(self) -> str:
        return digest_of_time(self.deadline)


class PutQueued(_Stored, frozen=True):
    """Put a message into the queue, or replace the one of its id."""

    _stores = "queued"
    queued: QueuedMessage
    rank: int | None
    """Orders the queue, lowest first; `None` keeps the place of the message that is replaced."""
    salt: str = ""

    @property
    def kind(self) -> str:
        return "enqueue:steer" if self.queued.steers else "enqueue"

    @property
    def id(self) -> str:
        return self.queued.id


class MoveQueued(Value, frozen=True):
    """Move a message of the queue before another one."""

    kind: ClassVar[str] = "move"
    queued_id: str
    before: str
    order: tuple[str, ...]
    """The ids of the whole queue afterwards: a store ranks its rows by it, no log holds it."""

    @property
    def id(self) -> str:
        return f"{self.queued_id}:{self.before}"

    @property
    def digest(self) -> str:
        return digest(self.id)


class DropQueued(Value, frozen=True):
    """Remove a message from the queue: it begins a turn, steers the one under way, or is deleted."""

    id: str
    """The message."""
    why: Literal["taken", "steered", "deleted"]

    @property
    def kind(self) -> str:
        return f"dequeue:{self.why}"

    @property
    def digest(self) -> str:
        return digest(self.id)


class PutSchedule(Value, frozen=True):
    """Schedule a message, or replace the one of its id. It is stored with the facts."""

    kind: ClassVar[str] = "schedule"
    message: ScheduledMessage

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def digest(self) -> str:
        return digest_of_time(self.message.due)


class FireSchedule(Value, frozen=True):
    """Note that a scheduled message was due: it was sent, or skipped."""

    kind: ClassVar[str] = "schedule:fired"
    id: str
    due: Time

    @property
    def digest(self) -> str:
        return digest_of_time(self.due)


class DropSchedule(Value, frozen=True):
    """Schedule a message no longer."""

    kind: ClassVar[str] = "schedule:dropped"
    id: str

    @property
    def digest(self) -> str:
        return digest(self.id)


class NoteReason(Value, frozen=True):
    """Keep the client's reason for an interrupt beside the audit record, where it can be erased."""

    kind: ClassVar[str] = "reason"
    id: ClassVar[str] = ""
    reason: str
    salt: str = ""

    @property
    def digest(self) -> str:
        return salted(self.salt, canonical(self.reason))


class InsertBoundary(Value, frozen=True):
    """Start the context anew at a marker message. At most one of reason `compaction` per chat and step."""

    reason: BoundaryReason
    step: int
    position: int
    """The marker's position. The model sees `carried` and what has a higher position, see `in_prompt_order`."""
    carried: tuple[int, ...]
    """Positions in the model's order: of earlier messages that stay, and of new ones right after the marker."""
    usage: Usage | None = None

    @property
    def kind(self) -> str:
        return f"boundary:{self.reason}"

    @property
    def id(self) -> str:
        return str(self.step)

    @property
    def digest(self) -> str:
        return digest([self.position, self.carried])


class GrantLease(Value, frozen=True):
    """Give the lease to a worker, for `seconds` from the database's now."""

    kind: ClassVar[str] = "lease"
    lease: Lease
    seconds: float

    @property
    def id(self) -> str:
        return str(self.lease.token)

    @property
    def digest(self) -> str:
        return digest_of_lease(self.lease.token, self.lease.worker)


class DropLease(Value, frozen=True):
    """End a lease."""

    kind: ClassVar[str] = "lease:dropped"
    token: int

    @property
    def id(self) -> str:
        return str(self.token)

    @property
    def digest(self) -> str:
        return digest(self.token)


class RecordUsage(_Stored, frozen=True):
    """Add a model call to the ledger."""

    kind: ClassVar[str] = "usage"
    purpose: Purpose
    turn: int
    step: int
    attempt: int
    usage: Usage
    at: Time | None = None
    agent: str | None = None
    """Who answered."""
    model: str | None = None
    """The provider and name of the model that the agent asks, as `provider:name`; `None` if it is not known here."""

    @property
    def id(self) -> str:
        return f"{self.purpose}:{self.step}:{self.attempt}"


class Reserve(Value, frozen=True):
    """Reserve the estimate of a model call in the chat's budgets, until its usage is recorded."""

    kind: ClassVar[str] = "reservation"
    step: int
    attempt: int
    tokens: int
    cost: Decimal | None
    """US dollars; `None` if the price is unknown: all that is left."""

    @property
    def id(self) -> str:
        return f"{self.step}:{self.attempt}"

    @property
    def digest(self) -> str:
        return digest([self.tokens, None if self.cost is None else str(self.cost)])


class PutProfile(_Stored, frozen=True):
    """Store the chat's profile: labels and declarations."""

    kind: ClassVar[str] = "profile"
    id: ClassVar[str] = ""
    """A chat has one profile, and the log must not name its owner."""
    _stores = "profile"
    profile: Profile
    salt: str = ""


class RecordReceipt(_Stored, frozen=True):
    """Remember that a client's message was accepted. A second receipt for a `client_id` is refused."""

    kind: ClassVar[str] = "receipt"
    client_id: str
    content_digest: str
    """The salted digest of the content; empty once the content is erased."""
    message_id: str
    queued: bool
    seq: int = 0
    """The number of the last event before the message was accepted."""
    salt: str = ""

    @property
    def id(self) -> str:
        return self.client_id

    def is_for(self, content_digest: str) -> bool:
        """Whether the receipt is for content of that digest, without salt: for any, once the content is erased."""
        return not self.content_digest or guarded(self.salt, content_digest) == self.content_digest


Write = (
    InsertMessage
    | CutHistory
    | EraseMessage
    | EraseEdits
    | EraseText
    | PutCall
    | NoteSubagent
    | NoteFallback
    | NoteDeadline
    | PutQueued
    | MoveQueued
    | DropQueued
    | PutSchedule
    | FireSchedule
    | DropSchedule
    | NoteReason
    | InsertBoundary
    | GrantLease
    | DropLease
    | RecordUsage
    | Reserve
    | PutProfile
    | RecordReceipt
)

ERASING_KINDS: Final = frozenset(
    (EraseMessage.kind, EraseEdits.kind, *(EraseText(what).kind for what in get_args(_Text)))
)
"""The kinds of writes that only an erasure makes."""


def digest_of_call(call: ToolCall) -> str:
    """Return the digest of all fields of a call but its status and deadline, with its salt."""
    fields = changed_fields(call, without=_CHANGING)
    if call.within is not None:
        fields["within"] = float(call.within)  # as it is when it is read again
    return digest(msgspec.to_builtins(fields))


def digest_of_lease(token: int, worker: str) -> str:
    return digest({"token": token, "worker": worker})


def digest_of_time(time: datetime) -> str:
    return digest(time.isoformat())


def _body_of(value: Any) -> str:
    """Return a value as it is stored, or raise `InvalidContent`: it cannot be read again as it is."""
    try:
        spelled = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidContent(f"only JSON values and well-formed Unicode can be stored: {error}") from error
    if b"null" in spelled:  # which NaN and the infinities become, too
        canonical(msgspec.to_builtins(value))
    return spelled.decode()


_CHANGING: Final = frozenset({"status", "deadline"})
