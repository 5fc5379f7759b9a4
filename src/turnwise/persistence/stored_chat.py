"""Reads where a chat stands: strictly, or as much of it as can be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

import msgspec
from msgspec.json import decode
from msgspec.structs import replace

from turnwise.persistence.rows import (
    CALLS,
    DEEPEST_STORED,
    ELSEWHERE,
    EPOCH,
    PARSE_ERRORS,
    QUEUE,
    TOO_DEEP,
    Body,
    described,
    json_of,
)
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, Lease, Profile
from turnwise.states.model_errors import UNREADABLE
from turnwise.states.names import ChatState
from turnwise.states.step_calls import StepCalls
from turnwise.states.values.plain import COUNTABLE, is_shallow
from turnwise.states.values.values import Value, place_and_problem

_T = TypeVar("_T")

UNREADABLE_STATE: Final = "unreadable"
"""Stands for the stored state of a chat that cannot be read: only `repaired` leaves it."""
MISSING: Final = "the row is missing"

_STATES: Final = frozenset(ChatState)
_HASH_LENGTH: Final = 64
_OWN_FIELDS: Final = {*Facts.__struct_fields__} - ELSEWHERE
_FLAGS: Final = (0, 1)
UNKNOWN_TIME: Final = EPOCH
"""When a chat was created or deleted of which that cannot be read."""


class IntegrityIssue(Value, frozen=True):
    """One place whose value is not what turnwise stored, and the problem."""

    column: str
    """`table.column`."""
    problem: str
    """What is wrong with the value."""


class Stored(NamedTuple):
    """The stored values that say where a chat stands, as the database returned them."""

    id: str
    state: Any
    settled: Any
    archived: Any
    version: Any
    call_ids: Any
    """The ids of the calls in the facts: a JSON array, or a sequence."""
    facts: Any
    profile: Any
    calls: Sequence[Any]
    queue: Sequence[Any]
    worker: Any
    token: Any
    """The token of the lease; worker and token are `None` without one."""
    last_seq: Any
    """The number of the last event."""
    facts_column: str
    lease_table: str


class PartialRead(msgspec.Struct, frozen=True):
    """The part of a chat that can be read, and the issues of the rest."""

    facts: Facts
    """The facts, with defaults for what cannot be read. If there is an issue, `stored_state` is `UNREADABLE_STATE`."""
    issues: tuple[IntegrityIssue, ...]

    @property
    def error(self) -> ChatUnreadable:
        issue = self.issues[0]
        return ChatUnreadable(issue.column, issue.problem, chat_id=self.facts.chat_id)


def facts_of(stored: Stored) -> Facts:
    """Return the stored facts, or raise `ChatUnreadable`: a value is not what turnwise stored."""
    try:
        return _build_facts(stored)
    except (ChatUnreadable, *PARSE_ERRORS) as error:
        salvaged = salvage(stored)
        if salvaged.issues:
            raise salvaged.error from None
        raise ChatUnreadable(stored.facts_column, described(error), chat_id=stored.id) from None


def facts_or_rest(stored: Stored) -> Facts | PartialRead:
    try:
        return facts_of(stored)
    except ChatUnreadable as error:
        rest = salvage(stored)
        return rest if rest.issues else partial_read(rest.facts, (IntegrityIssue(error.column, error.problem),))


def salvage(stored: Stored) -> PartialRead:
    """Return as much of the facts as can be read, with every issue that was found."""
    return _Salvage(stored).done()


def unread_rest(chat_id: str, error: Exception) -> PartialRead:
    """Return what is left of a chat of which not even the rows can be read: its id."""
    blank = Facts(chat_id=chat_id, profile=Profile(created_at=UNKNOWN_TIME))
    return partial_read(blank, (IntegrityIssue("chats", described(error)),))


def partial_read(facts: Facts, issues: Sequence[IntegrityIssue]) -> PartialRead:
    return PartialRead(replace(facts, stored_state=UNREADABLE_STATE), tuple(issues))


def ids_of(call_ids: Any) -> list[str]:
    """Return the ids of calls that a column holds, or raise `ValueError`: it holds something else."""
    ids = decode(call_ids) if isinstance(call_ids, str | bytes) else call_ids
    if not isinstance(ids, list) or not all(isinstance(call_id, str) for call_id in ids):
        raise ValueError("a list of call ids belongs here")
    return ids


def _build_facts(stored: Stored) -> Facts:
    is_declared = stored.state in _STATES
    if not isinstance(stored.state, str):
        raise ValueError("no state")  # noqa: TRY004 - what is stored is wrong
    if stored.settled not in _FLAGS or stored.archived not in _FLAGS or not is_count(stored.version):
        raise ValueError("no flag, or no version")
    if not is_count(stored.last_seq):
        raise ValueError("no number of the last event")
    columns = {
        "chat_id": stored.id,
        "state": stored.state if is_declared else ChatState.error,
        "stored_state": None if is_declared else stored.state,
        "settled": bool(stored.settled),
        "archived": bool(stored.archived),
        "version": stored.version,
        "last_seq": stored.last_seq,
        "profile": json_of(stored.profile),
    }
    facts = msgspec.convert({**json_of(stored.facts), **columns}, Facts)
    calls = tuple([CALLS.load(body, stored.id) for body in stored.calls])
    if len(calls) != len(ids_of(stored.call_ids)):
        raise ValueError("calls are missing")
    queue = tuple([QUEUE.load(body, stored.id) for body in stored.queue])
    lease = None
    if stored.worker is not None or stored.token is not None:
        if not isinstance(stored.worker, str) or not is_count(stored.token):
            raise ValueError("no lease")
        lease = Lease(stored.worker, stored.token)
    return replace(facts, calls=StepCalls(calls), queue=queue, lease=lease)


def is_count(value: object) -> bool:
    """Whether a value is a whole number, not negative, from which one can count on."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < COUNTABLE


