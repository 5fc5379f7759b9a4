"""Values to columns and JSON, and back; and errors for unreadable values."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.persistence.raw_life import CHAT, moments

from support.life import NOW, Life, client, local
from turnwise.persistence.chat_rows import stored_in
from turnwise.persistence.commit import blank_chat
from turnwise.persistence.event_rows import rows_of
from turnwise.persistence.rows import (
    CALLS,
    DEEPEST_STORED,
    MESSAGES,
    columns_of_call,
    columns_of_message,
    described,
    event_of,
    json_of,
    message_of,
    micros_of,
    row_of,
    time_of,
    unreadable,
)
from turnwise.persistence.sql.statements import parsed
from turnwise.persistence.stored_chat import UNREADABLE, PartialRead, Stored, facts_of, facts_or_rest, salvage
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import (
    CompactionEvent,
    ErrorEvent,
    ErrorInfo,
    Event,
    MessageEvent,
    PartDelta,
    PartEvent,
    StatusEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwise.states.facts import Facts
from turnwise.states.messages import FORMAT, Message, Part, Role, TextPart, ToolResultPart
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.values.values import Json


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))  # noqa: DTZ001 - given its zone
def test_time_round_trip(time: datetime) -> None:
    assert time_of(micros_of(time)) == time
    assert micros_of(time.astimezone(timezone(timedelta(hours=5)))) == micros_of(time)


def test_message_round_trip_with_columns() -> None:
    life = Life()
    life.create()
    life.send()
    (message,) = life.messages
    assert message_of(FORMAT, MESSAGES.dump(message), "c") == message
    columns = columns_of_message(message)
    assert columns == {name: getattr(message, name) for name in columns}
    assert {"position", "id", "role", "turn", "step", "audience", "erased"} == columns.keys()
    for form, body, column in (
        (FORMAT + 1, MESSAGES.dump(message), "messages.format"),
        (FORMAT, "{}", "messages.body"),
    ):
        with pytest.raises(ChatUnreadable) as caught:
            message_of(form, body, "my chat")
        assert (caught.value.column, caught.value.chat_id) == (column, "my chat")


@pytest.mark.parametrize("call", [local("a", 2), client("b", deadline=NOW)])
def test_call_round_trip_with_columns(call: ToolCall) -> None:
    assert CALLS.load(CALLS.dump(call), "c") == call
    columns = columns_of_call(call)
    assert (columns["call_id"], columns["idx"], columns["step"]) == (call.call_id, call.index, call.step)
    assert columns["status"] == call.status
    assert columns["deadline"] == (None if call.deadline is None else micros_of(call.deadline))


def test_facts_round_trip_with_columns() -> None:
    life = Life()
    life.create()
    life.send()
    row = row_of(life.facts)
    assert (row.id, row.state, row.settled, row.archived) == ("c", "pending", True, False)
    assert (row.version, row.last_seq) == (life.facts.version, life.facts.last_seq)
    assert '"profile"' not in row.facts
    assert row_of(replace(life.facts, stored_state="lost")).state == "lost", "a word of another version is kept"
    blank = blank_chat("new", NOW).facts
    assert (blank.chat_id, blank.version, blank.profile.created_at) == ("new", 0, NOW)
    assert blank.state in set(ChatState)


def test_problem_hides_the_stored_value() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"a": ["hunter2"]}, dict[str, list[Literal["x"]]])
    assert described(caught.value) == "[...][0]: Invalid enum value"
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(5, list[int])
    assert described(caught.value) == "Expected `array`, got `int`"
    assert described(ValueError("it is bad")) == "ValueError: it is bad"
    assert described(ChatUnreadable("a.b", "it is bad", chat_id="c")) == "it is bad"
    assert len(described(ValueError("x" * 1000))) == len(described(ValueError("x" * 2000))) == 300
    error = unreadable("c", "a.b", ValueError("it is bad"))
    assert (error.chat_id, error.column, error.problem) == ("c", "a.b", "ValueError: it is bad")


def test_too_deep_json_is_unreadable() -> None:
    """Brackets in strings, and siblings, do not count as depth."""

    def nested(levels: int) -> str:
        return f'{{"metadata":{"[" * (levels - 1)}{"]" * (levels - 1)}}}'

    text = msgspec.json.encode(["[" * 1000, [{}] * 1000]).decode()
    assert json_of(text) == msgspec.json.decode(text)
    assert json_of(nested(DEEPEST_STORED)) == msgspec.json.decode(nested(DEEPEST_STORED))
    life = Life()
    life.create()
    life.send()
    message = MESSAGES.dump(life.messages[0])

    def read(levels: int) -> Iterator[Callable[[], object]]:
        deep = nested(levels)
        yield lambda: json_of(deep)
        yield lambda: MESSAGES.load(f"{deep[:-1]},{message[1:]}", "c")
        yield lambda: event_of("c", 1, "message", 0, deep, FORMAT, message)
        yield lambda: event_of("c", 1, "status", 0, f'{deep[:-1]},"state":"waiting"}}', None, None)

    for each in read(DEEPEST_STORED):
        each()
    for each in read(DEEPEST_STORED + 1):
        with pytest.raises((ValueError, ChatUnreadable), match=f"nested deeper than {DEEPEST_STORED} levels"):
            each()


# Rows of events


AT = datetime(2026, 1, 1, tzinfo=UTC)
RESULT = ToolResultEvent(
    step=1, call_id="a", index=0, name="look", output=None, is_error=False, outcome=CallStatus.succeeded
)
EVENTS: list[Event] = [
    StatusEvent(state=ChatState.waiting),
    PartEvent(step=1, attempt=1, index=0, part=PartDelta(type="text", delta="hi")),
    CompactionEvent(phase="started", step=1),
    ErrorEvent(error=ErrorInfo(kind="tool", message="no")),
    RESULT,
    replace(RESULT, output={"found": None}),
    ToolProgressEvent(step=1, call_id="a", progress=None),
    ToolProgressEvent(step=1, call_id="a", progress={"done": None}),
]


def numbered(event: Event, seq: int = 7) -> Event:
    return replace(event, chat_id="c", seq=seq, at=AT)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_event_round_trip(event: Event) -> None:
    """A tool's null output included."""
    (row,) = rows_of([numbered(event)])
    assert event_of("c", row.seq, row.kind, row.at, row.body, None, None) == numbered(event)


