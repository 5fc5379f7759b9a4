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
    blank_facts,
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
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable
from turnwise.states.messages import FORMAT
from turnwise.states.names import ChatState


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))  # noqa: DTZ001 - given its zone
def test_time_round_trip(time: datetime) -> None:
    assert time_of(micros_of(time)) == time
    assert micros_of(time.astimezone(timezone(timedelta(hours=5)))) == micros_of(time)


def test_message_round_trip_with_columns() -> None:
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
    blank = blank_facts("new", NOW)
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
