"""Examining a chat: every row of it, column by column, against what turnwise stores there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, get_args

from pydantic import TypeAdapter

from turnwise.persistence import audit as audit_log
from turnwise.persistence.aside import Aside
from turnwise.persistence.event_rows import event_of
from turnwise.persistence.rows import (
    CALLS,
    EVENTS,
    GARBLED,
    PROFILES,
    QUEUE,
    RECEIPTS,
    USAGE,
    described,
    message_of,
    micros_of,
    time_of,
)
from turnwise.persistence.standing import MISSING, Flaw, Stored, ids_of, is_count, is_hash, salvage
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import Event
from turnwise.states.invariants import broken_promises

Row = Mapping[str, Any]
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
    "leases": (),
    "profiles": (),
}
"""What names a row of a chat, by table."""


class Finding(NamedTuple):
    """One thing that is wrong with one row."""

    table: str
    row: Row
    column: str
    problem: str

    @property
    def flaw(self) -> Flaw:
        """The place and the problem, with what names the row."""
        names = ", ".join(f"{key} {self.row.get(key)!a:.40}" for key in KEYS.get(self.table, ()))
        return Flaw(f"{self.table}.{self.column}", f"{names}: {self.problem}" if names else self.problem)


def examine(chat_id: str, rows: Rows) -> list[Finding]:
    """Return all that is wrong with a chat's rows, each alone and together."""
    found: list[Finding] = []
    for table in _COLUMNS:
        for row in rows.get(table, ()):
            found += [Finding(table, row, column, problem) for column, problem in misfits(table, row)]
    for table, read in _READ.items():
        for row in rows.get(table, ()):
            found += [Finding(table, row, column, problem) for column, problem in _unread(chat_id, row, read)]
    messages = {row["position"]: row for row in rows.get("messages", ())}
    for row in rows.get("events", ()):
        problems = _event_problems(chat_id, row, messages)
        found += [Finding("events", row, column, problem) for column, problem in problems]
    found += _standing_problems(chat_id, rows)
    found += _log_problems(chat_id, rows)
    return list({(finding.table, id(finding.row), finding.column): finding for finding in found}.values())


def misfits(table: str, row: Row) -> Iterator[tuple[str, str]]:
    """Yield the columns of a row that hold a value of another kind than belongs there, and what belongs there."""
    for column, wanted in _COLUMNS.get(table, {}).items():
        if column in row and not wanted.fits(row[column]):
            yield column, f"{wanted.belongs} belongs here"


def blamed(chat_id: str, rows: Rows, error: Exception) -> ChatUnreadable:
    """Return what it means that reading a chat's rows raised an error: the first thing that is wrong with them."""
    try:
        flaws = [finding.flaw for finding in examine(chat_id, rows)]
    except GARBLED:
        flaws = []
    flaw = flaws[0] if flaws else Flaw("chats", described(error))
    return ChatUnreadable(flaw.column, flaw.problem, chat_id=chat_id)


def stored_in(chat_id: str, rows: Rows) -> Stored:
    """Return what the rows tell of where the chat stands."""
    chat = rows["chats"][0]
    lease = next(iter(rows.get("leases", ())), chat)
    facts = chat["facts"] if "facts" in chat else next((row["body"] for row in rows.get("facts", ())), None)
    try:
        remembered = set(ids_of(chat["calls"]))
    except GARBLED:
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


