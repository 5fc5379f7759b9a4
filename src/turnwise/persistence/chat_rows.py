"""The rows of one chat as they are stored, readable or not: to check, examine, export, repair or erase them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from turnwise.persistence.audit.record import Entry
from turnwise.persistence.rows import PARSE_ERRORS
from turnwise.persistence.stored_chat import Stored, ids_of, is_count

ORDER: Final = {
    "profiles": "chat",
    "messages": "position",
    "boundaries": "position",
    "calls": "step, idx",
    "queue": "rank",
    "receipts": "client_id",
    "usage": "version, number",
    "events": "seq",
}
"""By table, the columns by which a check wants the rows ordered."""
Row = Mapping[str, Any]
"""The columns of a row by name: times in microseconds, arrays as lists or as their JSON."""


class ChatRows(msgspec.Struct, frozen=True):
    """The rows of one chat, all of one moment. The columns have the names that SQLite's store gives them."""

    chat: Row
    lease: Row | None
    tables: Mapping[str, Sequence[Row]]
    """The rows of the tables in `ORDER`."""
    audit: Sequence[Entry]
    """By version."""
    names: Mapping[str, str] = {}
    """This store's own names of tables and columns: `table`, or `table.column`, by SQLite's."""
    parts: str = "events"
    """The table in which this store keeps the parts of replies under way."""
    quarantined: int = 0
    """How many rows repairs have put aside."""


class Place(NamedTuple):
    """The place of a stored value that is not what the audit log says."""

    table: str
    row: str = ""
    """Identifies the row in the chat: an id, a version or a number; empty where there is only one row."""
    columns: tuple[str, ...] = ()
    """Columns of which at least one is wrong; empty for a row that is missing or too many."""

    def renamed(self, names: Mapping[str, str]) -> Place:
        """Return the place by a store's own names of tables and columns."""
        own = [names.get(f"{self.table}.{column}", f"{self.table}.{column}") for column in self.columns]
        tables = {name.partition(".")[0] for name in own} or {names.get(self.table, self.table)}
        table = tables.pop() if len(tables) == 1 else self.table
        return Place(table, self.row, tuple(name.removeprefix(f"{table}.") for name in own))

    def __str__(self) -> str:
        where = f"{self.table}[{self.row}]" if self.row else self.table
        return f"{where}.{'|'.join(self.columns)}" if self.columns else where


REFERRING: Final = {"messages": "id", "queue": "id", "events": "seq"}
"""Tables whose bodies may refer to blobs. The value is the column that identifies a row in an erasure."""
_BLOB: Final = re.compile(r'"blob":\s?"([0-9a-f]{64})"')
"""Finds references in JSON: text that looks like one has its quotes escaped there."""


def blobs_named_in(body: object) -> set[str]:
    return set(_BLOB.findall(str(body)))


def blobs_of(rows: ChatRows) -> set[str]:
    bodies = (row["body"] for table in REFERRING for row in rows.tables[table])
    return {digest for body in (*bodies, rows.chat["facts"]) for digest in blobs_named_in(body)}


Rows = Mapping[str, Sequence[Row]]
"""All rows that belong to one chat, as they are stored, by table."""

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "messages": ("position",),
    "boundaries": ("position",),
    "calls": ("call_id",),
    "queue": ("id",),
    "receipts": ("client_id",),
    "usage": ("version", "number"),
    "audit": ("version",),
    "events": ("seq",),
    "partial_events": ("seq",),
    "chat_files": ("digest",),
    "leases": (),
    "profiles": (),
}
"""The columns that identify a row of a chat, by table."""
_CREATED: Final = 1
"""The version in which a chat is created; it has messages then if it is a fork, or has an imported history."""
PLAUSIBLE: Final = 1000
"""How many messages may be missing; a stored length that exceeds the messages by more is taken for wrong."""


def stored_in(chat_id: str, rows: Rows) -> Stored:
    """Return the stored values in the rows that say where the chat stands."""
    chat = rows["chats"][0]
    lease = next(iter(rows.get("leases", ())), chat)
    facts = chat["facts"] if "facts" in chat else next((row["body"] for row in rows.get("facts", ())), None)
    try:
        remembered = set(ids_of(chat["calls"]))
    except PARSE_ERRORS:
        remembered = set()
    calls = [row for row in rows.get("calls", ()) if row["call_id"] in remembered]
    return Stored(
        id=chat_id,
        state=chat["state"],
        settled=chat["settled"],
        archived=chat["archived"],
        version=chat["version"],
        call_ids=chat["calls"],
        facts=facts,
        profile=next((row["body"] for row in rows.get("profiles", ())), None),
        calls=[row["body"] for row in calls],
        queue=[row["body"] for row in rows.get("queue", ())],
        worker=lease.get("worker"),
        token=lease.get("token"),
        last_seq=chat["event_seq"],
        facts_column="chats.facts" if "facts" in chat else "facts.body",
        lease_table="leases" if rows.get("leases") else "chats",
    )


def columns_in(row: Row) -> dict[str, Any]:
    """Return the columns of a row as JSON can hold them: bytes as `{"hex": ...}`, times as ISO 8601."""
    return {name: _to_json(value) for name, value in row.items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def lines_of(rows: Rows) -> Iterator[str]:
    """Yield every row as a line of JSON: its table, and its columns as they are stored."""
    for table, table_rows in rows.items():
        for row in table_rows:
            yield json.dumps({"table": table, "row": columns_in(row)})


def missing_messages(rows: Rows, length: int) -> list[int]:
    """Return the positions up to `length`, or up to the last message, without a message.

    Gaps among the messages that a chat began with do not count: a fork leaves out what an edit had cut.
    """
    stored = [row for row in rows.get("messages", ()) if is_count(row["position"])]
    positions = {row["position"] for row in stored}
    inherited = max((row["position"] for row in stored if row.get("added") == _CREATED), default=0)
    last = max(positions, default=0)
    end = min(max(last, min(length, last + PLAUSIBLE)), len(positions) + PLAUSIBLE)
    return [position for position in range(inherited + 1, end + 1) if position not in positions]


def last_seq_in(rows: Rows) -> int:
    """Return the number of the last event that has one; 0 without events."""
    events = (*rows.get("events", ()), *rows.get("partial_events", ()))
    return max((row["seq"] for row in events if is_count(row["seq"])), default=0)
