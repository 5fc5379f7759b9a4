"""What a store promises, in the words of the domain. Every store keeps all of it; `conformance` proves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.repair.raw_chat import Rows
from turnwise.persistence.stored_chat import Flaw, Salvaged
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.decide import Decision
from turnwise.states.errors import StoreError
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import ChatState, StopReason
from turnwise.states.writes import RecordReceipt, RecordUsage

Plan = Callable[[Facts, datetime], Sequence[Decision]]
"""Decides, inside a transaction, what happens to a chat: given its facts and the database's time (UTC).

The decisions follow one another, each made on the facts the one before left. None means: nothing to do.
A plan is pure: a store may call it in another thread, and again after a conflict. What it raises ends the
transaction, writes nothing, and reaches the caller.
"""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a transaction did to one chat."""

    before: Facts
    """The facts as found: what the first decision was made on."""
    facts: Facts
    """The facts afterwards; as found, where nothing was decided."""
    decisions: tuple[Decision, ...]
    events: tuple[Event, ...]
    """The events as stored: with chat, sequence number and time."""
    at: datetime
    """The time that was decided by."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """What the clock has brought about, for a worker's sweep. Each list is bounded by the limit asked for."""

    leases: tuple[tuple[str, int], ...] = ()
    """Chats, with the token, whose lease ran out."""
    deadlines: tuple[str, ...] = ()
    """Chats in `requires_action`, not archived, with an open call whose deadline has passed."""
    strays: tuple[str, ...] = ()
    """Chats in a state that the table does not know."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A chat at one moment."""

    facts: Facts
    history: tuple[Message, ...]
    """The messages that are not cut, by position, of every audience."""
    shown: tuple[PartEvent, ...]
    """What subscribers were shown of the attempt under way, in order."""
    stop_reason: StopReason | None
    """Why the last turn that ended did so, as its `turn_finished` told."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a call of `prune` did."""

    parts: int
    """How many parts it deleted."""
    after: str | None
    """The chat to go on after; `None` if there is none left to look at."""


class DuplicateReceipt(StoreError):
    """A message of this `client_id` was accepted before. Nothing was written; the first receipt stands."""

    def __init__(self, chat_id: str, client_id: str) -> None:
        self.chat_id = chat_id
        self.client_id = client_id
        super().__init__(
            f"chat {chat_id!r} has accepted a message of client_id {client_id!r} before; nothing was written"
        )


