"""The kinds of values that turnwise stores in each column, whatever the rest of the row holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import NoneType
from typing import Any, Final, NamedTuple, get_args

import msgspec

from turnwise.persistence.audit.digests import Aside
from turnwise.persistence.chat_rows import Row
from turnwise.persistence.rows import GARBLED, time_of
from turnwise.persistence.stored_chat import ids_of, is_count, is_hash
from turnwise.states.events import EVENTS
from turnwise.states.facts import QUERIED
from turnwise.states.names import Awaited


def wrong_values(table: str, row: Row) -> Iterator[tuple[str, str]]:
    """Yield the columns of a row whose value is of the wrong kind, and what belongs there."""
    for column, wanted in COLUMNS.get(table, {}).items():
        if column in row and not wanted.fits(row[column]):
            yield column, f"{wanted.belongs} belongs here"


class _Wanted(NamedTuple):
    belongs: str
    fits: Callable[[Any], bool]


def _or_nothing(wanted: _Wanted) -> _Wanted:
    return _Wanted(f"{wanted.belongs}, or nothing,", lambda value: value is None or wanted.fits(value))


def _reads(read: Callable[[Any], object]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        try:
            read(value)
        except GARBLED:
            return False
        return True

    return fits


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime) or (is_count(value) and _reads(time_of)(value))


def _is_hex(value: Any) -> bool:
    return isinstance(value, str) and all(letter in "0123456789abcdef" for letter in value)


def _parse_positions(value: Any) -> list[int]:
    return msgspec.convert(json.loads(value) if isinstance(value, str) else value, list[int])


_TEXT: Final = _Wanted("a text", lambda value: isinstance(value, str))
_NAME: Final = _Wanted("a text", lambda value: isinstance(value, str) and value.isprintable())
"""What only turnwise names."""
_COUNT: Final = _Wanted("a count", is_count)
_FLAG: Final = _Wanted("0 or 1", lambda value: value in (0, 1))
_TIME: Final = _Wanted("a time", _is_time)
_HASH: Final = _Wanted("a SHA-256 in hex", lambda value: is_hash(value) and _is_hex(value))
_BLOB: Final = _Wanted("a SHA-256", lambda value: isinstance(value, bytes) and len(value) == 32)  # noqa: PLR2004
_KIND: Final = _Wanted("a kind of event", lambda value: isinstance(value, str) and value in EVENTS)


_SALT: Final = _or_nothing(_Wanted("a salt in hex", _is_hex))
_INTEGER: Final = _Wanted("a whole number", lambda value: type(value) is int)
_KINDS: Final = {str: _TEXT, int: _INTEGER, bool: _FLAG}


def _of_type(hint: Any) -> _Wanted:
    """Return the column value of a field by which chats are found."""
    kinds = [_KINDS[kind] for kind in get_args(hint) or (hint,) if kind is not NoneType]
    return _or_nothing(kinds[0]) if NoneType in get_args(hint) else kinds[0]


COLUMNS: Final[Mapping[str, Mapping[str, _Wanted]]] = {
    "chats": {
        "state": _NAME,
        "settled": _FLAG,
        "archived": _FLAG,
        "version": _COUNT,
        "event_seq": _COUNT,
        "head": _HASH,
        "since": _TIME,
        "rested": _or_nothing(_TIME),
        **{name: _of_type(hint) for name, hint in QUERIED.items()},
        "agent": _TEXT,
        "awaits": _or_nothing(_Wanted("client, subagents or both", lambda value: value in get_args(Awaited))),
        "needs": _Wanted("a list of tools' names", _reads(ids_of)),
        "calls": _Wanted("a list of call ids", _reads(ids_of)),
        "worker": _or_nothing(_NAME),
        "token": _or_nothing(_COUNT),
        "expires": _or_nothing(_TIME),
        "lasts": _or_nothing(_COUNT),
        "salt": _SALT,
    },
    "profiles": {"salt": _SALT},
    "facts": {"salt": _SALT},
    "messages": {
        "salt": _SALT,
        "position": _COUNT,
        "added": _COUNT,
        "cut": _or_nothing(_COUNT),
        "digest": _HASH,
        "erased": _FLAG,
    },
    "boundaries": {
        "position": _COUNT,
        "reason": _Wanted("clear or compaction", lambda value: value in ("clear", "compaction")),
        "step": _COUNT,
        "carried": _Wanted("a list of positions", _reads(_parse_positions)),
        "cut": _or_nothing(_COUNT),
    },
    "calls": {"step": _COUNT, "idx": _COUNT, "deadline": _or_nothing(_TIME)},
    "queue": {"salt": _SALT, "rank": _INTEGER},
    "leases": {"worker": _NAME, "token": _COUNT, "expires": _TIME, "lasts": _COUNT},
    "usage": {"version": _COUNT, "number": _COUNT},
    "chat_files": {"digest": _HASH, "size": _COUNT, "sent": _FLAG, "at": _TIME},
    "audit": {
        "version": _COUNT,
        "aside": _Wanted("what belongs to a record", _reads(Aside.load)),
        "hash": _BLOB,
        "digests": _Wanted("bytes", lambda value: isinstance(value, bytes)),
    },
    "events": {
        "kind": _KIND,
        "seq": _COUNT,
        "at": _TIME,
        "step": _or_nothing(_COUNT),
        "attempt": _or_nothing(_COUNT),
        "position": _or_nothing(_COUNT),
    },
    "partial_events": {"kind": _KIND, "seq": _COUNT, "at": _TIME},
}
"""What belongs in a column, by table and column: those that can be judged by one value alone."""
