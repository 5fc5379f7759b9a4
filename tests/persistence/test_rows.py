"""Values as columns and JSON, and back; and what is told of a value that is neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.life import NOW, Life, client, local
from turnwise.persistence.rows import (
    CALLS,
    DEEPEST_STORED,
    MESSAGES,
    QUEUE,
    USAGE,
    blank_facts,
    columns_of_call,
    columns_of_message,
    described,
    event_of,
    json_of,
    message_of,
    micros_in,
    micros_of,
    numbered,
    row_of,
    time_of,
    unreadable,
)
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable
from turnwise.states.messages import FORMAT
from turnwise.states.names import ChatState
from turnwise.states.usage import Usage
from turnwise.states.writes import RecordUsage


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))  # noqa: DTZ001 - given its zone
def test_a_time_comes_back_to_the_microsecond(time: datetime) -> None:
    assert time_of(micros_of(time)) == time
    assert micros_of(time.astimezone(timezone(timedelta(hours=5)))) == micros_of(time)


def test_times_count_from_1970() -> None:
    assert micros_of(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000_000
    assert time_of(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert time_of(1).tzinfo is UTC
    assert micros_in(timedelta(seconds=1.5)) == 1_500_000


def test_a_message_comes_back_with_its_columns() -> None:
    life = Life()
    life.create()
    life.send()
    (said,) = life.messages
    assert message_of(FORMAT, MESSAGES.dump(said), "c") == said
    columns = columns_of_message(said)
    assert columns == {name: getattr(said, name) for name in columns}
    assert {"position", "id", "role", "turn", "step", "audience", "erased"} == columns.keys()
    for form, body, column in ((FORMAT + 1, MESSAGES.dump(said), "messages.format"), (FORMAT, "{}", "messages.body")):
        with pytest.raises(ChatUnreadable) as caught:
            message_of(form, body, "my chat")
        assert (caught.value.column, caught.value.chat_id) == (column, "my chat")


@pytest.mark.parametrize("call", [local("a", 2), client("b", deadline=NOW)])
def test_a_call_comes_back_with_its_columns(call: ToolCall) -> None:
    assert CALLS.load(CALLS.dump(call), "c") == call
    columns = columns_of_call(call)
    assert (columns["call_id"], columns["idx"], columns["step"]) == (call.call_id, call.index, call.step)
    assert columns["status"] == call.status
    assert columns["deadline"] == (None if call.deadline is None else micros_of(call.deadline))


def test_a_body_leaves_out_what_has_its_default() -> None:
    entry = RecordUsage(purpose="step", turn=1, step=1, attempt=1, usage=Usage(input_tokens=1))
    assert USAGE.dump(entry) == '{"purpose":"step","turn":1,"step":1,"attempt":1,"usage":{"input_tokens":1}}'
    assert USAGE.load(USAGE.dump(entry), "c") == entry
    assert "null" not in CALLS.dump(local("a"))


def test_facts_are_columns_and_a_body() -> None:
    life = Life()
    life.create()
    life.send()
    row = row_of(life.facts)
    assert (row.id, row.state, row.settled, row.archived) == ("c", "pending", True, False)
    assert (row.version, row.last_seq) == (life.facts.version, life.facts.last_seq)
    assert '"profile"' not in row.facts
    assert row_of(replace(life.facts, stored_state="lost")).state == "lost", "a word of another version is kept"
    blank = blank_facts("new", NOW)
    assert (blank.chat_id, blank.version, blank.profile.created_at) == ("new", 0, NOW)
    assert blank.state in set(ChatState)


def test_events_are_numbered_one_by_one() -> None:
    life = Life()
    life.create()
    life.send()
    events = numbered(life.events, chat_id="c", after=7, at=NOW)
    assert [event.seq for event in events] == list(range(8, 8 + len(life.events)))
    assert {(event.chat_id, event.at) for event in events} == {("c", NOW)}


def test_a_problem_is_told_without_the_value() -> None:
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


def test_a_body_that_is_none_is_told_at_its_column() -> None:
    for body in ("poison", "{}", "[]", ""):
        with pytest.raises(ChatUnreadable, match=r"queue\.body"):
            QUEUE.load(body, "c")


def test_what_is_nested_deeper_than_anything_stored_cannot_be_read() -> None:
    """Brackets that are said, or stand beside each other, are none that stand inside each other."""

    def nested(levels: int) -> str:
        return f'{{"metadata":{"[" * (levels - 1)}{"]" * (levels - 1)}}}'

    said = msgspec.json.encode(["[" * 1000, [{}] * 1000]).decode()
    assert json_of(said) == msgspec.json.decode(said)
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
