"""Examines a chat: checks every row, column by column, against what turnwise stores there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from turnwise.persistence.audit import record as audit_log
from turnwise.persistence.chat_rows import KEYS, Row, Rows, last_seq_in, missing_messages, stored_in
from turnwise.persistence.integrity.columns import COLUMNS, wrong_values
from turnwise.persistence.rows import (
    CALLS,
    PARSE_ERRORS,
    PROFILES,
    QUEUE,
    RECEIPTS,
    USAGE,
    columns_of_call,
    columns_of_message,
    described,
    event_of,
    message_of,
    micros_of,
)
from turnwise.persistence.stored_chat import IntegrityIssue, ids_of, is_count, salvage
from turnwise.states.errors import ChatUnreadable
from turnwise.states.facts import Facts, queried_columns
from turnwise.states.invariants import broken_invariants

Found = tuple[Row, IntegrityIssue]
"""A row and what is wrong with it."""


def found_in(table: str, row: Row, column: str, problem: str) -> Found:
    """Return a problem of one row; its text begins with the key of the row."""
    names = ", ".join(f"{key} {row.get(key)!a:.40}" for key in KEYS.get(table, ()))
    return row, IntegrityIssue(f"{table}.{column}", f"{names}: {problem}" if names else problem)


def examine(chat_id: str, rows: Rows) -> list[Found]:
    """Return all problems of a chat's rows, one by one and taken together."""
    found: list[Found] = []
    for table in COLUMNS:
        for row in rows.get(table, ()):
            found += [found_in(table, row, column, problem) for column, problem in wrong_values(table, row)]
    for table, read in _READ.items():
        for row in rows.get(table, ()):
            found += [found_in(table, row, column, problem) for column, problem in _unread(chat_id, row, read)]
    messages = {row["position"]: row for row in rows.get("messages", ())}
    for table in ("events", "partial_events"):
        for row in rows.get(table, ()):
            problems = _event_problems(chat_id, row, messages)
            found += [found_in(table, row, column, problem) for column, problem in problems]
    found += _standing_problems(chat_id, rows)
    found += _log_problems(chat_id, rows)
    return list({(issue.column, id(row)): (row, issue) for row, issue in found}.values())


def build_unreadable(chat_id: str, rows: Rows, error: Exception) -> ChatUnreadable:
    """Return the error for a chat whose rows could not be read: it names their first problem."""
    try:
        issues = [issue for _, issue in examine(chat_id, rows)]
    except PARSE_ERRORS:
        issues = []
    issue = issues[0] if issues else IntegrityIssue("chats", described(error))
    return ChatUnreadable(issue.column, issue.problem, chat_id=chat_id)


# One row: what its columns repeat of its body


_Columns = Mapping[str, Any]


def _message(chat_id: str, row: Row) -> _Columns:
    return columns_of_message(message_of(row["format"], row["body"], chat_id))


def _call(chat_id: str, row: Row) -> _Columns:
    call = CALLS.load(row["body"], chat_id)
    columns = columns_of_call(call)
    return columns | {"deadline": call.deadline} if isinstance(row["deadline"], datetime) else columns


def _usage(chat_id: str, row: Row) -> _Columns:
    USAGE.load(row["body"], chat_id)
    return {}


def _profile(chat_id: str, row: Row) -> _Columns:
    PROFILES.load(row["body"], chat_id)
    return {}


_READ: Final[Mapping[str, Callable[[str, Row], _Columns]]] = {
    "profiles": _profile,
    "messages": _message,
    "calls": _call,
    "queue": lambda chat_id, row: {"id": QUEUE.load(row["body"], chat_id).id},
    "receipts": lambda chat_id, row: {"client_id": RECEIPTS.load(row["body"], chat_id).client_id},
    "usage": _usage,
}


def _unread(chat_id: str, row: Row, read: Callable[[str, Row], _Columns]) -> Iterator[tuple[str, str]]:
    try:
        columns = read(chat_id, row)
    except ChatUnreadable as error:
        yield error.column.partition(".")[2], error.problem
    except PARSE_ERRORS as error:
        yield "body", described(error)
    else:
        yield from _differing(row, columns)


def _differing(row: Row, columns: _Columns) -> Iterator[tuple[str, str]]:
    for column, value in columns.items():
        if row[column] != value:
            yield column, "it is not what the body says"


