"""One commit as rows for PostgreSQL: what its decisions together put into each table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import resources
from typing import Any, Final

from turnwise.persistence.audit.asides import aside_of
from turnwise.persistence.audit.record import WriteRecord, entry_of
from turnwise.persistence.audit.row_digests import bond_of_events, bond_of_facts, fields_bound, salt_of_facts
from turnwise.persistence.rows import (
    CALLS,
    EVENTS,
    columns_of_call,
    columns_of_message,
    micros_of,
    numbered,
    row_of,
    unnumbered,
)
from turnwise.states import writes as w
from turnwise.states.decide import Decision
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import FORMAT

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Standing:
    """A chat as it was read."""

    facts: Facts
    head: str
    """The hash of its last audit record."""
    at: datetime
    """When it was read, by the store's clock."""
    body: str = ""
    """The body of the facts, as it is stored."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What one chat's commit puts into each table."""

    chat: _Row
    """The chat's new row, and the values that its old one must have."""
    tables: Mapping[str, Sequence[_Row]]
    """The rows for the other tables, by the parameter of `commit.sql` that takes them."""

    after: Standing
    """The chat as the commit leaves it."""

    @property
    def chat_id(self) -> str:
        """The id of the chat."""
        return self.after.facts.chat_id


PARAMETERS: Final = (
    "chats",
    "cuts",
    "messages",
    "boundaries",
    "calls",
    "queued",
    "dropped",
    "receipts",
    "usage",
    "audit",
    "events",
    "partial_events",
)
"""The parameters of `commit.sql`: JSON arrays of rows."""


def parameters_of(commits: Sequence[Commit]) -> list[str]:
    """Return the parameters of `commit.sql` that store the commits."""
    rest = PARAMETERS[1:]
    rows = [[commit.chat for commit in commits], *([row for c in commits for row in c.tables[name]] for name in rest)]
    return [json.dumps(table) for table in rows]


def statement(name: str, parameters: Sequence[str]) -> str:
    """Return the statement of that name, with its `:parameters` numbered in that order."""
    folder = resources.files("turnwise.persistence.postgres") / "statements"
    text = (folder / f"{name}.sql").read_text(encoding="utf-8")
    return re.sub(r"(?<!:):([a-z_]+)", lambda found: f"${parameters.index(found[1]) + 1}", text)


def commit_of(
    found: Standing, decisions: Sequence[Decision], shown: Sequence[PartEvent], *, restated: Sequence[WriteRecord] = ()
) -> tuple[Commit, tuple[Event, ...]]:
    """Return the rows that commit the decisions, and the events as they are stored.

    `restated` holds the digests that an erasure among them states anew.
    """
    chat_id, head, at = found.facts.chat_id, found.head, found.at
    tables, unnumbered = Tables(chat_id, at), list[Event](shown)
    for decision in decisions:
        for number, write in enumerate(decision.writes):
            tables.add(write, decision.facts.version, number)
        unnumbered.extend(decision.events)
    events = numbered(unnumbered, chat_id=chat_id, after=found.facts.last_seq, at=at)
    durable, partial = event_rows(events)
    last, before = decisions[-1], found.facts.last_seq
    facts = last.facts.with_last_seq(before + len(events))
    since, salt = micros_of(facts.since or at), aside_of(last).events
    bonds = [
        *restated,
        bond_of_facts(row_of(facts), since=since, salt=salt_of_facts(last)),
        *bond_of_events(before + 1, facts.last_seq, map(fields_bound, durable), salt=salt),
    ]
    for decision in decisions:
        entry = entry_of(decision, prev=head, at=at, whole=True, bonds=bonds if decision is last else ())
        head = entry.hash
        tables.put("audit", version=entry.version, body=entry.body, aside=entry.aside)
    chat = _chat_row(facts, at) | {
        "calls": None if facts.calls.are_those_of(found.facts.calls) else [call.call_id for call in facts.calls],
        "found_version": found.facts.version,
        "found_event_seq": found.facts.last_seq,
        "found_head": found.head,
        "found_state": found.facts.stored_state or found.facts.state.value,
        "found_token": found.facts.lease and found.facts.lease.token,
        "event_seq": facts.last_seq,
        "head": head,
        "salt": salt_of_facts(last),
        "expires": tables.expires and tables.expires.isoformat(),
        "profile": tables.profile and tables.profile.body,
        "profile_salt": tables.profile and tables.profile.salt,
    }
    rows = tables.rows() | {"events": durable, "partial_events": partial}
    return Commit(chat, rows, Standing(facts, head, at, chat["facts"])), events


