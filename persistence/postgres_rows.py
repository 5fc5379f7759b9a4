"""One commit as rows for PostgreSQL: what its decisions, one after another, leave behind in each table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import resources
from typing import Any, Final, NamedTuple

from turnwise.persistence.audit import record_of, to_json
from turnwise.persistence.rows import CALLS, MESSAGES, PROFILES, QUEUE, RECEIPTS, USAGE, numbered, row_of
from turnwise.states.decide import Decision
from turnwise.states.effects import (
    CutHistory,
    DropLease,
    DropQueued,
    EraseMessage,
    GrantLease,
    InsertBoundary,
    InsertMessage,
    PutCall,
    PutProfile,
    PutQueued,
    RecordReceipt,
    RecordUsage,
    Write,
)
from turnwise.states.events import Event, PartEvent, ToolProgressEvent, event_adapter
from turnwise.states.facts import Facts
from turnwise.states.messages import FORMAT, Message


@dataclass(frozen=True, slots=True)
class Standing:
    """A chat as it was read."""

    facts: Facts
    event_seq: int
    head: str
    """The hash of its last audit record."""
    at: datetime
    """When it was read, by the store's clock."""


class Commit(NamedTuple):
    """The parameters of `commit.sql`, by their names there. Tables are JSON arrays of rows."""

    chat_id: str
    found_version: int
    found_event_seq: int
    state: str
    settled: bool
    archived: bool
    version: int
    event_seq: int
    head: str
    since: datetime
    owner: str | None
    calls: list[str]
    worker: str | None
    token: int | None
    expires: datetime | None
    facts: str
    profile: str | None
    cuts: str
    messages: str
    boundaries: str
    known_calls: str
    queued: str
    dropped: list[str]
    receipts: str
    usage: str
    audit: str
    at: datetime
    events: str
    partial_events: str


def statement(name: str, parameters: Sequence[str]) -> str:
    """Return the statement of that name, with its `:parameters` numbered in that order."""
    folder = resources.files("turnwise.persistence") / "sql" / "postgres" / "statements"
    text = (folder / f"{name}.sql").read_text(encoding="utf-8")
    return re.sub(r"(?<!:):([a-z_]+)", lambda found: f"${parameters.index(found[1]) + 1}", text)


def commit_of(
    found: Standing, decisions: Sequence[Decision], shown: Sequence[PartEvent]
) -> tuple[Commit, tuple[Event, ...]]:
    """Return what must be stored to commit the decisions, and the events as they are stored."""
    chat_id, head, at = found.facts.chat_id, found.head, found.at
    tables, audit, told = Tables(), [], list[Event](shown)
    for decision in decisions:
        version = decision.facts.version
        for number, write in enumerate(decision.writes):
            _PUT[type(write)](tables, write, Moment(version, number, at))
        record = record_of(decision, prev=head, at=at)
        audit.append({"version": version, "body": to_json(record)})
        head = record.hash
        told.extend(decision.events)
    events = numbered(told, chat_id=chat_id, after=found.event_seq, at=at)
    durable, partial = event_rows(events, after=found.event_seq)
    facts = decisions[-1].facts
    row = row_of(facts)
    commit = Commit(
        chat_id=chat_id,
        found_version=found.facts.version,
        found_event_seq=found.event_seq,
        state=row.state,
        settled=row.settled,
        archived=row.archived,
        version=row.version,
        event_seq=found.event_seq + len(events),
        head=head,
        since=facts.since or at,
        owner=facts.profile.owner,
        calls=[call.call_id for call in facts.calls],
        worker=facts.lease.worker if facts.lease else None,
        token=facts.lease.token if facts.lease else None,
        expires=tables.expires,
        facts=row.facts,
        profile=tables.profile,
        cuts=json.dumps(tables.cuts),
        messages=json.dumps(tables.messages),
        boundaries=json.dumps(tables.boundaries),
        known_calls=json.dumps([*tables.calls.values()]),
        queued=json.dumps([row for row in tables.queue.values() if row is not None]),
        dropped=[id_ for id_, row in tables.queue.items() if row is None],
        receipts=json.dumps(tables.receipts),
        usage=json.dumps(tables.usage),
        audit=json.dumps(audit),
        at=at,
        events=durable,
        partial_events=partial,
    )
    return commit, events


def event_rows(events: Iterable[Event], *, after: int) -> tuple[str, str]:
    """Return the rows of `events` and of `partial_events`, numbered from `after` + 1 on, without chat and time."""
    durable: list[_Row] = []
    partial: list[_Row] = []
    for seq, event in enumerate(events, start=after + 1):
        row: _Row = {"seq": seq, "kind": event.kind, "body": body_of(event)}
        if isinstance(event, PartEvent | ToolProgressEvent):
            attempt = event.attempt if isinstance(event, PartEvent) else None
            partial.append({**row, "step": event.step, "attempt": attempt})
        else:
            durable.append(row)
    return json.dumps(durable), json.dumps(partial)