def _event_problems(chat_id: str, row: Row, messages: Mapping[Any, Row]) -> Iterator[tuple[str, str]]:
    position = row.get("position")
    message = None if position is None else messages.get(position)
    if is_count(position) and message is None:
        yield "position", "there is no such message"
        return
    try:
        form, body = (None, None) if message is None else (message["format"], message["body"])
        event = event_of(chat_id, row["seq"], row["kind"], row["at"], row["body"], form, body)
    except ChatUnreadable as error:
        table, _, column = error.column.partition(".")
        if table == "events":
            yield column, error.problem
        return  # the message itself is reported separately
    except PARSE_ERRORS as error:
        yield "body", described(error)
        return
    columns: dict[str, Any] = {"kind": event.kind}
    if event.kind == "part":
        columns |= {"step": event.step, "attempt": event.attempt}
    yield from _differing(row, columns)


# The chat as a whole


def _standing_problems(chat_id: str, rows: Rows) -> Iterator[Found]:
    chat = rows["chats"][0]
    rest = salvage(stored_in(chat_id, rows))
    for issue in rest.issues:
        table, _, column = issue.column.partition(".")
        if table in ("calls", "queue") and column == "body":
            continue  # reported with its row
        own = table in ("facts", "profiles", "leases")
        yield found_in(table, next(iter(rows.get(table, ())), chat) if own else chat, column, issue.problem)
    if rest.issues:
        return
    facts = rest.facts
    named = "" if facts.stored_state is None else f": {facts.stored_state!r} is no state of the table's"
    for invariant in broken_invariants(facts):
        yield found_in("chats", chat, "state", f"the invariant {invariant} is broken{named}")
    yield from _repeated_elsewhere(chat, facts)
    if facts.since is not None and chat["since"] not in (facts.since, micros_of(facts.since)):
        yield found_in("chats", chat, "since", "it is not what the facts say")
    wake_at = facts.wake_at
    if "wake_at" in chat and chat["wake_at"] not in (wake_at, None if wake_at is None else micros_of(wake_at)):
        yield found_in("chats", chat, "wake_at", "it is not when the first scheduled message is due")
    last = last_seq_in(rows)
    if chat["event_seq"] < last:
        yield found_in("chats", chat, "event_seq", f"there is an event of number {last}")
    missing = missing_messages(rows, facts.history.length)
    if missing:
        yield found_in(
            "messages", chat, "position", f"{len(missing)} message(s) are missing, first number {missing[0]}"
        )


def _repeated_elsewhere(chat: Row, facts: Facts) -> Iterator[Found]:
    """Find columns by which chats are found, and which do not repeat what other tables say."""
    for column, expected in queried_columns(facts).items():
        stored = chat[column]
        if isinstance(expected, list):
            try:
                stored = ids_of(stored)
            except PARSE_ERRORS:
                continue  # reported with its column
        if stored != expected and not (column in ("awaits", "action_of") and facts.stored_state is not None):
            yield found_in("chats", chat, column, "it is not what the profile and the open calls say")


def _log_problems(chat_id: str, rows: Rows) -> Iterator[Found]:
    chat, log = rows["chats"][0], sorted(rows.get("audit", ()), key=lambda row: str(row["version"]).zfill(20))
    versions = [row["version"] for row in log]
    if versions != list(range(1, len(log) + 1)):
        wrong = next(row for place, row in enumerate(log, 1) if row["version"] != place)
        yield found_in("audit", wrong, "version", f"the log has {len(log)} records that do not follow one another")
    elif is_count(chat["version"]) and chat["version"] != len(log):
        yield found_in("chats", chat, "version", f"the log has {len(log)} records")
    hash_ = ""
    for row in log:
        try:
            if "hash" in row:
                hash_ = row["hash"].hex() if row["hash"] else ""
                entry = audit_log.Entry(row["version"], hash_, row["body"], digests=row["digests"])
                hash_ = audit_log.log_of(chat_id, [entry])[0].hash
            else:
                hash_ = audit_log.from_json(row["body"]).hash
        except PARSE_ERRORS as error:
            yield found_in("audit", row, "body", described(error))
            hash_ = ""
    if hash_ and chat["head"] != hash_:
        yield found_in("chats", chat, "head", "it is not the hash of the last record")
