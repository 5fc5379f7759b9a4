"""A whole chat as lines of JSON, which any store takes in: written, read, and checked to the last value.

A header comes first, then every row, table by table, then the files of the file store that they refer to, piece by
piece, then a checkpoint. Each line holds a hash of itself and of the hash before it, so that the first line that was
changed, moved or lost is found. The rows are compared with the chat's own audit log besides: a file whose hashes were
made anew still has to show a chat's true life.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from turnwise.persistence.audit.record import GENESIS, log_of, object_of, to_json
from turnwise.persistence.blobs.protocol import closing
from turnwise.persistence.chat_rows import ChatRows, Row, stored_in
from turnwise.persistence.stored_chat import facts_of, ids_of
from turnwise.states.errors import InvalidArgument
from turnwise.states.facts import Facts
from turnwise.states.values.digests import canonical
from turnwise.states.values.plain import well_formed

FORMAT: Final = "turnwise-chat"
FORMAT_VERSION: Final = 1
CHAT_ID: Final = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
"""An id as turnwise makes them, or another that paths, headers, cursors and terminals take as it is: files come from
anywhere, and a chat that no path names could be neither read nor deleted through a service."""

_TEXT: Final = (str,)
_TEXT_OR_NOT: Final = (str, type(None))
_COUNT: Final = (int,)
_COUNT_OR_NOT: Final = (int, type(None))
_FLAG: Final = (bool,)
_LIST: Final = (list,)
_LARGEST: Final = 2**63
COLUMNS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "chats": {
        "id": _TEXT,
        "state": _TEXT,
        "settled": _FLAG,
        "archived": _FLAG,
        "version": _COUNT,
        "event_seq": _COUNT,
        "head": _TEXT,
        "since": _COUNT,
        "owner": _TEXT_OR_NOT,
        "calls": _LIST,
        "facts": _TEXT,
        "salt": _TEXT_OR_NOT,
    },
    "leases": {"worker": _TEXT, "token": _COUNT},
    "profiles": {"body": _TEXT, "salt": _TEXT_OR_NOT},
    "messages": {
        "position": _COUNT,
        "id": _TEXT,
        "role": _TEXT,
        "turn": _COUNT,
        "step": _COUNT,
        "audience": _TEXT,
        "added": _COUNT,
        "cut": _COUNT_OR_NOT,
        "erased": _FLAG,
        "format": _COUNT,
        "body": _TEXT,
        "salt": _TEXT_OR_NOT,
    },
    "boundaries": {"position": _COUNT, "reason": _TEXT, "step": _COUNT, "carried": _LIST, "cut": _COUNT_OR_NOT},
    "calls": {
        "call_id": _TEXT,
        "step": _COUNT,
        "idx": _COUNT,
        "status": _TEXT,
        "deadline": _COUNT_OR_NOT,
        "body": _TEXT,
    },
    "queue": {"id": _TEXT, "rank": _COUNT, "body": _TEXT, "salt": _TEXT_OR_NOT},
    "receipts": {"client_id": _TEXT, "body": _TEXT},
    "usage": {"version": _COUNT, "number": _COUNT, "body": _TEXT},
    "audit": {"version": _COUNT, "record": (dict,), "aside": _TEXT_OR_NOT},
    "events": {
        "seq": _COUNT,
        "kind": _TEXT,
        "at": _COUNT,
        "step": _COUNT_OR_NOT,
        "attempt": _COUNT_OR_NOT,
        "position": _COUNT_OR_NOT,
        "body": _TEXT,
    },
    "quarantine": {"version": _COUNT, "origin": _TEXT, "problem": _TEXT, "row": _TEXT},
}
"""The tables in their order, and the columns of each; times are microseconds since 1970."""

_JSON_NAMES: Final = {
    str: "a string",
    int: "a whole number",
    bool: "a truth value",
    list: "an array",
    dict: "an object",
}


class WholeChat(msgspec.Struct, frozen=True):
    """All rows of one chat, of one moment."""

    rows: ChatRows
    quarantine: Sequence[Row] = ()
    """What repairs have put aside."""
    blobs: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The blobs that the rows refer to and that come along, with their sizes."""
    budget: str | None = None
    """The chat's own budget, as JSON."""

    @property
    def chat_id(self) -> str:
        return str(self.rows.chat["id"])

    @property
    def facts(self) -> Facts:
        leases = [] if self.rows.lease is None else [self.rows.lease]
        return facts_of(stored_in(self.chat_id, {"chats": [self.rows.chat], **self.rows.tables, "leases": leases}))


