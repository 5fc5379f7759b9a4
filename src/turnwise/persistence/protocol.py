"""What a store promises, in the words of the domain. Every store keeps all of it; `conformance` tests it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.blobs.protocol import HeldFiles
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.integrity.raw_chat import Rows
from turnwise.persistence.stored_chat import IntegrityIssue, PartialRead
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.decide import Decision
from turnwise.states.errors import StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import Answerer, ChatState, StopReason
from turnwise.states.writes import RecordReceipt, RecordUsage

Plan = Callable[[Facts, datetime], Sequence[Decision]]
"""Decides, inside a transaction, what happens to a chat: given its facts and the database's time (UTC).

The decisions follow one another, each made on the facts that the one before left. An empty sequence means that there is
nothing to do. A plan is pure: a store may call it in another thread, and again after a conflict. An error that it
raises ends the transaction, writes nothing, and reaches the caller.
"""


Permission = Callable[[PartialRead, datetime], None]
"""Decides, inside a transaction, whether a chat may be deleted: given what can be read of it and the database's time.

It raises what refuses the deletion; like a plan it is pure.
"""


class Committed(msgspec.Struct, frozen=True):
    """What a transaction did to one chat."""

    before: Facts
    """The facts before: those that the first decision was made on."""
    facts: Facts
    """The facts afterwards; the same, if nothing was decided."""
    decisions: tuple[Decision, ...]
    events: tuple[Event, ...]
    """The events as stored: with chat, sequence number and time."""
    at: datetime
    """The time that the plan was given."""


class Overdue(msgspec.Struct, frozen=True):
    """Leases and deadlines that have run out, and strays, for a worker's sweep. Each list keeps to the limit."""

    leases: tuple[tuple[str, int], ...] = ()
    """Chats whose lease has run out, each with its token."""
    deadlines: tuple[str, ...] = ()
    """Chats in `requires_action`, not archived, with an open call whose deadline has passed."""
    strays: tuple[str, ...] = ()
    """Chats in a state that the table does not know."""
    at: datetime | None = None
    """The time by which they have run out, where that is another machine's; `None` if it is this one's."""


class Expiry(msgspec.Struct, frozen=True):
    """When a lease runs out."""

    expires: datetime
    now: datetime
    """The time by the clock that counts there, when this was asked."""

    @property
    def is_over(self) -> bool:
        """Whether the lease has run out."""
        return self.expires <= self.now


class Waiting(msgspec.Struct, frozen=True):
    """Since when chats wait for a worker."""

    since: Mapping[str, datetime]
    """When the longest waiting chat of each agent began to wait."""
    at: datetime | None = None
    """The time by the clock that counts there, where that is another machine's; `None` if it is this one's."""


class Snapshot(msgspec.Struct, frozen=True):
    """A chat at one moment."""

    facts: Facts
    history: tuple[Message, ...]
    """The messages that are not cut, by position, of every audience."""
    shown: tuple[PartEvent, ...]
    """The parts of the attempt under way that subscribers were shown, in order."""
    stop_reason: StopReason | None
    """Why the last finished turn ended, as its `turn_finished` event says."""


class Pruned(msgspec.Struct, frozen=True):
    """The result of one call of `prune`."""

    parts: int
    """How many parts it deleted."""
    after: str | None
    """Where the next call goes on: after this chat; `None` after the last chat."""


PAGE_BYTES: Final = 1_048_576
"""A page of what a store has many of ends with the item that brings it to so many bytes."""


class EventPage(list[Event]):
    """Events in order; `more` says that others follow, and the page was full."""

    more = False


Runs = Mapping[str, Collection[str]]
"""What a worker runs: its agents by name, each with the names of its tools."""


class DuplicateReceipt(StoreError):
    """A message of this `client_id` was accepted before. Nothing was written; the first receipt stands."""

    def __init__(self, chat_id: str, client_id: str) -> None:
        self.chat_id = chat_id
        self.client_id = client_id
        super().__init__(
            f"chat {chat_id!r} has accepted a message of client_id {client_id!r} before; nothing was written"
        )


