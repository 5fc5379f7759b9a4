"""The interface of a store. `turnwise.testing.conformance` tests it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.blobs.protocol import HeldFiles
from turnwise.persistence.fleet import WorkerReport
from turnwise.persistence.reading import ConsumerPosition, ReadableStore
from turnwise.persistence.shares import Shares
from turnwise.persistence.stored_chat import PartialRead
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.budgets import StoredBudget
from turnwise.states.decide import Decision
from turnwise.states.errors import StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState

Plan = Callable[[Facts, datetime], Sequence[Decision]]
"""Decides, inside a transaction, what happens to a chat: given its facts and the database's time (UTC).

The decisions follow one another, each made on the facts that the one before left. An empty sequence means that there is
nothing to do. A plan is pure: a store may call it in another thread, and again after a conflict. An error that it
raises ends the transaction, writes nothing, and reaches the caller. Of a chat that spends budgets it gets their `Funds`
as a third argument.
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


class Pruned(msgspec.Struct, frozen=True):
    """The result of one call of `prune`."""

    parts: int
    """How many parts it deleted."""
    after: str | None
    """Where the next call goes on: after this chat; `None` after the last chat."""


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


class ChatStore(HeldFiles, ReadableStore, Protocol):
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

        `parent` is the chat whose words the plan repeats, and the version at which they were read. An erasure or a
        deletion of it either comes before and is noticed here, or finds this chat among its `forks` or `children`.
        With `unchanged` so does any change of it.

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
        facts. If it decides something, every unreadable row is moved to `quarantine` as it was stored, readable rows or
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

    async def claim(self, plan: Plan, *, runs: Runs, limit: int, shares: Shares | None = None) -> list[Committed]:
        """Apply `plan` to up to `limit` chats that want a worker, longest waiting first.

        With `shares` those to settle come first, without caps. Then it goes round the keys of those in `pending`,
        the longest waiting of a key first, and leaves out chats that would exceed a cap. Claims with caps, of all
        processes, come one after another.

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

    async def report_worker(self, worker: str, report: WorkerReport, /) -> None:
        """Store the report of a worker, and that it was seen now."""

    async def forget_worker(self, worker: str, /) -> None:
        """Delete the report of a worker that stops."""

    async def hold_consumer(
        self, name: str, worker: str, /, *, seconds: float, from_now: bool
    ) -> ConsumerPosition | None:
        """Let a worker deliver for a consumer for so long, if no other does; else return `None`.

        A consumer that is new begins with the first commit of all, or with the next one.
        """

    async def advance_consumer(self, name: str, worker: str, token: int, /, *, position: int, seconds: float) -> bool:
        """Store how far a consumer is, and prolong the lease; return whether the worker still has it."""

    async def release_consumer(self, name: str, worker: str, token: int, /) -> None:
        """End the lease, if the worker still has it."""

    async def drop_consumer(self, name: str, /) -> bool:
        """Forget a consumer for which no worker delivers; return whether it was forgotten."""

    async def set_aside(self, name: str, chat_id: str, seq: int, error: str, /) -> None:
        """Note an event that a consumer could not handle; nothing, if the chat was deleted."""

    async def deliver_again(self, name: str, /, *, chat_id: str | None, seq: int | None) -> int:
        """Mark events that were set aside as due again: all, those of a chat, or one; return how many."""

    async def delivered_after_all(self, name: str, chat_id: str, seq: int, /) -> None:
        """Forget an event that was set aside."""

    async def change_budget(
        self, key: str, change: Callable[[StoredBudget | None, datetime], StoredBudget | None]
    ) -> StoredBudget | None:
        """Change, make or remove a budget in one transaction, as `change` decides on the stored one and the time."""

    async def draw(self, name: str, *, wanted: int, per_second: float, burst: int) -> tuple[int, float]:
        """Take up to `wanted` out of a bucket of that name, and return how many, and what is left.

        A bucket holds `burst` at first and at most, and fills by `per_second`. All processes draw from the same one;
        a full one is forgotten.
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

        `StepFacts.over_before` says which replies are over; the parts of any other stay, however old they are.

        One call looks at up to `limit` chats, those whose id comes after `after`, and deletes up to `limit` parts, so
        that other work never waits for it for long.
        """

    async def scrub(self) -> bool:
        """Remove erased text from the database's files; return whether they are free of it.

        It is no error if they are not: a reader of an older snapshot may block it, the database may keep old rows, or
        be too large to be written anew while others wait.
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