def unportable(table: str, row: Row) -> Iterator[tuple[str, str]]:
    """Yield the columns of a row whose value no line may hold, and what belongs there."""
    for column, kinds in COLUMNS[table].items():
        value = row[column]
        is_too_large = type(value) is int and abs(value) >= _LARGEST
        is_garbled = type(value) is str and well_formed(value) != value
        if type(value) not in kinds or is_too_large or is_garbled:
            yield column, f"{' or '.join(_JSON_NAMES.get(kind, 'null') for kind in kinds)} belongs here"


def chain_hash(prev: str, fields: Mapping[str, Any]) -> str:
    """Return the hash of a line, which binds the line before it."""
    return hashlib.sha256(prev.encode() + b"\n" + canonical(fields)).hexdigest()


def spelled(fields: Mapping[str, Any]) -> str:
    """Return a line in ASCII, which no reader splits or re-encodes."""
    text = canonical(fields).decode()
    return f"{text if text.isascii() else json.dumps(fields, sort_keys=True, separators=(',', ':'))}\n"


def is_checkpoint(line: str) -> bool:
    try:
        return {"rows", "head"} <= object_of(line).keys()
    except ValueError:
        return False


def signature_of(checkpoint: Mapping[str, Any], key: bytes) -> str:
    """Return what only who has the key can say of a checkpoint, and so of every line before it."""
    signed = {"format": FORMAT, "format_version": FORMAT_VERSION, **checkpoint}
    return hmac.new(key, canonical(signed), hashlib.sha256).hexdigest()


class ArchiveWriter:
    """Writes a chat as lines: its rows, then its files piece by piece, then the checkpoint."""

    def __init__(self, chat: WholeChat) -> None:
        self._chat = chat
        self._prev = GENESIS
        self._counts = Counter[str]()

    def rows(self) -> Iterator[str]:
        header = {"format": FORMAT, "format_version": FORMAT_VERSION, "chat_id": self._chat.chat_id}
        if self._chat.budget is not None:
            header["budget"] = self._chat.budget
        for fields in (header, *_to_rows(self._chat)):
            self._counts.update([str(fields["table"])] if "table" in fields else ())
            yield self._next(fields)

    def piece(self, digest: str, number: int, data: bytes) -> str:
        return self._next({"blob": digest, "number": number, "data": b64encode(data).decode()})

    def checkpoint(self, key: bytes | None) -> str:
        checkpoint: dict[str, Any] = {"rows": dict(self._counts), "head": self._chat.rows.chat["head"]}
        if self._chat.blobs:
            checkpoint["blobs"] = len(self._chat.blobs)
        checkpoint["hash"] = chain_hash(self._prev, checkpoint)
        if key is not None:
            checkpoint["signature"] = signature_of(checkpoint, key)
        return spelled(checkpoint)

    def _next(self, fields: dict[str, Any]) -> str:
        self._prev = chain_hash(self._prev, fields)
        return spelled(fields | {"hash": self._prev})


def _to_rows(chat: WholeChat) -> Iterator[dict[str, Any]]:
    rows = chat.rows
    log = log_of(chat.chat_id, [entry._replace(aside=None) for entry in rows.audit])
    entries = zip(log, rows.audit, strict=True)
    tables: dict[str, Iterable[Row]] = {
        **rows.tables,
        "chats": [rows.chat],
        "leases": [] if rows.lease is None else [rows.lease],
        "audit": (
            {"version": entry.version, "record": object_of(to_json(record)), "aside": entry.aside}
            for record, entry in entries
        ),
        "quarantine": chat.quarantine,
    }
    for table in COLUMNS:
        for row in tables[table]:
            yield {"table": table, "row": {name: _portable(name, row[name]) for name in COLUMNS[table]}}


def _portable(column: str, value: Any) -> Any:
    match column:
        case "settled" | "archived" | "erased":
            return bool(value)
        case "calls":
            return ids_of(value)
        case "carried":
            return list(value) if not isinstance(value, str) else object_of(f'{{"it":{value}}}')["it"]
    return value


async def each_line(lines: Iterable[str] | AsyncIterable[str]) -> AsyncGenerator[str, None]:
    """Yield the lines of an exported chat. A string is split; an iterator is closed at the end: it may hold a file.

    Raises:
        InvalidArgument: `lines` are no lines.
    """
    if isinstance(lines, AsyncIterable):
        async with closing(lines) as given:
            async for line in given:
                yield line
    elif isinstance(lines, Iterable):
        for line in lines.split("\n") if isinstance(lines, str) else lines:
            yield line
    else:
        raise InvalidArgument("lines", f"must be the lines that `export_chat` yields; it was {type(lines).__name__}")
