"""Commits as parameters of PostgreSQL's statements."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from turnwise.persistence.audit.row_digests import EventFields, digested_fields
from turnwise.persistence.commit import Commit, Row, commit_of
from turnwise.persistence.rows import EVENTS, time_of, unnumbered
from turnwise.states.events import Event, PartEvent

EventRows = tuple[list[Row], list[Row]]
"""The rows of `events` and of `partial_events`, without their time."""

PostgresCommit = Commit[EventRows]

PARAMETERS: Final = (
    "chats",
    "cuts",
    "messages",
    "boundaries",
    "calls",
    "queued",
    "ranked",
    "dropped",
    "receipts",
    "usage",
    "chat_files",
    "audit",
    "events",
    "partial_events",
)
"""The parameters of the statement of all commits, in its order: JSON arrays of rows."""


def parameters_of(commits: Sequence[PostgresCommit]) -> list[str]:
    """Return the parameters of `commits.sql` that store the commits."""
    tables: dict[str, list[Row]] = {name: [] for name in PARAMETERS}
    for commit in commits:
        tables["chats"].append(_chat_row(commit))
        for name, rows in commit.tables.rows.items():
            tables[name] += rows
        tables["calls"] += map(_call_row, commit.tables.calls.values())
        tables["queued"] += commit.tables.queued
        tables["ranked"] += commit.tables.ranked
        tables["dropped"] += commit.tables.dropped
        tables["audit"] += (
            {"chat_id": commit.chat_id, "version": entry.version, "body": entry.body, "aside": entry.aside}
            for entry in commit.tables.entries
        )
        durable, partial_events = commit.event_rows
        tables["events"] += durable
        tables["partial_events"] += partial_events
    return [json.dumps(rows) for rows in tables.values()]


def event_rows(events: Iterable[Event]) -> EventRows:
    """Return events as rows."""
    durable: list[Row] = []
    partial_events: list[Row] = []
    for event in events:
        row: Row = {"chat_id": event.chat_id, "seq": event.seq, "kind": event.kind, "body": body_of(event)}
        if isinstance(event, PartEvent):
            partial_events.append({**row, "step": event.step, "attempt": event.attempt})
        else:
            durable.append(row)
    return durable, partial_events


def body_of(event: Event) -> str:
    """Return an event as JSON, without what its columns hold."""
    return EVENTS.dump(unnumbered(event))


def _spelled(events: Iterable[Event]) -> tuple[EventRows, Iterable[EventFields]]:
    rows = event_rows(events)
    return rows, map(digested_fields, rows[0])


prepared = partial(commit_of, spelled=_spelled, whole=True)
"""Returns the rows that commit decisions in PostgreSQL."""


def _chat_row(commit: PostgresCommit) -> Row:
    """Return the chat's new row, and the values that its old one must have."""
    row, before, facts, tables = commit.row, commit.before, commit.after.facts, commit.tables
    return {
        "chat_id": row.id,
        "found_version": before.facts.version,
        "found_event_seq": before.facts.last_seq,
        "found_head": before.head,
        "found_state": before.state,
        "found_token": before.token,
        "state": row.state,
        "settled": row.settled,
        "archived": row.archived,
        "version": row.version,
        "event_seq": row.last_seq,
        "head": commit.after.head,
        "since": commit.since.isoformat(),
        "rested": commit.rested and commit.rested.isoformat(),
        "owner": facts.profile.owner,
        "agent": facts.agent_needed,
        "needs": facts.calls.needs,
        "awaits": facts.awaits,
        "calls": None if facts.calls.are_those_of(before.facts.calls) else [call.call_id for call in facts.calls],
        "worker": facts.lease and facts.lease.worker,
        "token": facts.lease and facts.lease.token,
        "expires": tables.lease and _after(before.at, tables.lease.seconds),
        "facts": row.facts,
        "salt": commit.salt,
        "profile": tables.profile and tables.profile.body,
        "profile_salt": tables.profile and tables.profile.salt,
        "at": before.at.isoformat(),
    }


def _after(at: datetime, seconds: float) -> str:
    return (at + timedelta(seconds=seconds)).isoformat()


def _call_row(row: Row) -> Row:
    return row if row["deadline"] is None else row | {"deadline": time_of(row["deadline"]).isoformat()}
