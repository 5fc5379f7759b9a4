"""The types of the TypeScript client are those of turnwise, and its code keeps to them."""

import dataclasses
import re
from enum import StrEnum
from typing import Any, Final, get_args

import msgspec
import pytest

from support.node import CLIENT
from turnwise.states import calls, events, messages, names, transcript, usage

TYPES: Final = (CLIENT / "index.d.ts").read_text(encoding="utf-8")
HIDDEN: Final = {"metadata"}
"""What no client is told."""
STRUCTS: Final = [
    *events.EVENTS.values(),
    *get_args(get_args(messages.Part)[0]),
    events.ErrorInfo,
    events.PartDelta,
    messages.Message,
    messages.QueuedMessage,
    calls.ToolCall,
    calls.Answer,
    usage.Usage,
]
CHOICES: Final = {
    name: getattr(names, name, None) or getattr(messages, name)
    for name in re.findall(r"^export type (\w+) =\s+(?:\| )?\"", TYPES, re.MULTILINE)
}


def fields_in(name: str) -> dict[str, str]:
    """Return the fields that an interface declares, each with a mark: `?` for those that may be left out."""
    found = re.search(
        rf"^(?:export )?interface {name}( extends Numbered)? {{\n(.*?)^}}", TYPES, re.MULTILINE | re.DOTALL
    )
    assert found, name
    fields = dict(re.findall(r"^  (\w+)(\??): ", found[2], re.MULTILINE))
    return {**fields_in("Numbered"), **fields} if found[1] else fields


def nullable_in(name: str) -> set[str]:
    found = re.search(rf"^export interface {name}(?: extends Numbered)? {{\n(.*?)^}}", TYPES, re.MULTILINE | re.DOTALL)
    assert found
    return set(re.findall(r"^  (\w+)\??: [^;]*\| null;$", found[1], re.MULTILINE))


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_every_value_has_its_fields(kind: Any) -> None:
    """A field that has a default is optional, since JSON leaves it out; one that may be `None` may be null."""
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in HIDDEN]
    told = kind.__struct_config__.tag_field
    wanted = {field.name: "" if field.required else "?" for field in fields}
    always = {"seq", "chat_id", "at"} if told == "kind" else set()  # stored events have these
    wanted |= dict.fromkeys(always, "")

    assert fields_in(kind.__name__) == ({told: ""} if told else {}) | wanted
    assert told is None or f'  {told}: "{kind.__struct_config__.tag}";' in TYPES
    nullable = {field.name for field in fields if type(None) in get_args(field.type) and field.name not in always}
    assert nullable_in(kind.__name__) == nullable


def test_transcript_has_its_fields() -> None:
    for kind in (transcript.Transcript, transcript.LivePart):
        assert list(fields_in(kind.__name__)) == [field.name for field in dataclasses.fields(kind)]


def test_every_choice_has_its_values() -> None:
    assert set(CHOICES) >= {"ChatState", "StopReason", "CallStatus", "Executor", "Role", "CompactionPhase"}
    for name, choice in CHOICES.items():
        found = re.search(rf"^export type {name} =([^;]*);", TYPES, re.MULTILINE)
        assert found
        values = [str(value) for value in choice] if _is_enum(choice) else list(get_args(choice))
        assert re.findall(r'"(\w+)"', found[1]) == values


def _is_enum(choice: Any) -> bool:
    return isinstance(choice, type) and issubclass(choice, StrEnum)


def test_unions_have_every_event_and_part() -> None:
    for union, kinds in (("ChatEvent", events.Event), ("Part", messages.Part)):
        found = re.search(rf"^export type {union} =([^;]*);", TYPES, re.MULTILINE)
        assert found
        assert set(re.findall(r"\w+", found[1])) == {kind.__name__ for kind in get_args(get_args(kinds)[0])}