def _chat_row(facts: Facts, at: datetime) -> _Row:
    row = row_of(facts)
    return {
        "chat_id": facts.chat_id,
        "state": row.state,
        "settled": row.settled,
        "archived": row.archived,
        "version": row.version,
        "since": (facts.since or at).isoformat(),
        "owner": facts.profile.owner,
        "worker": facts.lease and facts.lease.worker,
        "token": facts.lease and facts.lease.token,
        "facts": row.facts,
        "at": at.isoformat(),
    }


def event_rows(events: Iterable[Event]) -> tuple[list[_Row], list[_Row]]:
    """Return the rows of `events` and of `partial_events`, without their time."""
    durable: list[_Row] = []
    partial: list[_Row] = []
    for event in events:
        row: _Row = {"chat_id": event.chat_id, "seq": event.seq, "kind": event.kind, "body": body_of(event)}
        if isinstance(event, PartEvent):
            partial.append({**row, "step": event.step, "attempt": event.attempt})
        else:
            durable.append(row)
    return durable, partial


def body_of(event: Event) -> str:
    """Return an event as JSON, without what its columns hold."""
    return EVENTS.dump(unnumbered(event))


class Tables:
    """Collects the rows of the writes so far."""

    def __init__(self, chat_id: str, at: datetime) -> None:
        self._chat_id = chat_id
        self._at = at
        self._rows: dict[str, list[_Row]] = {name: [] for name in PARAMETERS[1:]}
        self.calls: dict[str, _Row] = {}
        self.queue: dict[str, _Row | None] = {}
        """The rows to put, by id; `None` to drop."""
        self.profile: w.PutProfile | None = None
        self.expires: datetime | None = None

    def put(self, table: str, **row: Any) -> None:
        """Add a row."""
        self._rows[table].append({"chat_id": self._chat_id, **row})

    def add(self, write: w.Write, version: int, number: int) -> None:  # noqa: C901 - one case per kind of write
        """Add the rows of a write: the one of that number in the decision that makes the version."""
        match write:
            case w.InsertMessage():
                own = {"digest": write.digest, "salt": write.salt, "format": FORMAT, "body": write.body}
                self.put("messages", **columns_of_message(write.message), **own, added=version, cut=None)
            case w.CutHistory():
                self.put("cuts", position=write.position, version=version)
                self._cut(write.position, version)
            case w.InsertBoundary():
                carried = {"step": write.step, "carried": write.carried}
                self.put("boundaries", position=write.position, reason=write.reason, **carried, cut=None)
            case w.PutCall():
                deadline = write.call.deadline and write.call.deadline.isoformat()
                own = {"deadline": deadline, "body": CALLS.dump(write.call)}
                self.calls[write.call.call_id] = columns_of_call(write.call) | own
            case w.PutQueued():
                before = self.queue.get(write.id) or {"rank": None}
                rank = before["rank"] if write.rank is None else write.rank
                self.queue[write.id] = {"rank": rank, "body": write.body, "salt": write.salt}
            case w.DropQueued():
                self.queue[write.queued_id] = None
            case w.GrantLease():
                self.expires = self._at + timedelta(seconds=write.seconds)
            case w.RecordUsage():
                self.put("usage", version=version, number=number, body=write.body)
            case w.PutProfile():
                self.profile = write
            case w.RecordReceipt():
                self.put("receipts", client_id=write.client_id, body=write.body)
            case w.DropLease() | w.NoteDeadline() | w.NoteReason():
                pass  # lease, deadline and reason stand in other rows
            case w.EraseEdits() | w.EraseMessage() | w.EraseText():
                pass  # `erasure` blanks what is erased

    def _cut(self, position: int, version: int) -> None:
        """Cut the rows that were added from the position on."""
        for row in (*self._rows["messages"], *self._rows["boundaries"]):
            if row["position"] >= position and row["cut"] is None:
                row["cut"] = version

    def rows(self) -> dict[str, list[_Row]]:
        """Return the rows, by the parameter of `commit.sql` that takes them."""
        for call in self.calls.values():
            self.put("calls", **call)
        for id_, queued in self.queue.items():
            if queued is None:
                self.put("dropped", id=id_)
            else:
                self.put("queued", id=id_, **queued)
        return self._rows
