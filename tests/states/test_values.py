"""Values: msgspec encodes and decodes them; pydantic and FastAPI accept them as their own."""

import json
import re
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import asdict
from pydantic import BaseModel, TypeAdapter, ValidationError
from tests.states.table_cases import cases

from support.life import NOW, asking
from turnwise import ErrorInfo, Event, FilePart, Message, QueuedMessage, ToolCall, Usage
from turnwise.providers.protocol import ModelRequest, ToolSpec
from turnwise.states import events as e
from turnwise.states.calls import Answer
from turnwise.states.errors import InvalidContent, WrongCall
from turnwise.states.events import PartDelta
from turnwise.states.messages import ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus
from turnwise.states.values.values import changed_fields, place_and_problem, unshared

LIFE = asking()
USAGE = Usage(input_tokens=3, partial=True, compaction=Usage(output_tokens=1))
PICTURE = FilePart(media_type="image/png", data="aGk=")
RESULT = ToolResultPart(call_id="a", name="look", output={"n": [1, None, {"m": [2]}]}, attachments=(PICTURE,))
MESSAGE = Message(id="m1", role="tool", parts=(RESULT,), turn=1, step=1, created_at=NOW, usage=USAGE)
CALL = LIFE.facts.calls[0].with_status(CallStatus.succeeded, Answer("d", "r", NOW))
QUEUED = QueuedMessage(id="m9", parts=(TextPart(text="hi"), PICTURE), accepted_at=NOW)
VALUES: Final[list[Any]] = [USAGE, MESSAGE, CALL, QUEUED, PICTURE, LIFE.facts, LIFE.facts.profile]


def every_event() -> list[Event]:
    """Return an event of every kind that a decision can contain."""
    events: dict[str, Event] = {}
    for case in cases():
        life = case.build()
        case.fire(life)
        events |= {event.kind: event for event in life.events}
    return [events[kind] for kind in sorted(events)]


EVENTS = every_event()
ANY_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


@pytest.mark.parametrize("event", EVENTS, ids=[event.kind for event in EVENTS])
def test_event_round_trips(event: Event) -> None:
    short, long = msgspec.json.encode(event), ANY_EVENT.dump_json(event)
    for spelled in (short, long):
        assert msgspec.json.decode(spelled, type=Event) == ANY_EVENT.validate_json(spelled) == event
    assert json.loads(short).keys() <= json.loads(long).keys()


@pytest.mark.parametrize("value", VALUES[:5], ids=lambda value: type(value).__name__)
def test_value_round_trips(value: Any) -> None:
    adapter = TypeAdapter(type(value))
    for spelled in (msgspec.json.encode(value), adapter.dump_json(value)):
        assert msgspec.json.decode(spelled, type=type(value)) == adapter.validate_json(spelled) == value
    assert adapter.validate_python(value) is value
    assert adapter.validate_python(adapter.dump_python(value)) == value


class Answered(BaseModel):
    """A model of an embedding service."""

    message: Message
    calls: list[ToolCall] = []
    usage: Usage | None = None
    event: Event | None = None


ANSWERED = Answered(message=MESSAGE, calls=[CALL], usage=USAGE, event=EVENTS[0])


def test_pydantic_model_holds_values() -> None:
    assert ANSWERED.message is MESSAGE
    assert Answered.model_validate_json(ANSWERED.model_dump_json()) == ANSWERED
    spelled = ANSWERED.model_dump(exclude_none=True)
    assert spelled["message"]["parts"][0]["outcome"] is CallStatus.succeeded
    assert spelled["usage"] == {
        "input_tokens": 3,
        "partial": True,
        "cost_partial": False,
        "compaction": {"output_tokens": 1, "partial": False, "cost_partial": False},
    }
    with pytest.raises(ValidationError, match=r"usage\.input_tokens"):
        Answered.model_validate({"message": MESSAGE, "usage": {"input_tokens": "many"}})


def test_pydantic_schema_has_fields_and_defaults() -> None:
    usage = TypeAdapter(Usage).json_schema()["$defs"]["Usage"]
    assert usage["properties"]["partial"] == {"default": False, "title": "Partial", "type": "boolean"}
    assert usage["properties"]["compaction"]["anyOf"][0] == {"$ref": "#/$defs/Usage"}
    call = TypeAdapter(ToolCall).json_schema()
    assert call["required"] == ["call_id", "name", "arguments", "executor", "index", "step"]
    mapping = ANY_EVENT.json_schema()["discriminator"]["mapping"]
    assert sorted(mapping) == sorted(e.EVENTS)


REQUEST = ModelRequest(purpose="step", chat_id="c", messages=[MESSAGE], tools=(ToolSpec("t", "T.", {"required": []}),))


@pytest.mark.parametrize("value", [*VALUES, *EVENTS, REQUEST], ids=lambda value: type(value).__name__)
def test_unshared_copy_shares_nothing_mutable(value: Any) -> None:
    copy = unshared(value)
    assert copy == value
    assert type(copy) is type(value)
    mine = {id(inner) for inner in open_in(value)}
    assert mine.isdisjoint(id(inner) for inner in open_in(copy))
    assert mine or copy is value


def open_in(value: Any) -> list[Any]:
    """Return the dicts and lists in a value, at every depth."""
    if isinstance(value, msgspec.Struct):
        return [inner for name in value.__struct_fields__ for inner in open_in(getattr(value, name))]
    if not isinstance(value, dict | list | tuple):
        return []
    inside = [inner for each in (value.values() if isinstance(value, dict) else value) for inner in open_in(each)]
    return inside if isinstance(value, tuple) else [value, *inside]