def message_with(position: int, *parts: Part, role: Role = "tool") -> Message:
    return Message(
        id=f"m{position}", role=role, parts=parts, turn=1, step=1, created_at=AT, position=position, synthetic=True
    )


def result(call_id: str, output: Json) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="look", output=output)


ASKED = message_with(1, TextPart(text="look"), role="user")
ANSWERED = message_with(2, result("b", "seen"))
OTHER = message_with(3, result("a", "nothing"))
SAME = message_with(4, result("a", "seen"))
TOLD = numbered(replace(RESULT, output="seen"))


def read_back(*events: Event) -> list[Event]:
    """Return the events as read back, each with the message of its row."""
    messages = {event.message.position: event.message for event in events if isinstance(event, MessageEvent)}
    read = []
    for row in rows_of(events):
        message = None if row.position is None else messages[row.position]
        stored = (None, None) if message is None else (FORMAT, MESSAGES.dump(message))
        read.append(event_of("c", row.seq, row.kind, row.at, row.body, *stored))
    return read


def test_content_is_stored_with_its_message() -> None:
    """A result matches the message with the same call and output, at any position."""
    events = [*(numbered(MessageEvent(message=message)) for message in (ASKED, ANSWERED, OTHER, SAME)), TOLD]
    rows = rows_of(events)
    assert [row.position for row in rows] == [1, 2, 3, 4, 4]
    assert not any("seen" in row.body or "look" in row.body.replace('"name":"look"', "") for row in rows)
    assert read_back(*events) == events


@pytest.mark.parametrize("messages", [(), (ASKED,), (ANSWERED,), (OTHER,), (ASKED, ANSWERED, OTHER)])
def test_result_without_message_is_stored_in_the_event(messages: tuple[Message, ...]) -> None:
    events = [*(numbered(MessageEvent(message=message)) for message in messages), TOLD]
    assert rows_of(events)[-1].position is None
    assert read_back(*events) == events