def body_of(event: Event) -> str:
    """Return an event as JSON, without what its columns hold."""
    return event_adapter.dump_json(event, exclude=_IN_COLUMNS).decode()


_IN_COLUMNS: Final = {"chat_id", "seq", "at"}
_Row = dict[str, Any]


class Moment(NamedTuple):
    """Where a write stands: the version its decision makes, its number in the decision, the time."""

    version: int
    number: int
    at: datetime


@dataclass(slots=True)
class Tables:
    """What the writes so far leave behind."""

    cuts: list[_Row] = field(default_factory=list)
    messages: list[_Row] = field(default_factory=list)
    boundaries: list[_Row] = field(default_factory=list)
    calls: dict[str, _Row] = field(default_factory=dict)
    queue: dict[str, _Row | None] = field(default_factory=dict)
    """The rows to put, by id; `None` to drop."""
    receipts: list[_Row] = field(default_factory=list)
    usage: list[_Row] = field(default_factory=list)
    profile: str | None = None
    expires: datetime | None = None


def _insert_message(tables: Tables, write: InsertMessage, moment: Moment) -> None:
    message = write.message
    tables.messages.append(
        {
            "position": message.position,
            "id": message.id,
            "role": message.role,
            "turn": message.turn,
            "step": message.step,
            "audience": message.audience.value,
            "added": moment.version,
            "cut": None,
            "erased": message.erased,
            "digest": write.digest,
            "format": FORMAT,
            "body": MESSAGES.dump(message),
        }
    )


def _cut_history(tables: Tables, write: CutHistory, moment: Moment) -> None:
    tables.cuts.append({"position": write.position, "version": moment.version})
    for row in (*tables.messages, *tables.boundaries):
        if row["position"] >= write.position and row["cut"] is None:
            row["cut"] = moment.version


def _insert_boundary(tables: Tables, write: InsertBoundary, moment: Moment) -> None:  # noqa: ARG001 - put like the others
    row = {"position": write.position, "reason": write.reason, "step": write.step, "carried": write.carried}
    tables.boundaries.append({**row, "cut": None})


def _put_call(tables: Tables, write: PutCall, moment: Moment) -> None:  # noqa: ARG001
    call = write.call
    tables.calls[call.call_id] = {
        "call_id": call.call_id,
        "step": call.step,
        "idx": call.index,
        "status": call.status.value,
        "deadline": call.deadline and call.deadline.isoformat(),
        "body": CALLS.dump(call),
    }


def _put_queued(tables: Tables, write: PutQueued, moment: Moment) -> None:  # noqa: ARG001
    before = tables.queue.get(write.id) or {"rank": None}
    rank = before["rank"] if write.rank is None else write.rank
    tables.queue[write.id] = {"id": write.id, "rank": rank, "body": QUEUE.dump(write.queued)}


def _drop_queued(tables: Tables, write: DropQueued, moment: Moment) -> None:  # noqa: ARG001
    tables.queue[write.queued_id] = None


def _grant_lease(tables: Tables, write: GrantLease, moment: Moment) -> None:
    tables.expires = moment.at + timedelta(seconds=write.seconds)


def _record_usage(tables: Tables, write: RecordUsage, moment: Moment) -> None:
    tables.usage.append({"version": moment.version, "number": moment.number, "body": USAGE.dump(write)})


def _put_profile(tables: Tables, write: PutProfile, moment: Moment) -> None:  # noqa: ARG001
    tables.profile = PROFILES.dump(write.profile)


def _record_receipt(tables: Tables, write: RecordReceipt, moment: Moment) -> None:  # noqa: ARG001
    tables.receipts.append({"client_id": write.client_id, "body": RECEIPTS.dump(write)})


def _elsewhere(tables: Tables, write: Write, moment: Moment) -> None:
    """Put nothing: the facts say whose the lease is, and `erase` finds what told a message."""


_PUT: Final[Mapping[type[Write], Callable[[Tables, Any, Moment], None]]] = {
    InsertMessage: _insert_message,
    CutHistory: _cut_history,
    EraseMessage: _elsewhere,
    PutCall: _put_call,
    PutQueued: _put_queued,
    DropQueued: _drop_queued,
    InsertBoundary: _insert_boundary,
    GrantLease: _grant_lease,
    DropLease: _elsewhere,
    RecordUsage: _record_usage,
    PutProfile: _put_profile,
    RecordReceipt: _record_receipt,
}


def erased_by(decisions: Iterable[Decision]) -> list[Message]:
    """Return the blanked messages that the decisions put in the place of what was said."""
    return [write.message for made in decisions for write in made.writes if isinstance(write, EraseMessage)]