def test_explicit_default_has_the_same_digest() -> None:
    """A string that equals a default is that default: digests are compared after decoding."""
    read = msgspec.convert(msgspec.to_builtins(asdict(CALL)), ToolCall)
    explicit = msgspec.structs.replace(read, crash=str(b"at_most_once", "ascii"))
    assert changed_fields(explicit) == changed_fields(CALL) == changed_fields(read)
    assert changed_fields(CALL).keys() == {
        *["call_id", "name", "arguments", "executor", "index", "step", "status", "answer"]
    }
    assert changed_fields(Usage(input_tokens=0), without=frozenset({"partial"})) == {"input_tokens": 0}


@pytest.mark.parametrize(
    ("body", "place", "problem"),
    [
        ('{"id":"m1"', "", "Input data was truncated"),
        ('{"id":1}', "id", "Expected `str`, got `int`"),
        ('{"id":"m1","role":"secret"}', "role", "Invalid enum value"),
        ('{"id":"m1","parts":[{"type":"my secret - at `$.x`"}]}', "parts[0].type", "Invalid value"),
        ('{"id":"m1","audience":"it\'s secret"}', "audience", "Invalid enum value"),
        ('{"id":"m1"}', "", "Object missing required field `role`"),
        ("[]", "", "Expected `object`, got `array`"),
    ],
)
def test_decoding_error_names_the_place_not_the_value(body: str, place: str, problem: str) -> None:
    """The value may be a user's text."""
    with pytest.raises(msgspec.MsgspecError) as raised:
        msgspec.json.decode(body, type=Message)
    assert place_and_problem(raised.value) == (place, problem)


RIGHT: Final[dict[str, Any]] = (
    {"text": "hi", "kind": "k", "message": "m", "type": "text", "call_id": "a", "name": "n", "media_type": "a/b"}
    | {"id": "m1", "role": "user", "parts": (), "turn": 1, "step": 1, "created_at": NOW}
    | {"output": 1, "arguments": {}}
)
PUBLIC = [Usage, FilePart, Message, PartDelta]


def required_by(kind: Any) -> dict[str, Any]:
    return {one.name: RIGHT[one.name] for one in msgspec.structs.fields(kind) if one.required}


@pytest.mark.parametrize("kind", PUBLIC)
def test_misspelt_or_missing_field_is_refused(kind: Any) -> None:
    """A misspelt and dropped limit would disable a budget silently."""
    fields = required_by(kind)
    kind(**fields)
    last = msgspec.structs.fields(kind)[-1].name
    with pytest.raises(WrongCall, match=f"^{last}x: {kind.__name__} has no such argument; did you mean '{last}'"):
        kind(**fields, **{f"{last}x": None})
    with pytest.raises(TypeError, match=f"^{kind.__name__}: takes its fields by name; nothing was written"):
        kind("hi")
    for name in fields:
        with pytest.raises(WrongCall, match=f"^{name}: {kind.__name__} needs it"):
            kind(**{other: fields[other] for other in fields if other != name})


@pytest.mark.parametrize(
    ("kind", "fields", "place"),
    [
        (Usage, {"compaction": {"inputt_tokens": 3}}, "compaction.inputt_tokens: Usage"),
        (
            Message,
            {"parts": [TextPart(text="hi"), {"type": "text", "text": "hi", "texts": 1}]},
            "parts[1].texts: TextPart",
        ),
    ],
)
def test_misspelt_field_in_a_mapping_is_refused(kind: Any, fields: dict[str, Any], place: str) -> None:
    with pytest.raises(WrongCall, match=rf"^{re.escape(place)} has no such argument; did you mean"):
        kind(**{**required_by(kind), **fields})


def test_value_may_be_made_of_mappings() -> None:
    assert Usage(compaction={"input_tokens": 3}).compaction == Usage(input_tokens=3)  # type: ignore[arg-type]
    arguments = {"places": [{"inputt_tokens": 1}], "deep": {"texts": {}}}
    call = {"type": "tool_call", "call_id": "a", "name": "n", "arguments": arguments}
    assert Message(**{**required_by(Message), "parts": [call]}).parts == (
        ToolCallPart(call_id="a", name="n", arguments=arguments),
    )


def test_unknown_stored_field_is_ignored() -> None:
    assert msgspec.json.decode('{"input_tokens":1,"thoughts":2}', type=Usage) == Usage(input_tokens=1)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Usage, {"input_tokens": "12"}),
        (Message, {"id": 7, "role": "user", "parts": (), "turn": 1, "step": 1, "created_at": NOW}),
        (ErrorInfo, {"kind": "overloaded", "message": 3}),
        (PartDelta, {"type": "tool_call", "call_id": 7}),
        (ReasoningPart, {"text": None}),
    ],
)
def test_wrong_field_type_is_refused(kind: Any, fields: dict[str, Any]) -> None:
    """Otherwise a model's odd reply would be stored and make its chat unreadable."""
    with pytest.raises(InvalidContent, match=kind.__name__):
        kind(**fields)


def test_stored_times_need_a_zone() -> None:
    """Times without a zone cannot be compared with others."""
    naive = msgspec.json.encode({**msgspec.to_builtins(MESSAGE), "created_at": "2026-11-01T12:00:00"})
    with pytest.raises(msgspec.ValidationError, match=r"timezone component - at `\$\.created_at`"):
        msgspec.json.decode(naive, type=Message)
    with pytest.raises(InvalidContent, match=r"Message\.created_at: .*timezone"):
        Message(id="m1", role="user", parts=(), turn=1, step=1, created_at=NOW.replace(tzinfo=None))
