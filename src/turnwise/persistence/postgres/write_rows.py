"""Commits as parameters of PostgreSQL's statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.commit import Commit, Row
from turnwise.persistence.event_rows import EventRow
from turnwise.persistence.rows import time_of
from turnwise.persistence.sql.raw_rows import tables_in
from turnwise.persistence.sql.statements import statements_in
from turnwise.states.facts import queried_columns
from turnwise.states.values.digests import canonical_row

_PARAMETERS: Final = statements_in("postgres")["commit"].parameters


def parameters_of(commits: Sequence[Commit]) -> list[str]:
    tables: dict[str, list[Row]] = {name: [] for name in _PARAMETERS}
    for commit in commits:
        tables["chats"].append(_chat_row(commit))
        for name, rows in commit.tables.rows.items():
            tables[name] += rows
        tables["calls"] += map(_call_row, commit.tables.calls.values())
        tables["queued"] += commit.tables.queued
        tables["ranked"] += commit.tables.ranked
        tables["dropped"] += commit.tables.dropped
        tables["audit"] += (
            {
                "chat_id": commit.chat_id,
                "version": entry.version,
                "hash": entry.hash,
                "body": entry.body,
                "aside": entry.aside,
                "digests": entry.digests.hex(),
            }
            for entry in commit.tables.entries
        )
        durable, partial_events = event_rows(commit.chat_id, commit.event_rows)
        tables["events"] += durable
        tables["partial_events"] += partial_events
    return [canonical_row(rows).decode() for rows in tables.values()]


def event_rows(chat_id: str, rows: Iterable[EventRow]) -> tuple[list[Row], list[Row]]:
    """Return the rows of `events` and of `partial_events`, without their time."""
    durable: list[Row] = []
    partial_events: list[Row] = []
    for row in rows:
        columns = {"chat_id": chat_id, "seq": row.seq, "kind": row.kind, "body": row.body}
        if row.kind == "part":
            partial_events.append(columns | {"step": row.step, "attempt": row.attempt})
        else:
            durable.append(columns | {"position": row.position})
    return durable, partial_events


def imported_tables(chat: WholeChat) -> dict[str, list[Row]]:
    """Return the rows of a chat of another store by table; its lease has run out at once."""
    tables, lease = tables_in(chat), chat.rows.lease
    (row,) = tables["chats"]
    facts = {"body": row.pop("facts"), "salt": row.pop("salt")}
    if lease is not None:
        row |= {"worker": lease["worker"], "token": lease["token"], "expires": row["since"]}
    events = tables.pop("events")
    durable = [_without(event, "step", "attempt") for event in events if event["kind"] != "part"]
    partial_events = [_without(event, "position") for event in events if event["kind"] == "part"]
    return {**tables, "facts": [facts], "events": durable, "partial_events": partial_events}


def _without(row: Row, *columns: str) -> Row:
    return {name: value for name, value in row.items() if name not in columns}


def _chat_row(commit: Commit) -> Row:
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
        **queried_columns(facts),
        "wake_at": facts.wake_at and facts.wake_at.isoformat(),
        "calls": None if facts.calls.are_those_of(before.facts.calls) else [call.call_id for call in facts.calls],
        "worker": facts.lease and facts.lease.worker,
        "token": facts.lease and facts.lease.token,
        "expires": tables.lease and (before.at + timedelta(seconds=tables.lease.seconds)).isoformat(),
        "facts": row.facts,
        "salt": commit.salt,
        "profile": tables.profile and tables.profile.body,
        "profile_salt": tables.profile and tables.profile.salt,
        "at": before.at.isoformat(),
        "knows_budgets": commit.funds is not None,
    }


def _call_row(row: Row) -> Row:
    return row if row["deadline"] is None else row | {"deadline": time_of(row["deadline"]).isoformat()}
