"""Converts facts, messages, calls and events to columns and JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec
from msgspec.structs import replace

from turnwise.states.budgets import StoredBudget
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable, InvalidArgument
from turnwise.states.events import Event
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import FORMAT, Message, QueuedMessage, without_secrets
from turnwise.states.values.plain import is_shallow
from turnwise.states.values.values import changed_fields, place_and_problem
from turnwise.states.writes import RecordReceipt, RecordUsage
from turnwise.time_zones import time_zone

_T = TypeVar("_T")


PARSE_ERRORS: Final = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""The errors that reading raises when a value is not what turnwise stored."""
_MOST_CHARACTERS: Final = 300
DEEPEST_STORED: Final = 160
"""How many objects and arrays may stand inside each other in a column. It is more than turnwise stores, and few enough
for every function that walks through a value."""
TOO_DEEP: Final = f"it is nested deeper than {DEEPEST_STORED} levels"


def json_of(body: str) -> Any:
    """Return the JSON that a column holds.

    Raises:
        ValueError: it is no JSON, or nested deeper than turnwise stores.
    """
    value = msgspec.json.decode(body)
    if _may_be_deep(body) and not is_shallow(value, DEEPEST_STORED):
        raise ValueError(TOO_DEEP)
    return value


def _may_be_deep(body: str) -> bool:
    """Whether JSON opens so many objects and arrays that they may stand too deep inside each other."""
    return len(body) > 2 * DEEPEST_STORED and body.count("[") + body.count("{") > DEEPEST_STORED


class Body(Generic[_T]):
    """One kind of value as the JSON of a `body` column."""

    def __init__(self, column: str, kind: Any) -> None:
        self.column = column
        """The place of the JSON, as `table.column`."""
        self._kind = kind

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[_T]:
        return msgspec.json.Decoder(self._kind)

    def dump(self, value: _T) -> str:
        return msgspec.json.encode(value).decode()

    def load(self, body: str, chat_id: str) -> _T:
        """Return the value that a body of the chat holds, or raise `ChatUnreadable`: it holds something else."""
        try:
            value = self._decoder.decode(body)
            if _may_be_deep(body):
                json_of(body)
        except PARSE_ERRORS as error:
            raise unreadable(chat_id, self.column, error) from None
        return value


PROFILES: Final = Body[Profile]("profiles.body", Profile)
MESSAGES: Final = Body[Message]("messages.body", Message)
CALLS: Final = Body[ToolCall]("calls.body", ToolCall)
QUEUE: Final = Body[QueuedMessage]("queue.body", QueuedMessage)
RECEIPTS: Final = Body[RecordReceipt]("receipts.body", RecordReceipt)
USAGE: Final = Body[RecordUsage]("usage.body", RecordUsage)
BUDGETS: Final = Body[StoredBudget]("budgets.body", StoredBudget)
EVENTS: Final = Body[Event]("events.body", Event)


def load_budget(key: object, body: object, chat_id: str) -> StoredBudget:
    """Return the budget that a row holds.

    Raises:
        ChatUnreadable: it holds something else, so no chat that spends it goes on. The error names the budget.
    """
    name = str(key).replace(":", " ", 1)
    try:
        budget = BUDGETS.load(body if isinstance(body, str) else repr(body), chat_id)
    except ChatUnreadable as error:
        problem = error.problem
    else:
        found = _problem_of(budget, str(key))
        if found is None:
            return budget
        problem = found
    raise ChatUnreadable(
        BUDGETS.column, f"the budget of {name:.1100}: {problem}; `turnwise budget` replaces it", chat_id=chat_id
    )


def _problem_of(budget: StoredBudget, key: str) -> str | None:
    """Return what no budget has that turnwise stored under that key."""
    if (budget.owner is None) == (budget.chat_id is None) or budget.key != key:
        return "it names another owner or chat"
    amounts = [budget.tokens or 0, budget.cost or 0, budget.unpriced, budget.spent.tokens, budget.spent.cost]
    for one in budget.reservations.values():
        amounts += [one.tokens, one.cost or 0]
    if not all((isinstance(one, int) or one.is_finite()) and one >= 0 for one in amounts):
        return "it holds an amount below zero, or none"
    try:
        time_zone(budget.timezone)
    except InvalidArgument:
        return f"this machine has no time zone {budget.timezone!a:.60}"
    return None


class FactsRow(NamedTuple):
    """The columns of `chats` that hold facts."""

    id: str
    state: str
    settled: bool
    archived: bool
    version: int
    calls: str
    """The ids of the calls in the facts, as a JSON array: not every call of the step is among them."""
    facts: str
    last_seq: int