@pytest.mark.parametrize(
    ("at", "body", "form", "column"),
    [
        ("poison", "{}", FORMAT, "events.body"),
        (10**30, "{}", FORMAT, "events.body"),
        (0, "poison", FORMAT, "events.body"),
        (0, "[]", FORMAT, "events.body"),
        (0, "{}", FORMAT, "events.body"),
        (0, "{}", FORMAT + 1, "messages.format"),
    ],
)
def test_invalid_event_row_names_its_column(at: Any, body: str, form: int, column: str) -> None:
    with pytest.raises(ChatUnreadable) as caught:
        event_of("c", 7, "tool_result", at, body, form, MESSAGES.dump(SAME))
    assert (caught.value.chat_id, caught.value.column) == ("c", column)


# Statements stand in files


SQL: Final = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|WHERE|ORDER BY|VALUES)\b.*\S")


BOTH: Final = "-- name: one\nSELECT :a_ids WHERE :b = ANY (:a_ids) AND c::text = '';\n"


def test_statements_are_translated_for_each_dialect() -> None:
    postgres, sqlite = parsed(BOTH, "postgres")["one"], parsed(BOTH, "sqlite")["one"]
    assert postgres.sql.endswith("SELECT $1 WHERE $2 = ANY ($1) AND c::text = ''")
    assert postgres.parameters == sqlite.parameters == ("a_ids", "b")
    assert sqlite.sql.endswith("SELECT :a_ids WHERE :b IN (SELECT value FROM json_each(:a_ids)) AND c::text = ''")
    variants = "-- name: two in sqlite\nSELECT 1;\n-- name: two in postgres\nSELECT 2;"
    assert [parsed(variants, "sqlite")["two"].sql[-1], parsed(variants, "postgres")["two"].sql[-1]] == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- name: one\nSELECT 1", "a statement has no name, or no semicolon"),
        ("-- name:\nSELECT 1;", "a statement has no name, or no semicolon"),
        ("-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;", "there are two statements of that name"),
        ("-- name: one in oracle\nSELECT 1;", "a statement has no name, or no semicolon"),
    ],
)
def test_malformed_statement_file_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parsed(text, "sqlite")


def test_unknown_statement_lists_known_names() -> None:
    with pytest.raises(LookupError, match="no statement 'tow'; there are one, two"):
        parsed("-- name: one\nSELECT 1;\n-- name: two\nSELECT 2;", "sqlite")["tow"]


# Stored facts: read completely or partially, with each issue at its place


SUNKEN: Final = '{"created_at":"2026-11-27T12:00:00Z","depth":-1}'
"""The profile of a subagent with room for more levels below it than the limit."""
OWED: Final = (
    '{"turn":{"steps":-1}}',
    '{"turn":{"reentries":-1}}',
    *(f'{{"step":{{"{count}":-1}}}}' for count in ("failures", "timeouts", "lost")),
    '{"step":{"paid":{"network":-1}}}',
)
"""Facts by which a chat may exceed its limits."""
GARBLED: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "state": ("chats.state", (None, 5, b"streaming")),
    "settled": ("chats.settled", (2, -1, "1", None)),
    "archived": ("chats.archived", (2, "0", None)),
    "version": ("chats.version", (-1, "1", True, 1.5, None, 2**62)),
    "last_seq": ("chats.event_seq", (-1, "1", None, 2**62)),
    "call_ids": ("chats.calls", ("poison", "{}", "[1]", None)),
    "facts": ("chats.facts", ("poison", "[]", "5", None, b"\xff", *OWED)),
    "profile": ("profiles.body", ("poison", "[]", "5", None, b"\xff", SUNKEN)),
    "worker": ("chats.worker", (5, b"worker")),
    "token": ("chats.token", ("poison", -1, None, True, 2**62)),
}
"""For each value of a stored chat: its place, and unreadable variants."""


@pytest.fixture
async def lived(tmp_path: Path) -> list[tuple[Stored, Facts]]:
    return [(stored_in(CHAT, rows), facts) for rows, facts in await moments(f"sqlite:///{tmp_path / 'chats.db'}")]


async def test_sound_chat_is_read_whole(lived: list[tuple[Stored, Facts]]) -> None:
    for stored, facts in lived:
        assert facts_of(stored) == facts
        assert facts_or_rest(stored) == facts
        assert salvage(stored) == PartialRead(facts, ())


