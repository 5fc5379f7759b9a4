"""Finds what keeps a chat that verifies out of every store: values that its audit log does not cover."""

from __future__ import annotations

from collections.abc import Iterator

from turnwise.persistence.archive.format import WholeChat, unportable
from turnwise.persistence.chat_rows import Row
from turnwise.persistence.integrity.examine import Found, examine, found_in


def issues_in(chat: WholeChat) -> Iterator[Found]:
    """Yield what a store could not read, and what breaks an invariant."""
    rows = chat.rows
    leases = [] if rows.lease is None else [rows.lease]
    yield from examine(chat.chat_id, {**rows.tables, "chats": [rows.chat], "leases": leases, "audit": _log_of(chat)})
    for row in chat.quarantine:
        for column, problem in unportable("quarantine", row):
            yield found_in("quarantine", row, column, problem)


def _log_of(chat: WholeChat) -> list[Row]:
    """Return the rows of the log: with its hash where the body is not the whole record."""
    return [
        {"version": entry.version, "body": entry.body, "aside": entry.aside}
        | ({"hash": bytes.fromhex(entry.hash)} if entry.hash else {})
        for entry in chat.rows.audit
    ]
