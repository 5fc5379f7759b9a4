"""A commit: what the decisions on a chat put into the tables, before a store spells it in its SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from turnwise.persistence.audit.digests import (
    WriteRecord,
    digest_of_chat_row,
    digest_of_events,
    salt_of_events,
    salt_of_facts,
)
from turnwise.persistence.audit.record import GENESIS, Entry, entry_of
from turnwise.persistence.erasure import erases
from turnwise.persistence.event_rows import EventRow, rows_of
from turnwise.persistence.protocol import Committed, Plan
from turnwise.persistence.rows import (
    CALLS,
    FactsRow,
    columns_of_call,
    columns_of_message,
    micros_of,
    numbered,
    row_of,
)
from turnwise.states import writes as w
from turnwise.states.budgets import Funds
from turnwise.states.decide import Decision
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import FORMAT, Part, files_in
from turnwise.states.names import ChatState

Row = dict[str, Any]


class RequiredLease(NamedTuple):
    """How a running job needs its chat to be held."""

    token: int
    worker: str | None
    """`None` for any worker."""
    state: ChatState

    def is_so(self, token: object, worker: object, state: object) -> bool:
        """Whether the chat is held so, by its columns."""
        return (token, state) == (self.token, self.state) and self.worker in (None, worker)


class CachedChat(msgspec.Struct, frozen=True):
    """A chat as it was read, or as a commit of this process has left it."""

    facts: Facts
    head: str
    """The hash of its last audit record."""
    at: datetime
    """When it was read, by the store's clock."""
    body: str = ""
    """The body of the facts, as it is stored."""
    budgeted: bool = False
    """Whether the chat spends budgets: then it is read, with them, in the transaction that changes it."""

    @property
    def state(self) -> str:
        return self.facts.state_as_stored

    @property
    def token(self) -> int | None:
        return self.facts.lease.token if self.facts.lease else None

    @property
    def without_decisions(self) -> Committed:
        return Committed(self.facts, self.facts, (), (), self.at)

    @property
    def mark(self) -> tuple[int, str, int | None, str]:
        """The columns by which, without parsing any facts, a stored chat is compared with this."""
        return (self.facts.version, self.state, self.token, self.body)


class Commit(msgspec.Struct, frozen=True):
    """What one chat's commit puts into each table."""

    before: CachedChat
    """The chat as the decisions were made on it: the commit is stored only if it still stands there."""
    after: CachedChat
    """The chat as the commit leaves it."""
    row: FactsRow
    since: datetime
    """When the state last changed."""
    salt: str
    """Of the digest of the chat's own row."""
    tables: Tables
    """The rows for the other tables, but those of events."""
    event_rows: list[EventRow]
    committed: Committed
    """What the caller learns once the commit is stored."""
    funds: Funds | None = None
    """The budgets that the chat spends, as the commit leaves them; without them it is stored only if there are none."""

    @property
    def chat_id(self) -> str:
        return self.row.id

    @property
    def rested(self) -> datetime | None:
        """When the chat was changed last; `None` while it works, or something is scheduled: it is not abandoned."""
        return self.before.at if self.after.facts.resting and not self.after.facts.schedules else None

    @property
    def erasing(self) -> bool:
        return erasing(self.committed.decisions)


def blank_chat(chat_id: str, at: datetime) -> CachedChat:
    return CachedChat(Facts(chat_id=chat_id, profile=Profile(created_at=at)), GENESIS, at)


class Decided(NamedTuple):
    """What a plan has decided on a chat, and the budgets that it was given."""

    current: CachedChat
    decisions: tuple[Decision, ...]
    funds: Funds | None


def decisions_on(current: CachedChat, plan: Plan, funds: Funds | None) -> tuple[Decision, ...]:
    """Return what a plan decides on a chat; it gets the budgets that the chat spends, if there are any."""
    given = (current.facts, current.at) if funds is None else (current.facts, current.at, funds)
    return tuple(cast("Callable[..., Sequence[Decision]]", plan)(*given))


def decide(current: CachedChat, plan: Plan, funds: Funds | None) -> Decided:
    return Decided(current, decisions_on(current, plan, funds), funds)


def erasing(decisions: Iterable[Decision]) -> bool:
    return any(erases(decision.writes) for decision in decisions)


def commit_of(
    before: CachedChat,
    decisions: tuple[Decision, ...],
    shown: Sequence[PartEvent],
    *,
    restated: Sequence[WriteRecord] = (),
    funds: Funds | None = None,
) -> Commit:
    """Return the rows that commit the decisions.

    Args:
        before: the chat as the decisions were made on it.
        decisions: at least one.
        shown: part events that come before those of the decisions.
        restated: the digests that an erasure among the decisions states anew.
        funds: the budgets that the chat spends, as the decisions were made on them.
    """
    chat_id, head, at = before.facts.chat_id, before.head, before.at
    tables, unnumbered = Tables(chat_id, at), list[Event](shown)
    for decision in decisions:
        for number, write in enumerate(decision.writes):
            tables.add(write, decision.facts.version, number)
        if funds is not None:
            funds = funds.after(chat_id, decision.writes)
        unnumbered.extend(decision.events)
    last, seq_before = decisions[-1], before.facts.last_seq
    events = numbered(unnumbered, chat_id=chat_id, after=seq_before, at=at)
    event_rows = rows_of(events)
    bound = [row.digested_fields for row in event_rows]
    facts = last.facts.with_last_seq(seq_before + len(events))
    row, since, salt = row_of(facts), facts.since or at, salt_of_facts(last)
    row_digests = [
        *restated,
        digest_of_chat_row(row, since=micros_of(since), salt=salt),
        *digest_of_events(seq_before + 1, facts.last_seq, bound, salt=salt_of_events(last)),
    ]
    for decision in decisions:
        entry = entry_of(decision, prev=head, at=at, row_digests=row_digests if decision is last else ())
        head = entry.hash
        tables.entries.append(entry)
    after = CachedChat(facts, head, at, row.facts, budgeted=funds is not None)
    committed = Committed(before.facts, facts, decisions, events, at)
    return Commit(before, after, row, since, salt, tables, event_rows, committed, funds)