async def test_garbled_value_is_named_and_the_rest_read(lived: list[tuple[Stored, Facts]]) -> None:
    stored, facts = lived[-1]
    for field, (column, values) in GARBLED.items():
        for value in values:
            broken = stored._replace(**{field: value})
            with pytest.raises(ChatUnreadable) as caught:
                facts_of(broken)
            assert (caught.value.column, caught.value.chat_id) == (column, CHAT), (field, value)
            rest = facts_or_rest(broken)
            assert rest == salvage(broken)
            assert [issue.column for issue in rest.issues] == [column]
            assert rest.error.column == column
            assert rest.error.chat_id == CHAT
            assert rest.facts.stored_state == UNREADABLE
            expected = {
                "queue": facts.queue,
                "turn": facts.turn,
                "profile": facts.profile,
                "calls": facts.calls,
                "lease": facts.lease,
                "version": facts.version,
                "last_seq": facts.last_seq,
            }
            lost = {"facts": {"turn"}, "worker": {"lease"}, "token": {"lease"}}.get(field, {field})
            for name in expected.keys() - lost:
                assert getattr(rest.facts, name) == expected[name], (field, name)
            for name in (expected.keys() & lost) - {"call_ids"}:
                assert getattr(rest.facts, name) != expected[name], (field, name)
            assert "lease" not in lost or rest.facts.lease is None, (field, value)


async def test_lost_values_get_harmless_defaults(lived: list[tuple[Stored, Facts]]) -> None:
    stored, _ = lived[-1]
    rest = salvage(stored._replace(settled=None, archived=None, version=None, last_seq=None, state=None)).facts
    assert (rest.settled, rest.archived) == (True, False)
    assert (rest.version, rest.last_seq, rest.state) == (0, 0, ChatState.error)
    assert salvage(stored._replace(settled=0, archived=1, version=None)).facts.settled is False
    assert salvage(stored._replace(settled=0, archived=1, version=None)).facts.archived is True
    assert salvage(stored._replace(version=None)).facts.state is ChatState.executing_tools


async def test_wrong_field_costs_only_itself(lived: list[tuple[Stored, Facts]]) -> None:
    stored, facts = lived[-1]
    body = json.loads(stored.facts)
    broken = stored._replace(facts=json.dumps({**body, "serial": "poison", "turn": [], "more": 1}))
    rest = salvage(broken)
    assert {issue.column for issue in rest.issues} == {"chats.facts"}
    assert (rest.facts.step, rest.facts.history, rest.facts.fence) == (facts.step, facts.history, facts.fence)
    assert (rest.facts.serial, rest.facts.turn.number) == (0, 0)
    profile = json.loads(stored.profile)
    rest = salvage(stored._replace(profile=json.dumps({**profile, "title": 5, "owner": "bob"})))
    assert [issue.column for issue in rest.issues] == ["profiles.body"]
    assert (rest.facts.profile.owner, rest.facts.profile.title) == ("bob", None)
    assert rest.facts.profile.created_at == facts.profile.created_at
    nested = "[" * 200 + "]" * 200
    deep_facts, deep_profile = (f'{{"more":{nested},{body[1:]}' for body in (stored.facts, stored.profile))
    rest = salvage(stored._replace(facts=deep_facts, profile=deep_profile))
    assert [issue.column for issue in rest.issues] == ["chats.facts", "profiles.body"]
    assert (rest.facts.turn, rest.facts.profile) == (facts.turn, facts.profile)
    del profile["created_at"]
    rest = salvage(stored._replace(profile=json.dumps({**profile, "title": 5})))
    assert (rest.facts.profile.owner, rest.facts.profile.created_at) == ("ann", datetime(1970, 1, 1, tzinfo=UTC))


def test_issue_hides_the_stored_value() -> None:
    stored = Stored("c", b"hunter2", 1, 0, 1, "[]", "{}", '{"created_at": "hunter2"}', (), (), None, None, 0, "f", "l")
    text = str(salvage(stored).issues)
    assert "hunter2" not in text
    assert "bytes" in text
    assert "nothing" in str(salvage(stored._replace(state=None)).issues)


async def test_contradictory_facts_are_one_issue(lived: list[tuple[Stored, Facts]]) -> None:
    stored, facts = lived[-1]
    odd = stored._replace(facts=json.dumps({**json.loads(stored.facts), "lease": 5}))
    assert salvage(odd).issues == ()
    with pytest.raises(ChatUnreadable, match=r"chats\.facts"):
        facts_of(odd)
    rest = facts_or_rest(odd)
    assert (rest.facts.turn, rest.facts.stored_state) == (facts.turn, UNREADABLE)
