"""Column types: checks each stored value on its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import NoneType
from typing import Any, Final, NamedTuple, get_args

import msgspec

from turnwise.persistence.audit.digests import Aside
from turnwise.persistence.chat_rows import Row
from turnwise.persistence.rows import PARSE_ERRORS, time_of
from turnwise.persistence.stored_chat import ids_of, is_count, is_hash
from turnwise.states.events import EVENTS
from turnwise.states.facts import QUERIED
from turnwise.states.names import ActionOf, Awaited


def wrong_values(table: str, row: Row) -> Iterator[tuple[str, str]]:
    """Yield the columns of a row whose value is of the wrong kind, and what belongs there."""
    for column, column_type in COLUMNS.get(table, {}).items():
        if column in row and not column_type.is_valid(row[column]):
            yield column, f"{column_type.description} belongs here"


class _ColumnType(NamedTuple):
    description: str
    is_valid: Callable[[Any], bool]


def _nullable(column_type: _ColumnType) -> _ColumnType:
    return _ColumnType(
        f"{column_type.description}, or nothing,", lambda value: value is None or column_type.is_valid(value)
    )


def _parses(read: Callable[[Any], object]) -> Callable[[Any], bool]:
    def is_valid(value: Any) -> bool:
        try:
            read(value)
        except PARSE_ERRORS:
            return False
        return True

    return is_valid


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime) or (is_count(value) and _parses(time_of)(value))


def _is_hex(value: Any) -> bool:
    return isinstance(value, str) and all(letter in "0123456789abcdef" for letter in value)


def _parse_positions(value: Any) -> list[int]:
    return msgspec.convert(json.loads(value) if isinstance(value, str) else value, list[int])


_TEXT: Final = _ColumnType("a text", lambda value: isinstance(value, str))
_NAME: Final = _ColumnType("a text", lambda value: isinstance(value, str) and value.isprintable())
"""An identifier that turnwise chose: printable."""
_COUNT: Final = _ColumnType("a count", is_count)
_FLAG: Final = _ColumnType("0 or 1", lambda value: value in (0, 1))
_TIME: Final = _ColumnType("a time", _is_time)
_HASH: Final = _ColumnType("a SHA-256 in hex", lambda value: is_hash(value) and _is_hex(value))
_BLOB: Final = _ColumnType("a SHA-256", lambda value: isinstance(value, bytes) and len(value) == 32)  # noqa: PLR2004
_KIND: Final = _ColumnType("a kind of event", lambda value: isinstance(value, str) and value in EVENTS)


_SALT: Final = _nullable(_ColumnType("a salt in hex", _is_hex))
_INTEGER: Final = _ColumnType("a whole number", lambda value: type(value) is int)
_KINDS: Final = {str: _TEXT, int: _INTEGER, bool: _FLAG}


def _column_type_for(hint: Any) -> _ColumnType:
    kinds = [_KINDS[kind] for kind in get_args(hint) or (hint,) if kind is not NoneType]
    return _nullable(kinds[0]) if NoneType in get_args(hint) else kinds[0]


COLUMNS: Final[Mapping[str, Mapping[str, _ColumnType]]] = {
    "chats": {
        "state": _NAME,
        "settled": _FLAG,
        "archived": _FLAG,
        "version": _COUNT,
        "event_seq": _COUNT,
        "head": _HASH,
        "since": _TIME,
        "rested": _nullable(_TIME),
        **{name: _column_type_for(hint) for name, hint in QUERIED.items()},
        "agent": _TEXT,
        "awaits": _nullable(_ColumnType("client, subagents or both", lambda value: value in get_args(Awaited))),
        "action_of": _nullable(_ColumnType("whose action is needed", lambda value: value in get_args(ActionOf))),
        "wake_at": _nullable(_TIME),
        "fair_key": _TEXT,
        "capped_model": _TEXT,
        "needs": _ColumnType("a list of tools' names", _parses(ids_of)),
        "calls": _ColumnType("a list of call ids", _parses(ids_of)),
        "worker": _nullable(_NAME),
        "token": _nullable(_COUNT),
        "expires": _nullable(_TIME),
        "lasts": _nullable(_COUNT),
        "salt": _SALT,
        "changed": _COUNT,
    },
    "profiles": {"salt": _SALT},
    "facts": {"salt": _SALT, "changed": _COUNT},
    "messages": {
        "salt": _SALT,
        "position": _COUNT,
        "added": _COUNT,
        "cut": _nullable(_COUNT),
        "erased": _FLAG,
    },
    "boundaries": {
        "position": _COUNT,
        "reason": _ColumnType("clear or compaction", lambda value: value in ("clear", "compaction")),
        "step": _COUNT,
        "carried": _ColumnType("a list of positions", _parses(_parse_positions)),
        "cut": _nullable(_COUNT),
    },
    "calls": {"step": _COUNT, "idx": _COUNT, "deadline": _nullable(_TIME)},
    "queue": {"salt": _SALT, "rank": _INTEGER},
    "leases": {"worker": _NAME, "token": _COUNT, "expires": _TIME, "lasts": _COUNT},
    "usage": {"version": _COUNT, "number": _COUNT},
    "chat_files": {"digest": _HASH, "size": _COUNT, "sent": _FLAG, "at": _TIME},
    "audit": {
        "version": _COUNT,
        "aside": _ColumnType("what belongs to a record", _parses(Aside.load)),
        "hash": _BLOB,
        "digests": _ColumnType("bytes", lambda value: isinstance(value, bytes)),
    },
    "events": {
        "kind": _KIND,
        "seq": _COUNT,
        "at": _TIME,
        "step": _nullable(_COUNT),
        "attempt": _nullable(_COUNT),
        "position": _nullable(_COUNT),
        "changed": _nullable(_COUNT),
    },
    "partial_events": {"kind": _KIND, "seq": _COUNT, "at": _TIME},
}
"""The types of the columns, by table: those whose values can be checked on their own."""
