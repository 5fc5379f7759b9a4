"""What can be asked of a store: the reads of `ChatStore`, and what they return."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.chat_rows import ChatRows, Rows
from turnwise.persistence.fleet import Fleet, LedgerPage, Oldest, StateCount
from turnwise.persistence.list_filter import ListFilter
from turnwise.persistence.shares import AtWork
from turnwise.persistence.stored_chat import IntegrityIssue, PartialRead
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.arguments import Cut
from turnwise.states.budgets import StoredBudget
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import Answerer, ChatState, StopReason
from turnwise.states.values.values import Value
from turnwise.states.writes import RecordReceipt, RecordUsage


class Overdue(msgspec.Struct, frozen=True):
    """What a worker's sweep finds: what has run out, what is due, and strays. Each list keeps to the limit."""

    leases: tuple[tuple[str, int], ...] = ()
    """Chats whose lease has run out, each with its token."""
    deadlines: tuple[str, ...] = ()
    """Chats in `requires_action`, not archived, with an open call whose deadline has passed."""
    strays: tuple[str, ...] = ()
    """Chats in a state that the table does not know."""
    at: datetime | None = None
    """The database server's time of the search; `None` if the store uses this machine's clock."""
    to_wake: tuple[str, ...] = ()
    """Chats with a scheduled message that is due."""


class Expiry(msgspec.Struct, frozen=True):
    """When a lease runs out."""

    expires: datetime
    now: datetime
    """The time by the clock that counts there, when this was asked."""

    @property
    def is_over(self) -> bool:
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


class Numbers(msgspec.Struct, frozen=True):
    """Which numbers of commits can be seen, and whether lower ones may still come.

    Every commit that changes or deletes a chat has a number, and later commits of a chat have higher ones. Commits of
    different chats may be seen in another order than that of their numbers.
    """

    last: int
    """The highest number that can be seen."""
    oldest: int
    """The id of the oldest transaction that is under way; later ones have higher ids."""
    following: int
    """The id that the next transaction gets. Once `oldest` has come so far, all up to `last` are seen, or never are."""


class StoredChange(msgspec.Struct, frozen=True):
    """A chat that was changed or deleted, as it stands."""

    number: int
    """The number of the last commit that changed it."""
    chat_id: str
    chat: Facts | PartialRead | None
    """`None` for a chat that was deleted, or is just being: then its deletion follows, under a higher number."""
    whose: str | None
    """Of a deleted chat: what proves its owner (`mark_of`)."""

    @property
    def owner(self) -> str | None:
        facts = self.chat.facts if isinstance(self.chat, PartialRead) else self.chat
        return None if facts is None else facts.profile.owner


class ChangedEvent(msgspec.Struct, frozen=True):
    """An event that a numbered commit stored."""

    number: int
    seq: int
    event: Event | ChatUnreadable
    """The error if it cannot be read."""


class ConsumerPosition(msgspec.Struct, frozen=True):
    """The lease of a consumer."""

    position: int
    """Up to this number of a commit every event was delivered, or set aside."""
    token: int


class Consumer(Value, frozen=True, kw_only=True):
    """A durable consumer of the events of all chats."""

    name: str
    """The consumer's name."""
    position: int
    """The number of a commit: up to it every event was delivered, or set aside."""
    delivering: bool
    """Whether a process delivers for it, or did until its lease runs out."""
    undelivered: int
    """How many events are set aside."""


class Undelivered(Value, frozen=True, kw_only=True):
    """An event that a consumer's handler did not take: `deliver_again` gives it to the handler once more."""

    chat_id: str
    """The chat of the event."""
    seq: int
    """The number of the event."""
    error: str
    """Why the handler did not accept it."""
    at: datetime | None
    """When it was tried last; `None` if that cannot be read."""
    due: bool
    """Whether it is about to be delivered again."""


PAGE_BYTES: Final = 1_048_576
"""A page of what a store has many of ends with the item that brings it to so many bytes."""


class EventPage(list[Event]):
    """Events in order; `more` says that others follow, and the page was full."""

    more = False