_IN_COLUMNS: Final = frozenset({"chat_id", "state", "stored_state", "settled", "archived", "version", "last_seq"})
_IN_TABLES: Final = frozenset({"profile", "calls", "queue", "lease"})
ELSEWHERE: Final = _IN_COLUMNS | _IN_TABLES
"""The fields of facts that are stored outside their body."""


def row_of(facts: Facts) -> FactsRow:
    """Return the columns that hold the facts; profile, calls, queue and lease have tables of their own."""
    return FactsRow(
        facts.chat_id,
        facts.state_as_stored,
        facts.settled,
        facts.archived,
        facts.version,
        facts.calls.ids,
        msgspec.json.encode(changed_fields(facts, without=ELSEWHERE)).decode(),
        facts.last_seq,
    )


def message_of(form: int | None, body: str, chat_id: str) -> Message:
    """Return the message of a chat that a body in the format `form` holds.

    Raises:
        ChatUnreadable: it holds something else, or is of a format that this version does not know.
    """
    if form != FORMAT:
        problem = f"it has format {form!a:.20}, this version of turnwise reads format {FORMAT}"
        raise ChatUnreadable("messages.format", problem, chat_id=chat_id)
    return MESSAGES.load(body, chat_id)


def event_of(  # noqa: PLR0913, PLR0917 - the columns of a row
    chat_id: str, seq: int, kind: str, at: int | datetime, body: str, form: int | None, message: str | None
) -> Event:
    """Return the event that a row and the message it points at hold.

    The body leaves out what the columns say, and what the message does. The time may be in microseconds.

    Raises:
        ChatUnreadable: they do not hold a valid event.
    """
    try:
        time = at if isinstance(at, datetime) else time_of(at)
        columns = json.dumps({"kind": kind, "chat_id": chat_id, "seq": seq, "at": time.isoformat()})
        body = columns if body == "{}" else f"{columns[:-1]},{body[1:]}"
        if message is None:
            return EVENTS.load(body, chat_id)
        pointed_at = message_of(form, message, chat_id)
        if kind == "message":
            content = {"message": msgspec.to_builtins(without_secrets(pointed_at))}
        else:
            content = {"output": None if pointed_at.result is None else pointed_at.result.output}
        return cast("Event", msgspec.convert({**json_of(body), **content}, Event))
    except ChatUnreadable:
        raise
    except PARSE_ERRORS as error:
        raise unreadable(chat_id, "events.body", error) from None


def columns_of_message(message: Message) -> dict[str, Any]:
    return {
        "position": message.position,
        "id": message.id,
        "role": message.role,
        "turn": message.turn,
        "step": message.step,
        "audience": message.audience,
        "erased": message.erased,
    }


def columns_of_call(call: ToolCall) -> dict[str, Any]:
    """Return the columns of `calls` that repeat what is in the body; the deadline is in microseconds."""
    deadline = None if call.deadline is None else micros_of(call.deadline)
    return {"call_id": call.call_id, "step": call.step, "idx": call.index, "status": call.status, "deadline": deadline}


def numbered(events: Sequence[Event], *, chat_id: str, after: int, at: datetime) -> tuple[Event, ...]:
    """Return the events as they are stored: with chat, time, and numbers from `after` + 1 on."""
    return tuple(replace(event, seq=seq, chat_id=chat_id, at=at) for seq, event in enumerate(events, start=after + 1))


def unnumbered(event: Event) -> Event:
    return replace(event, seq=0, chat_id="", at=None)


def first_due_in(facts: Mapping[str, Any]) -> int | None:
    """Return when the first scheduled message in stored facts is due, in microseconds; `None` without any."""
    due = (datetime.fromisoformat(message["due"]) for message in facts.get("schedules", ()))
    return min(map(micros_of, due), default=None)


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def micros_of(time: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (time - EPOCH) // _MICROSECOND


def micros_in(duration: timedelta) -> int:
    """Return a duration in whole microseconds."""
    return duration // _MICROSECOND


def time_of(micros: int) -> datetime:
    """Return the time that is `micros` microseconds after 1970, in UTC."""
    return EPOCH + micros * _MICROSECOND


def unreadable(chat_id: str, column: str, error: Exception) -> ChatUnreadable:
    return ChatUnreadable(column, described(error), chat_id=chat_id)


def described(error: Exception) -> str:
    """Return the problem without the stored value: that may be confidential."""
    if isinstance(error, ChatUnreadable):
        return error.problem
    if not isinstance(error, msgspec.MsgspecError):
        return f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]
    place, problem = place_and_problem(error)
    return f"{place and place + ': '}{problem}"[:_MOST_CHARACTERS]