class ChatStore(HeldFiles, Protocol):
    """Keeps chats. One `change` is one transaction: all of it is durable when the call returns, or none of it is.

    Methods raise what the caller's own plan raises, and otherwise only `StoreError`s: `passing` if the store may take
    later what it refused now, so that running chats wait for it. If there is no such chat, `change`, `repair`,
    `delete`, `append_events`, `facts`, `head`, `rest`, `rows`, `raw_rows` and `snapshot` raise `ChatNotFound`; the
    others find nothing. If there was one and it was deleted, every method about one chat raises `ChatDeleted`, but
    `delete`, `tombstone`, `forks` and `children`.

    A chat is one failure domain. A method about one chat raises `ChatUnreadable` if a stored value of that chat cannot
    be read; a method about many chats goes on with the others.

    Every method is safe to call from many tasks at once. A cancelled `change`, `create`, `claim` or `append_events`
    either never happened or is complete; it is never left half done.
    """

    async def open(self) -> None:
        """Open the database, creating or migrating it.

        Raises:
            StoreError: the database is another program's, or of a newer version, or cannot be opened.
        """

    async def close(self) -> None:
        """Finish all accepted work and close. Closing twice is harmless."""

    # Changing

    async def create(
        self, chat_id: str, plan: Plan, *, parent: tuple[str, int] | None = None, unchanged: bool = False
    ) -> Committed:
        """Create a chat: `plan` gets blank facts of version 0.

        `parent` is the chat whose words the plan repeats, and the version at which they were read. Whoever erases
        something of it, or deletes it, comes before and is noticed here, or finds this chat among its `forks` or
        `children`. With `unchanged` so does any change of it.

        Raises:
            ChatExists: the id is taken.
            ChatDeleted: it was taken, by a chat that was deleted; or the parent was deleted.
            ChatNotFound: there is no such parent.
            VersionMismatch: something of the parent was erased since it was at that version; with `unchanged`, anything
                has changed.
        """

    async def change(self, chat_id: str, plan: Plan, *, shown: Sequence[PartEvent] = ()) -> Committed:
        """Change a chat in one transaction, as `plan` decides on its facts.

        For each decision its writes are done, one audit record is appended and the version rises by one; then the
        events are stored. `shown` are part events that come before the decisions' own; they are stored only if there
        is a decision.

        Raises:
            DuplicateReceipt: a `RecordReceipt` names a `client_id` that has one.
        """

    async def repair(self, chat_id: str, plan: Plan) -> Committed:
        """Put aside what cannot be read of a chat, and change what is left, in one transaction.

        `plan` gets what is left: facts with defaults for what cannot be read, in an unknown state; of a sound chat, its
        facts. If it decides something, every unreadable row is kept in `quarantine` as it was stored, readable rows or
        marks take its place, and the decisions are done as in `change`. The audit log is left as it is.
        """

    async def import_chat(self, chat: WholeChat, plan: Plan) -> Committed:
        """Take in a chat of another store: its rows, and what `plan` decides on its facts, in one transaction.

        The caller has checked the rows. The facts have the lease that the chat was exported with: the plan must end it.
        A plan that decides nothing leaves the store as it was.

        Raises:
            ChatExists: the id is taken.
            ChatDeleted: it was taken, by a chat that was deleted.
        """

    async def delete(self, chat_id: str, permit: Permission, *, actor: str) -> Tombstone:
        """Delete everything of a chat for good, if `permit` lets it, and leave a tombstone, in one transaction.

        Of a chat that was deleted it returns the tombstone and does not ask. Erased text may stay in the database's
        files until `scrub`.
        """

    async def claim(self, plan: Plan, *, runs: Runs, limit: int) -> list[Committed]:
        """Apply `plan` to up to `limit` chats that want a worker, longest waiting first.

        These are the chats without a lease and not archived: in `interrupted` and not settled, or in `pending` if their
        agent is one of `runs`, and each tool that their open local calls need one of that agent's. If the
        plan raises for a chat, that chat is left alone and the others are still claimed. Two callers never claim the
        same chat.
        """

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event], *, worker: str | None = None
    ) -> tuple[Event, ...]:
        """Store events of a running job, without a transition, and return them as stored.

        With no events it writes nothing and reads one row: a way to ask whether the job may go on. With a `worker` the
        token must be that worker's: a database that went back grants a token twice.

        Raises:
            StaleLease: the chat is no longer in `state`, or no longer held under `token`. Nothing is stored.
        """

    async def renew(self, worker: str, seconds: float) -> Mapping[str, int]:
        """Let every lease of `worker` last `seconds` from now, and return the tokens it holds, by chat.

        0 seconds end them: for a worker that is dead. A chat that is being changed may be left out: ask again soon.

        A lease that has run out is renewed, too, unless another worker took the chat: the token is the fence.
        """

    async def check_writable(self) -> None:
        """Commit a write that changes nothing.

        Raises:
            StoreError: the store takes none: it is away, full, locked, or may only be read.
        """

    async def confirm(self) -> None:
        """Return once all that was read until now is as durable as what was acknowledged.

        A server whose standby is away may show a commit, after its connection was cut, that the standby lacks.
        """

    def end_calls_within(self, seconds: float) -> None:
        """Let every call end within so many seconds from now, with an error if need be: the process is about to end."""

    async def prune(self, *, keep: float, after: str, limit: int) -> Pruned:
        """Delete the parts of replies that are over, shown at least `keep` seconds ago; their numbers are then skipped.

        `StepFacts.over_before` says which replies are over; the parts of any other are kept, however old they are.

        One call looks at up to `limit` chats, those whose id comes after `after`, and deletes up to `limit` parts, so
        that other work never waits for it for long.
        """

    # Reading

    async def tombstone(self, chat_id: str) -> Tombstone | None:
        """Return what is left of a deleted chat; `None` if no chat of that id was deleted."""

    async def deleted(self, chat_ids: Collection[str]) -> frozenset[str]:
        """Return those of the chats that were deleted; forget them, and any other that this store remembers."""

    async def facts(self, chat_id: str) -> Facts:
        """Return where a chat stands."""

    async def raw_rows(self, chat_id: str) -> Rows:
        """Return all rows that belong to a chat, by table, as they are stored."""

    async def chat_ids(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        """Return up to `limit` chats in the order of their creation, readable or not: the number and id of each.

        Only those whose number is above `after`.
        """

    async def orphans(self) -> list[IntegrityIssue]:
        """Return an issue for each table and id whose rows belong to no chat."""

    async def lease_expiry(self, chat_id: str) -> Expiry | None:
        """Return when the chat's lease runs out, with the database's time; `None` without one."""

    async def rest(self, chat_id: str) -> PartialRead:
        """Return what can be read of where a chat stands, and every issue that was found; a sound chat has none."""

    async def head(self, chat_id: str) -> tuple[int, str]:
        """Return a chat's version and the hash of its last record."""

    async def chats(
        self,
        *,
        state: ChatState | None,
        limit: int,
        after: str | None,
        awaiting: Answerer | None = None,
        **fields: Any,
    ) -> list[Facts | PartialRead]:
        """Return up to `limit` chats, newest first, that were created before the chat `after`.

        `fields` are values of `QUERIED` fields that the chats must have; `None` is any.

        `awaiting` wants those in `requires_action` that the client, or subagents, have to answer; archived ones take no
        answer, and are left out. A chat that cannot be read is returned as what is left of it.
        """

    async def waiting_since(self) -> Waiting:
        """Return since when the longest waiting chat of each agent is in `pending`, archived ones apart.

        Agents for whose chats no worker is wanted are left out.
        """

    async def awaiting_subagents(self, *, after: str, limit: int) -> list[str]:
        """Return up to `limit` chats that wait for subagents and are not archived, oldest first.

        Those that were created after the chat `after`; if there is no such chat, from the first on.
        """

    async def ids(self, *, prefix: str, limit: int, owner: str | None = None) -> list[str]:
        """Return up to `limit` ids that begin with `prefix`, the most recent change of state first.

        Of all chats, or of an owner's. Chats that cannot be read are included.
        """

    async def history(
        self, chat_id: str, *, at_version: int | None = None, after: int = 0, size: int | None = None
    ) -> list[Message]:
        """Return the messages that are not cut, by position, of every audience: now, or as of a version.

        Only those whose position is above `after`: with `size` the first, at least one, of about so many bytes.
        """

    async def snapshot(self, chat_id: str, *, size: int | None = None) -> Snapshot:
        """Return where a chat stands, its history and the shown parts of the attempt under way, all of one moment.

        With `size` only the first messages of the history, of about so many bytes.
        """

    async def prompt(self, chat_id: str) -> list[Message]:
        """Return what the model sees: all messages, or after a boundary the summary, carried and later messages.

        Results stand in the order of their calls. Messages for the user only are left out.
        """

    async def cut_at(self, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
        """Return a message of the history and what an edit of it would cut; `None` if it is not in the history."""

    async def calls(self, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
        """Return the calls of these ids that the chat has ever had, by id."""

    async def receipt(self, chat_id: str, client_id: str) -> RecordReceipt | None:
        """Return the receipt of a message that was accepted under `client_id`."""

    async def events(self, chat_id: str, *, after: int, limit: int) -> EventPage:
        """Return events with a number above `after`, in order: at most `limit`, and about `PAGE_BYTES`."""

    async def shown(self, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
        """Return the parts of an attempt that subscribers were shown, in order."""

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        """Return the chat's audit records, in order of version."""

    async def forks(self, chat_id: str) -> list[str]:
        """Return the chats that began with this one's history, and those that began with theirs."""

    async def children(self, chat_id: str) -> list[str]:
        """Return the chats whose parent is this one and that are no forks of it."""

    async def scrub(self) -> bool:
        """Remove erased text from the database's files; return whether they are free of it.

        It is no error if they are not: a reader of an older snapshot may block it, the database may keep old rows, or
        be too large to be written anew while others wait.
        """

    async def rows(self, chat_id: str) -> ChatRows:
        """Return the rows of a chat as they are, all seen at one moment, for a check."""

    async def ledger(self, chat_id: str) -> list[RecordUsage]:
        """Return every model call of the chat with its usage, in order."""

    async def holders(self) -> frozenset[str]:
        """Return the workers that hold a lease, run out or not."""

    async def overdue(self, *, limit: int) -> Overdue:
        """Return what has run out by the database's clock."""

    async def rested(self, *, archived: bool, seconds: float, limit: int) -> list[str]:
        """Return up to `limit` resting chats, archived or not, unchanged for `seconds` or longer, the longest first.

        By the database's clock. Chats that cannot be read are included.
        """

    # Noticing

    def attend(self, worker: str) -> None:
        """Let other processes see, from the next `watch` on and for as long as it lasts, that `worker` lives.

        Not every store can do this; closing the store removes the name.
        """

    async def gone(self, workers: Collection[str]) -> frozenset[str]:
        """Return those of the workers that attended and whose processes have died, as far as the store knows.

        A worker that never attended is not included, nor one whose connection was cut and made again. A mistake does no
        harm: a worker that is wrongly thought dead loses its leases, and its tokens let it write nothing.
        """

    def watch(self) -> AsyncIterator[str | None]:
        """Yield a notification whenever another connection may have changed a chat: its id, or `None` for "some chat".

        The first is `None` and comes as soon as later changes are noticed: some may have been missed before.
        A notification may be lost or mean nothing: the receiver reads the database to find out.
        """