def commit_on_cached(cached: CachedChat, plan: Plan, shown: Sequence[PartEvent], at: datetime) -> Commit | None:
    """Return the commit of a plan on a cached chat; `None` if the chat must be read: the cache may be out of date."""
    current = replace(cached, at=at)
    try:
        decisions = tuple(plan(current.facts, at))
    except Exception:  # noqa: BLE001 - only facts that were read may refuse a caller
        return None
    return None if not decisions or erasing(decisions) else commit_of(current, decisions, shown)


class Tables:
    """Collects the rows of the writes so far. Times are left as they are."""

    def __init__(self, chat_id: str, at: datetime) -> None:
        self._chat_id = chat_id
        self._at = at
        self.rows: dict[str, list[Row]] = {}
        """Rows to insert, by table; `cuts` holds the positions from which on the history was cut."""
        self.calls: dict[str, Row] = {}
        """Rows to put, by the call's id."""
        self.queue: dict[str, Row | None] = {}
        """Rows to put, by the message's id, without a rank where it stays; `None` to drop."""
        self._ranks: dict[str, int] = {}
        """New ranks of messages whose rows are otherwise left as they are."""
        self.profile: w.PutProfile | None = None
        self.lease: w.GrantLease | None = None
        self.entries: list[Entry] = []

    def put(self, table: str, **row: Any) -> None:
        self.rows.setdefault(table, []).append({"chat_id": self._chat_id, **row})

    def add(self, write: w.Write, version: int, number: int) -> None:  # noqa: C901, PLR0912 - one case per kind of write
        """Add the rows of a write: the one of that number in the decision that makes the version."""
        match write:  # the most frequent first
            case w.InsertMessage():
                own = {"salt": write.salt, "format": FORMAT, "body": write.body}
                self.put("messages", **columns_of_message(write.message), **own, added=version, cut=None)
                self._note_files(write.message.parts)
            case w.PutCall():
                own = {"chat_id": self._chat_id, "body": CALLS.dump(write.call)}
                self.calls[write.call.call_id] = columns_of_call(write.call) | own
            case w.RecordUsage():
                self.put("usage", version=version, number=number, body=write.body)
            case w.GrantLease():
                self.lease = write
            case w.DropLease() | w.NoteDeadline() | w.NoteReason() | w.NoteSubagent() | w.NoteFallback() | w.Reserve():
                pass  # lease, deadline, reason, failures and reservation stand in other rows, the answer in the log
            case w.PutSchedule():
                self._note_files(write.message.parts)
            case w.FireSchedule() | w.DropSchedule():
                pass  # schedules stand in the facts
            case w.PutProfile():
                self.profile = write
            case w.CutHistory():
                self.put("cuts", position=write.position, version=version)
                self._cut(write.position, version)
            case w.InsertBoundary():
                own = {"reason": write.reason, "step": write.step, "carried": write.carried}
                self.put("boundaries", position=write.position, **own, cut=None)
            case w.PutQueued():
                before = self.queue.get(write.id) or {"rank": self._ranks.pop(write.id, None)}
                rank = before["rank"] if write.rank is None else write.rank
                own = {"rank": rank, "body": write.body, "salt": write.salt}
                self.queue[write.id] = {"chat_id": self._chat_id, "id": write.id, **own}
                self._note_files(write.queued.parts)
            case w.MoveQueued():
                self._rank(write.order)
            case w.DropQueued():
                self.queue[write.id] = None
                self._ranks.pop(write.id, None)
            case w.RecordReceipt():
                self.put("receipts", client_id=write.client_id, body=write.body)
            case w.EraseEdits() | w.EraseMessage() | w.EraseText():
                pass  # `erasure` blanks what is erased

    def _note_files(self, parts: Iterable[Part]) -> None:
        """Note the blobs that parts of a message refer to: from now on the chat holds them."""
        for file in files_in(parts):
            if file.blob is not None:
                self.put("chat_files", digest=file.blob, size=file.size or 0, at=micros_of(self._at))

    def _rank(self, order: Iterable[str]) -> None:
        """Rank the messages of the queue again; their bodies are not written again."""
        for rank, name in enumerate(order, start=1):
            row = self.queue.get(name)
            if row is None:
                self._ranks[name] = rank
            else:
                row["rank"] = rank

    def _cut(self, position: int, version: int) -> None:
        for row in (*self.rows.get("messages", ()), *self.rows.get("boundaries", ())):
            if row["position"] >= position and row["cut"] is None:
                row["cut"] = version

    @property
    def queued(self) -> list[Row]:
        return [row for row in self.queue.values() if row is not None]

    @property
    def ranked(self) -> list[Row]:
        """The new ranks of queued messages that are otherwise left as they are."""
        return [{"chat_id": self._chat_id, "id": name, "rank": rank} for name, rank in self._ranks.items()]

    @property
    def dropped(self) -> list[Row]:
        return [{"chat_id": self._chat_id, "id": name} for name, row in self.queue.items() if row is None]