class ReadableStore(Protocol):
    """Answers questions about chats, as `ChatStore` promises."""

    async def tombstone(self, chat_id: str, /) -> Tombstone | None:
        """Return the tombstone of a deleted chat; `None` if no chat of that id was deleted."""

    async def deleted(self, chat_ids: Collection[str]) -> frozenset[str]:
        """Return those of the chats that were deleted; forget them, and any other that this store remembers."""

    async def facts(self, chat_id: str, /) -> Facts:
        """Return the facts of a chat."""

    async def raw_rows(self, chat_id: str, /) -> Rows:
        """Return all rows that belong to a chat, by table, as they are stored."""

    async def chat_ids(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        """Return up to `limit` chats in the order of their creation, readable or not: the number and id of each.

        Only those whose number is above `after`.
        """

    async def orphans(self) -> list[IntegrityIssue]:
        """Return an issue for each table and id whose rows belong to no chat, and each unreadable budget."""

    async def lease_expiry(self, chat_id: str, /) -> Expiry | None:
        """Return when the chat's lease runs out, with the database's time; `None` without one."""

    async def rest(self, chat_id: str, /) -> PartialRead:
        """Return what can be read of where a chat stands, and every issue that was found; a sound chat has none."""

    async def head(self, chat_id: str, /) -> tuple[int, str]:
        """Return a chat's version and the hash of its last record."""

    async def chats(
        self,
        *,
        state: ChatState | None,
        limit: int,
        after: str | None,
        awaiting: Answerer | None = None,
        archived: bool | None = None,
        wanted: ListFilter | None = None,
        **fields: Any,
    ) -> list[Facts | PartialRead]:
        """Return up to `limit` chats, newest first, that were created before the chat `after`.

        `fields` are values of `QUERIED` fields that the chats must have; `None` is any.

        Those that are not `wanted` may be left out, or not: the caller checks.

        `awaiting` wants those in `requires_action` that the client, or subagents, have to answer; archived ones take no
        answer, and are left out. A chat that cannot be read is returned as what is left of it.
        """

    async def waiting_since(self) -> Waiting:
        """Return since when the longest waiting chat of each agent is in `pending`, archived ones apart.

        Agents for whose chats no worker is wanted are left out.
        """

    async def at_work(self) -> list[AtWork]:
        """Return how many chats of a key, agent and model each worker holds, those apart that settle an interrupt."""

    async def count_states(self, *, owner: str | None = None) -> dict[str, StateCount]:
        """Return how many chats are in each state that there is, of all or of an owner."""

    async def oldest(self) -> Oldest:
        """Return since when the oldest chats wait for an action, and are worked on."""

    async def fleet(self, *, limit: int) -> Fleet:
        """Return the workers that have reported, and up to `limit` chats that any hold."""

    async def usage_page(self, *, after: tuple[int, int, int], owner: str | None, limit: int) -> LedgerPage:
        """Return up to `limit` model calls of all chats, or of an owner's, behind the place of an earlier page.

        The first place is `(0, 0, -1)`.
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
        self, chat_id: str, /, *, at_version: int | None = None, after: int = 0, size: int | None = None
    ) -> list[Message]:
        """Return the messages that are not cut, by position, of every audience: now, or as of a version.

        Only those whose position is above `after`: with `size` the first, at least one, of about so many bytes.
        """

    async def snapshot(self, chat_id: str, /, *, size: int | None = None) -> Snapshot:
        """Return where a chat stands, its history and the shown parts of the attempt under way, all of one moment.

        With `size` only the first messages of the history, of about so many bytes.
        """

    async def prompt(self, chat_id: str, /) -> list[Message]:
        """Return what the model sees: all messages, or after a boundary the summary, carried and later messages.

        Results stand in the order of their calls. Messages for the user only are left out.
        """

    async def cut_at(self, chat_id: str, /, message_id: str) -> tuple[Message, Cut] | None:
        """Return a message of the history and what an edit of it would cut; `None` if it is not in the history."""

    async def calls(self, chat_id: str, /, call_ids: Sequence[str]) -> dict[str, ToolCall]:
        """Return the calls of these ids that the chat has ever had, by id."""

    async def receipt(self, chat_id: str, /, client_id: str) -> RecordReceipt | None:
        """Return the receipt of a message that was accepted under `client_id`."""

    async def events(self, chat_id: str, /, *, after: int, limit: int) -> EventPage:
        """Return events with a number above `after`, in order: at most `limit`, and about `PAGE_BYTES`."""

    async def shown(self, chat_id: str, /, step: int, attempt: int) -> list[PartEvent]:
        """Return the parts of an attempt that subscribers were shown, in order."""

    async def audit(self, chat_id: str, /) -> list[AuditRecord]:
        """Return the chat's audit records, in order of version."""

    async def forks(self, chat_id: str, /) -> list[str]:
        """Return the chats that began with this one's history, and those that began with theirs."""

    async def children(self, chat_id: str, /) -> list[str]:
        """Return the chats whose parent is this one and that are no forks of it."""

    async def rows(self, chat_id: str, /) -> ChatRows:
        """Return the rows of a chat as they are, all seen at one moment, for a check."""

    async def ledger(self, chat_id: str, /) -> list[RecordUsage]:
        """Return every model call of the chat with its usage, in order."""

    async def budgets(self, *, keys: Sequence[str] | None, limit: int | None = None) -> list[StoredBudget]:
        """Return the budgets of these keys, or all or the first, in the order of their keys, as they stand now."""

    async def holders(self) -> frozenset[str]:
        """Return the workers that hold a lease, run out or not."""

    async def overdue(self, *, limit: int) -> Overdue:
        """Return leases and deadlines that have expired by the database's clock."""

    async def numbers(self) -> Numbers:
        """Return the last number that can be seen, and the transactions that may still commit a lower one."""

    async def changes(
        self, *, after: int, limit: int, seen: Collection[int] = (), owner: str | None = None
    ) -> list[StoredChange]:
        """Return up to `limit` chats whose last commit has a number above `after` and not among `seen`, by number.

        With `owner` only those of this owner; deleted ones of any.
        """

    async def change_numbers(self, *, after: int) -> frozenset[int]:
        """Return the numbers above `after` of the last commits of chats."""

    async def changed_events(
        self, chat_id: str, /, *, after: int, seq: int, kinds: Collection[str], limit: int
    ) -> list[ChangedEvent]:
        """Return up to `limit` events after number `seq`, stored by commits of numbers above `after`, in order.

        Of these `kinds`, or of all where there are none; never fleeting ones.
        """

    async def changed_event(self, chat_id: str, seq: int, /) -> ChangedEvent | None:
        """Return one event of a chat; `None` if there is none of that number."""

    async def consumers(self) -> list[Consumer]:
        """Return the consumers, by name."""

    async def undelivered(self, name: str, /, *, limit: int) -> list[Undelivered]:
        """Return up to `limit` events that a consumer could not handle, by chat and number."""

    async def due_again(self, name: str, /, *, limit: int) -> Sequence[tuple[str, int]]:
        """Return those of them that are to be delivered again: chat and number."""

    async def rested(self, *, archived: bool, seconds: float, limit: int) -> list[str]:
        """Return up to `limit` resting chats, archived or not, unchanged for `seconds` or longer, the longest first.

        By the database's clock. Chats that cannot be read are included.
        """