class ChatStore(Protocol):
    """Keeps chats. One `change` is one transaction: all of it is durable when the call returns, or none of it is.

    Whatever a method raises that is not a `TurnwiseError` of the caller's own plan is a `StoreError`.

    A chat is one failure domain. Whatever is asked of a chat of which something stored cannot be read raises
    `ChatUnreadable`; what is asked of many chats goes on with the others.

    Every method is safe to call from many tasks at once. A cancelled `change`, `create`, `claim` or `journal`
    either never happened or is complete; it is never left half done.
    """

    async def open(self) -> None:
        """Open the database, creating or migrating it.

        Raises:
            StoreError: the database is another program's, or of a newer version, or cannot be opened.
        """
        ...

    async def close(self) -> None:
        """Finish what was accepted and close. Closing twice is harmless."""
        ...

    # Changing

    async def create(self, chat_id: str, plan: Plan) -> Committed:
        """Create a chat: `plan` gets blank facts of version 0.

        Raises:
            StoreError: the id is taken.
        """
        ...

    async def change(self, chat_id: str, plan: Plan, *, shown: Sequence[PartEvent] = ()) -> Committed:
        """Change a chat in one transaction, as `plan` decides on its facts.

        Every decision's writes are done, one audit record is appended and the version raised by one for each, the
        events are stored. `shown` are part events that precede the decisions' own; they are stored only if there is
        a decision.

        Raises:
            ChatNotFound: there is no such chat.
            DuplicateReceipt: a `RecordReceipt` names a `client_id` that has one.
        """
        ...

    async def repair(self, chat_id: str, plan: Plan) -> Committed:
        """Put aside what cannot be read of a chat, and change what is left, in one transaction.

        `plan` gets the rest: facts in which defaults stand for what cannot be read, and which stand in an unknown
        state; of a sound chat, its facts. If it decides something, every row that cannot be read is kept in
        `quarantine` as it was stored, readable rows or marks take its place, and the decisions are done as in `change`.
        The audit log is left as it is.

        Raises:
            ChatNotFound: there is no such chat.
        """
        ...

    async def claim(self, plan: Plan, *, limit: int) -> list[Committed]:
        """Apply `plan` to up to `limit` chats that want a worker, longest waiting first.

        Those are the chats in `pending`, and in `interrupted` unsettled, without a lease, not archived. A plan
        that raises for one chat leaves that chat alone and does not keep the others from being claimed.
        Two callers never claim the same chat.
        """
        ...

    async def journal(self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event]) -> tuple[Event, ...]:
        """Store events of a running job, without a transition, and return them as stored.

        With nothing to show it writes nothing and reads but a row: it tells whether the job may go on.

        Raises:
            StaleLease: the chat is not in `state` any more, or not held under `token`. Nothing is stored.
        """
        ...

    async def renew(self, worker: str, seconds: float) -> Mapping[str, int]:
        """Let every lease of `worker` last `seconds` from now, and return the tokens it holds, by chat.

        0 ends them: for a worker that is known to be dead.

        A lease that ran out and that nobody has taken is renewed too: the token, not the time, is the fence.
        """
        ...

    async def prune(self, *, keep: float, after: str, limit: int) -> Pruned:
        """Delete the parts of replies that are over, shown at least `keep` seconds ago; their numbers are then skipped.

        A reply is over as `StepFacts.over_before` says; what is shown of any other is kept, however old it is.

        It looks at up to `limit` chats, those whose id comes after `after`, and deletes up to `limit` parts, so that
        nobody waits for it for long.
        """
        ...

    # Reading

    async def facts(self, chat_id: str) -> Facts:
        """Return where a chat stands.

        Raises:
            ChatNotFound: there is no such chat.
        """
        ...

    async def raw_rows(self, chat_id: str) -> Rows:
        """Return all rows that belong to a chat, by table, as they are stored: see `examination`.

        Raises:
            ChatNotFound: there is no such chat.
        """
        ...

    async def chat_ids(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        """Return up to `limit` chats in the order of their creation, readable or not: the number and id of each.

        Only those whose number is above `after`.
        """
        ...

    async def orphans(self) -> list[Flaw]:
        """Return where there are rows that belong to no chat."""
        ...

    async def lease_expiry(self, chat_id: str) -> datetime | None:
        """Return when the chat's lease runs out; `None` without one."""
        ...

    async def rest(self, chat_id: str) -> Salvaged:
        """Return what can be read of where a chat stands, and every flaw of it that was found: none of a sound chat.

        Raises:
            ChatNotFound: there is no such chat.
        """
        ...

    async def chats(
        self, *, owner: str | None, state: ChatState | None, limit: int, after: str | None
    ) -> list[Facts | Salvaged]:
        """Return up to `limit` chats, newest first, that were created before the chat `after`.

        Of a chat that cannot be read it is the rest.
        """
        ...

    async def ids(self, *, prefix: str, limit: int) -> list[str]:
        """Return up to `limit` ids that begin with `prefix`: those first whose state changed last.

        It reads no more of a chat than that: one that cannot be read is among them, too.
        """
        ...

    async def history(self, chat_id: str, *, at_version: int | None = None, after: int = 0) -> list[Message]:
        """Return the messages that are not cut, by position: of every audience, now or as of a version.

        Only those whose position is above `after`.
        """
        ...

    async def snapshot(self, chat_id: str) -> Snapshot:
        """Return where a chat stands, its history and what is shown of the attempt under way, all of one moment.

        Raises:
            ChatNotFound: there is no such chat.
        """
        ...

    async def prompt(self, chat_id: str) -> list[Message]:
        """Return what the model sees: without boundary all of it, else summary, carried messages, what came after.

        Results stand in the order of their calls. Messages for the user only are left out.
        """
        ...

    async def cut_at(self, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
        """Return a message that is in the history, and what an edit of it would cut; `None` if it is not there."""
        ...

    async def calls(self, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
        """Return those of the calls that the chat has ever had, by id."""
        ...

    async def receipt(self, chat_id: str, client_id: str) -> RecordReceipt | None:
        """Return the receipt of a message that was accepted under `client_id`."""
        ...

    async def events(self, chat_id: str, *, after: int, limit: int) -> list[Event]:
        """Return up to `limit` events with a number above `after`, in order."""
        ...

    async def shown(self, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
        """Return the parts that subscribers were shown of an attempt, in order."""
        ...

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        """Return the chat's audit records, in order of version."""
        ...

    async def forks(self, chat_id: str) -> list[str]:
        """Return the chats that began with this one's history."""
        ...

    async def scrub(self) -> bool:
        """Take what was erased out of the database's files; return whether they hold it no more.

        It is not an error if they do: who reads an older moment may be in the way, or the database keeps such things.
        """
        ...

    async def rows(self, chat_id: str) -> ChatRows:
        """Return the rows of a chat as they are, all seen at one moment, for a check.

        Raises:
            ChatNotFound: there is no such chat.
        """
        ...

    async def ledger(self, chat_id: str) -> list[RecordUsage]:
        """Return every model call of the chat with its usage, in order."""
        ...

    async def holders(self) -> frozenset[str]:
        """Return the workers that hold a lease, run out or not."""
        ...

    async def overdue(self, *, limit: int) -> Overdue:
        """Return what has run out by the database's clock."""
        ...

    # Noticing

    def attend(self, worker: str) -> None:
        """Let other processes see, from the next `watch` on and for as long as it lasts, that `worker` lives.

        Not every store can; closing the store takes the name away.
        """
        ...

    async def gone(self, workers: Collection[str]) -> frozenset[str]:
        """Return those of the workers that attended and whose processes have died, as far as the store can tell.

        A worker that never attended is not among them, nor one whose connection was merely cut and made again. Whoever
        acts on an error in this is stopped by the token: a worker that is thought dead and lives can write nothing.
        """
        ...

    def watch(self) -> AsyncIterator[str | None]:
        """Yield a hint whenever another connection may have changed a chat: its id, or `None` for "some chat".

        A hint may be lost or come for nothing: who is hinted at reads the database.
        """
        ...
