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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from turnwise.persistence.audit.record import object_of
from turnwise.persistence.chat_rows import ChatRows, Row
from turnwise.states.unicode import well_formed
from turnwise.states.values.digests import canonical

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
        "digest": _TEXT,
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

    @property
    def chat_id(self) -> str:
        """The id of the chat."""
        return str(self.rows.chat["id"])


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
    """Whether a line looks like the last one of a chat."""
    try:
        return {"rows", "head"} <= object_of(line).keys()
    except ValueError:
        return False


def signature_of(checkpoint: Mapping[str, Any], key: bytes) -> str:
    """Return what only who has the key can say of a checkpoint, and so of every line before it."""
    signed = {"format": FORMAT, "format_version": FORMAT_VERSION, **checkpoint}
    return hmac.new(key, canonical(signed), hashlib.sha256).hexdigest()