def spelled(value: Any) -> Any:
    """Return a stored value as JSON can hold it: bytes as `{"hex": ...}`, times as ISO 8601."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def lines_of(rows: Rows) -> Iterator[str]:
    """Yield every row as a line of JSON: its table, and its columns as they are stored."""
    for table, found in rows.items():
        for row in found:
            columns = {name: spelled(value) for name, value in row.items()}
            yield json.dumps({"table": table, "row": columns}, ensure_ascii=True)


# One column


class _Wanted(NamedTuple):
    belongs: str
    fits: Callable[[Any], bool]


def _or_nothing(wanted: _Wanted) -> _Wanted:
    return _Wanted(f"{wanted.belongs}, or nothing,", lambda value: value is None or wanted.fits(value))


def _is_time(value: Any) -> bool:
    if isinstance(value, datetime):
        return True
    try:
        time_of(value)
    except GARBLED:
        return False
    return is_count(value)


def _is_hash(value: Any) -> bool:
    return is_hash(value) and all(letter in "0123456789abcdef" for letter in value)


_TEXT: Final = _Wanted("a text", lambda value: isinstance(value, str) and value.isprintable())
_COUNT: Final = _Wanted("a count", is_count)
_FLAG: Final = _Wanted("0 or 1", lambda value: value in (0, 1))
_TIME: Final = _Wanted("a time", _is_time)
_HASH: Final = _Wanted("a SHA-256 in hex", _is_hash)
_BLOB: Final = _Wanted("a SHA-256", lambda value: isinstance(value, bytes) and len(value) == 32)  # noqa: PLR2004
_CREATED: Final = 1
"""The version in which a chat is created; only a fork has messages then."""
PLAUSIBLE: Final = 1000
"""Messages that may be missing; a history that is said to be longer than that is a mistake of what is stored."""
_KINDS: Final = frozenset(kind.model_fields["kind"].default for kind in get_args(get_args(Event)[0]))
_KIND: Final = _Wanted("a kind of event", lambda value: value in _KINDS)
_POSITIONS: Final = TypeAdapter(list[int])


def _is_positions(value: Any) -> bool:
    try:
        _POSITIONS.validate_python(json.loads(value) if isinstance(value, str) else value, strict=True)
    except GARBLED:
        return False
    return True


def _is_ids(value: Any) -> bool:
    try:
        ids_of(value)
    except GARBLED:
        return False
    return True


def _is_salt(value: Any) -> bool:
    return value is None or (isinstance(value, str) and all(letter in "0123456789abcdef" for letter in value))


def _is_aside(value: Any) -> bool:
    try:
        Aside.load(value)
    except GARBLED:
        return False
    return True


_SALT: Final = _Wanted("a salt in hex, or nothing,", _is_salt)
_COLUMNS: Final[Mapping[str, Mapping[str, _Wanted]]] = {
    "chats": {
        "state": _TEXT,
        "settled": _FLAG,
        "archived": _FLAG,
        "version": _COUNT,
        "event_seq": _COUNT,
        "head": _HASH,
        "since": _TIME,
        "owner": _or_nothing(_Wanted("a text", lambda value: isinstance(value, str))),
        "calls": _Wanted("a list of call ids", _is_ids),
        "worker": _or_nothing(_TEXT),
        "token": _or_nothing(_COUNT),
        "expires": _or_nothing(_TIME),
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
        "carried": _Wanted("a list of positions", _is_positions),
        "cut": _or_nothing(_COUNT),
    },
    "calls": {"step": _COUNT, "idx": _COUNT, "deadline": _or_nothing(_TIME)},
    "queue": {"salt": _SALT, "rank": _Wanted("a whole number", lambda value: type(value) is int)},
    "leases": {"worker": _TEXT, "token": _COUNT, "expires": _TIME, "lasts": _COUNT},
    "usage": {"version": _COUNT, "number": _COUNT},
    "audit": {"version": _COUNT, "aside": _Wanted("what belongs to a record", _is_aside), "hash": _or_nothing(_BLOB)},
    "events": {
        "kind": _KIND,
        "seq": _COUNT,
        "at": _or_nothing(_TIME),
        "step": _or_nothing(_COUNT),
        "attempt": _or_nothing(_COUNT),
        "position": _or_nothing(_COUNT),
    },
    "partial_events": {"kind": _KIND, "seq": _COUNT, "at": _TIME},
}


# One row: what its columns repeat of its body


_Told = Mapping[str, Any]


def _message(chat_id: str, row: Row) -> _Told:
    said = message_of(row["format"], row["body"], chat_id)
    return {
        "position": said.position,
        "id": said.id,
        "role": said.role,
        "turn": said.turn,
        "step": said.step,
        "audience": said.audience.value,
        "erased": said.erased,
    }


def _call(chat_id: str, row: Row) -> _Told:
    call = CALLS.load(row["body"], chat_id)
    deadline = call.deadline
    if deadline is not None and not isinstance(row["deadline"], datetime):
        deadline = micros_of(deadline)  # type: ignore[assignment] # as the column spells it
    return {
        "call_id": call.call_id,
        "step": call.step,
        "idx": call.index,
        "status": call.status.value,
        "deadline": deadline,
    }


def _usage(chat_id: str, row: Row) -> _Told:
    USAGE.load(row["body"], chat_id)
    return {}


def _profile(chat_id: str, row: Row) -> _Told:
    PROFILES.load(row["body"], chat_id)
    return {}


def _partial_event(chat_id: str, row: Row) -> _Told:
    event = EVENTS.load(row["body"], chat_id)
    return {"kind": event.kind, "step": getattr(event, "step", None), "attempt": getattr(event, "attempt", None)}


_READ: Final[Mapping[str, Callable[[str, Row], _Told]]] = {
    "profiles": _profile,
    "messages": _message,
    "calls": _call,
    "queue": lambda chat_id, row: {"id": QUEUE.load(row["body"], chat_id).id},
    "receipts": lambda chat_id, row: {"client_id": RECEIPTS.load(row["body"], chat_id).client_id},
    "usage": _usage,
    "partial_events": _partial_event,
}


def _unread(chat_id: str, row: Row, read: Callable[[str, Row], _Told]) -> Iterator[tuple[str, str]]:
    try:
        told = read(chat_id, row)
    except ChatUnreadable as error:
        yield error.column.partition(".")[2], error.problem
    except GARBLED as error:
        yield "body", described(error)
    else:
        yield from _differing(row, told)


def _differing(row: Row, told: _Told) -> Iterator[tuple[str, str]]:
    for column, value in told.items():
        if row[column] != value:
            yield column, "it is not what the body says"


def _event_problems(chat_id: str, row: Row, messages: Mapping[Any, Row]) -> Iterator[tuple[str, str]]:
    position = row.get("position")
    message = None if position is None else messages.get(position)
    if is_count(position) and message is None:
        yield "position", "there is no such message"
        return
    try:
        if "position" in row:
            form, body = (None, None) if message is None else (message["format"], message["body"])
            event = event_of(chat_id, row["seq"], row["kind"], row["at"], row["body"], form, body)
        else:
            event = EVENTS.load(row["body"], chat_id)
    except ChatUnreadable as error:
        table, _, column = error.column.partition(".")
        if table == "events":
            yield column, error.problem
        return  # the message itself is found apart
    except GARBLED as error:
        yield "body", described(error)
        return
    told: dict[str, Any] = {"kind": event.kind}
    if event.kind == "part" and "step" in row:
        told |= {"step": event.step, "attempt": event.attempt}
    yield from _differing(row, told)


# The chat as a whole


def _standing_problems(chat_id: str, rows: Rows) -> Iterator[Finding]:
    chat = rows["chats"][0]
    rest = salvage(stored_in(chat_id, rows))
    for flaw in rest.flaws:
        table, _, column = flaw.column.partition(".")
        if table in ("calls", "queue") and flaw.problem != MISSING and column == "body":
            continue  # found at its row
        own = table in ("facts", "profiles", "leases")
        yield Finding(table, next(iter(rows.get(table, ())), chat) if own else chat, column, flaw.problem)
    if rest.flaws:
        return
    facts = rest.facts
    for promise in broken_promises(facts):
        yield Finding("chats", chat, "state", f"the promise {promise} is broken")
    if chat["owner"] != facts.profile.owner:
        yield Finding("chats", chat, "owner", "it is not what the profile says")
    if facts.since is not None and chat["since"] not in (facts.since, micros_of(facts.since)):
        yield Finding("chats", chat, "since", "it is not what the facts say")
    last = max(
        (row["seq"] for row in (*rows.get("events", ()), *rows.get("partial_events", ())) if is_count(row["seq"])),
        default=0,
    )
    if is_count(chat["event_seq"]) and chat["event_seq"] < last:
        yield Finding("chats", chat, "event_seq", f"there is an event of number {last}")
    missing = missing_messages(rows, facts.history.length)
    if missing:
        yield Finding("messages", chat, "position", f"{len(missing)} message(s) are missing, first number {missing[0]}")


def missing_messages(rows: Rows, length: int) -> list[int]:
    """Return the positions up to `length`, or the last message, at which no message stands.

    Not those among messages that a fork took over: what an edit had cut out of them stayed behind.
    """
    stored = [row for row in rows.get("messages", ()) if is_count(row["position"])]
    positions = {row["position"] for row in stored}
    inherited = max((row["position"] for row in stored if row.get("added") == _CREATED), default=0)
    last = max(positions, default=0)
    end = min(max(last, min(length, last + PLAUSIBLE)), len(positions) + PLAUSIBLE)
    return [position for position in range(inherited + 1, end + 1) if position not in positions]


def _log_problems(chat_id: str, rows: Rows) -> Iterator[Finding]:
    chat, log = rows["chats"][0], sorted(rows.get("audit", ()), key=lambda row: str(row["version"]).zfill(20))
    versions = [row["version"] for row in log]
    if versions != list(range(1, len(log) + 1)):
        wrong = next((row for place, row in enumerate(log, 1) if row["version"] != place), log[-1])
        yield Finding("audit", wrong, "version", f"the log has {len(log)} records that do not follow one another")
    elif is_count(chat["version"]) and chat["version"] != len(log):
        yield Finding("chats", chat, "version", f"the log has {len(log)} records")
    hash_ = ""
    for row in log:
        try:
            if "hash" in row:
                entry = audit_log.Entry(row["version"], row["hash"].hex() if row["hash"] else "", row["body"])
                hash_ = audit_log.log_of(chat_id, [entry])[0].hash
            else:
                hash_ = audit_log.from_json(row["body"]).hash
        except GARBLED as error:
            yield Finding("audit", row, "body", described(error))
            hash_ = ""
    if hash_ and chat["head"] != hash_:
        yield Finding("chats", chat, "head", "it is not the hash of the last record")


def versions_of(rows: Rows) -> list[int]:
    """Return the versions of the audit records that have one."""
    return sorted(row["version"] for row in rows.get("audit", ()) if is_count(row["version"]))