def is_hash(value: object) -> TypeGuard[str]:
    """Whether a value looks like the hash of an audit record."""
    return isinstance(value, str) and len(value) == _HASH_LENGTH


def head_of(chat_id: str, version: object, head: object) -> tuple[int, str]:
    """Return a chat's version and the hash of its last record, given the stored values.

    Raises:
        ChatUnreadable: they are none.
    """
    if not isinstance(version, int) or not is_count(version) or version == 0:
        raise ChatUnreadable("chats.version", "a count of records belongs here", chat_id=chat_id)
    if not is_hash(head):
        raise ChatUnreadable("chats.head", "a SHA-256 in hex belongs here", chat_id=chat_id)
    return version, head


class _Salvage:
    """Reads the facts value by value, where `_build_facts` reads them at once, and skips values that cannot be read."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._issues: list[IntegrityIssue] = []

    def done(self) -> PartialRead:
        stored = self._stored
        state = self._check("chats.state", stored.state, isinstance(stored.state, str), "a text")
        is_declared = state in _STATES
        facts = Facts(
            **self._fields(),
            chat_id=stored.id,
            profile=self._profile(),
            state=ChatState(str(state)) if is_declared else ChatState.error,
            stored_state=None if is_declared else state,
            settled=bool(self._flag("chats.settled", stored.settled, default=True)),
            archived=bool(self._flag("chats.archived", stored.archived, default=False)),
            version=self._check("chats.version", stored.version, is_count(stored.version), "a count") or 0,
            last_seq=self._check("chats.event_seq", stored.last_seq, is_count(stored.last_seq), "a count") or 0,
            calls=StepCalls(self._calls()),
            queue=self._each(QUEUE, stored.queue),
            lease=self._lease(),
        )
        return partial_read(facts, self._issues) if self._issues else PartialRead(facts, ())

    def _check(self, column: str, value: _T, right: bool, belongs: str) -> _T | None:  # noqa: FBT001
        if right:
            return value
        found = "nothing" if value is None else f"{type(value).__name__} of other content"  # it may be confidential
        self._issues.append(IntegrityIssue(column, f"{belongs} belongs here, found {found}"))
        return None

    def _flag(self, column: str, value: Any, *, default: bool) -> bool:
        flag = self._check(column, value, value in _FLAGS, "0 or 1")
        return default if flag is None else flag

    def _fields(self) -> dict[str, Any]:
        """Return the fields of the facts' body that can be read."""
        stored_fields = self._object(self._stored.facts_column, self._stored.facts)
        stored_fields = {name: value for name, value in stored_fields.items() if name in _OWN_FIELDS}
        blank = {"chat_id": self._stored.id, "profile": {"created_at": UNKNOWN_TIME}}
        column = self._stored.facts_column
        facts = self._whole(column, stored_fields, lambda fields: msgspec.convert(fields | blank, Facts))
        return {name: getattr(facts, name) for name in stored_fields if facts is not None}

    def _profile(self) -> Profile:
        stored_fields = self._object("profiles.body", self._stored.profile)
        unknown = Profile(created_at=UNKNOWN_TIME)
        if not stored_fields:
            return unknown
        blank = {"created_at": UNKNOWN_TIME}
        read = self._whole("profiles.body", stored_fields, lambda fields: msgspec.convert(blank | fields, Profile))
        return read or unknown

    def _object(self, column: str, body: Any) -> dict[str, Any]:
        if body is None:
            self._issues.append(IntegrityIssue(column, MISSING))
            return {}
        try:
            decoded = decode(body)
        except PARSE_ERRORS as error:
            self._issues.append(IntegrityIssue(column, described(error)))
            return {}
        fields = self._check(column, decoded, isinstance(decoded, dict), "a JSON object") or {}
        shallow = {name: field for name, field in fields.items() if is_shallow(field, DEEPEST_STORED - 1)}
        if len(shallow) < len(fields):
            self._issues.append(IntegrityIssue(column, TOO_DEEP))
        return shallow

    def _whole(self, column: str, stored_fields: dict[str, Any], read: Callable[[dict[str, Any]], _T]) -> _T | None:
        """Return the value that the readable fields make; unreadable ones are removed from `stored_fields`."""
        while True:
            try:
                return read(stored_fields)
            except PARSE_ERRORS as error:
                self._issues.append(IntegrityIssue(column, described(error)))
                place = place_and_problem(error)[0] if isinstance(error, msgspec.ValidationError) else ""
                wrong = re.split(r"\W", place)[0]
                if wrong not in stored_fields:
                    return None
                del stored_fields[wrong]

    def _calls(self) -> tuple[ToolCall, ...]:
        calls = self._each(CALLS, self._stored.calls)
        try:
            ids = ids_of(self._stored.call_ids)
        except PARSE_ERRORS as error:
            self._issues.append(IntegrityIssue("chats.calls", described(error)))
            return calls
        if len(self._stored.calls) != len(ids):
            self._issues.append(
                IntegrityIssue("calls.call_id", f"{len(self._stored.calls)} of {len(ids)} calls are there")
            )
        return calls

    def _each(self, kind: Body[_T], bodies: Sequence[Any]) -> tuple[_T, ...]:
        read: list[_T] = []
        for body in bodies:
            try:
                read.append(kind.load(body, self._stored.id))
            except ChatUnreadable as error:
                self._issues.append(IntegrityIssue(error.column, error.problem))
        return tuple(read)

    def _lease(self) -> Lease | None:
        stored, table = self._stored, self._stored.lease_table
        if stored.worker is None and stored.token is None:
            return None
        worker = self._check(f"{table}.worker", stored.worker, isinstance(stored.worker, str), "a name")
        token = self._check(f"{table}.token", stored.token, is_count(stored.token), "a count")
        return None if worker is None or token is None else Lease(worker, token)


def unread(issues: Sequence[IntegrityIssue]) -> ErrorInfo:
    problems = "; ".join(dict.fromkeys(f"{issue.column}: {issue.problem}" for issue in issues))
    return ErrorInfo(kind=UNREADABLE, message=problems)
