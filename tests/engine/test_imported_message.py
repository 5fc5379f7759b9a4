"""One message from elsewhere: what may be given as one, what of it is taken over, and what an error names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from turnwise import FilePart, InvalidArgument, InvalidContent, Message, TextPart
from turnwise.engine.imported_message import read
from turnwise.engine.prompt.history import GO_ON
from turnwise.states.messages import SourcePart
from turnwise.states.names import Audience

CALL: dict[str, Any] = {"type": "tool_call", "call_id": "a", "name": "look", "arguments": {}}
RESULT: dict[str, Any] = {"type": "tool_result", "call_id": "a", "name": "look", "output": 1}
TEXT: dict[str, Any] = {"type": "text", "text": "Hi"}
NO_FILE = FilePart(media_type="text/plain", data="%")
HELD = FilePart(media_type="text/plain", blob="0" * 64)
"""By another chat."""


def said(role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "parts": [*parts], **more}


@pytest.mark.parametrize(
    ("entry", "argument"),
    [
        (said("assistant"), "here.parts"),
        (said("tool", RESULT, RESULT), "here.parts"),
        (said("user", SourcePart(url="https://a.example")), "here.parts"),
        (said("assistant", {**CALL, "name": " "}), "here.name"),
        (said("tool", {**RESULT, "call_id": ""}), "here.call_id"),
        (said("tool", {**RESULT, "outcome": "planned"}), "here.parts"),
        (said("tool", {**RESULT, "attachments": [NO_FILE]}), "here.parts"),
        (said("assistant", NO_FILE), "here.parts"),
        (said("user", {**TEXT, "text": " "}), "here"),
        (said("assistant", {"type": "reasoning", "text": ""}, {**TEXT, "text": ""}), "here.parts"),
        (said("user", TEXT, partial=True), "here.partial"),
        (said("user", "Hi"), "here"),
        ({"role": "user", "parts": "Hi"}, "here"),
        (said("assistant", TEXT, model=3), "here.model"),
    ],
)
def test_refusal_names_message_and_field(entry: Any, argument: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read("here", entry, 1000)
    assert refused.value.argument == argument
    assert str(refused.value).startswith(f"{argument}: ")


@pytest.mark.parametrize("entry", [said("user", HELD), said("tool", {**RESULT, "attachments": [HELD]})])
def test_stored_file_of_another_chat_is_refused(entry: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"here\.parts: must not refer to a file.*or fork that chat"):
        read("here", entry, 1000)


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (said("user", {**TEXT, "text": " "}), InvalidContent),
        (said("assistant", {**CALL, "name": ""}), InvalidArgument),
        ({"role": "assistant", "content": " "}, InvalidContent),
        ({"role": "user", "content": "x" * 2000}, InvalidContent),
        (said("system", TEXT), InvalidArgument),
        ({"role": "user", "content": "Hi", "parts": [TEXT]}, InvalidArgument),
        (said("developer", TEXT), InvalidArgument),
    ],
)
def test_error_type_distinguishes_content_from_structure(entry: Any, kind: type[Exception]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read("here", entry, 1000)
    assert type(refused.value) is kind


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_message_size_limit_is_inclusive(role: str) -> None:
    entry: dict[str, Any] = {"role": role, "content": "é" * 10}
    known = read("here", entry, 1000)
    assert known is not None
    size = 20 if role == "user" else len(msgspec.json.encode(known.parts))
    assert read("here", entry, size) == known
    with pytest.raises(InvalidContent, match=f"holds {size} bytes; a message holds at most {size - 1}"):
        read("here", entry, size - 1)


@pytest.mark.parametrize(
    ("time", "kept"),
    [
        (datetime(1970, 1, 2, tzinfo=UTC), True),
        (datetime(1970, 1, 1, 23, 59, 59, tzinfo=UTC), False),
        (datetime(9998, 12, 31, tzinfo=UTC), True),
        (datetime(9999, 1, 1, tzinfo=UTC), False),
        (datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))), False),
        (None, True),
    ],
)
def test_time_must_be_between_1970_and_9999(time: datetime | None, *, kept: bool) -> None:
    entry = said("user", TEXT, created_at=time)
    if kept:
        found = read("here", entry, 1000)
        assert found is not None
        assert found.created_at == time
    else:
        with pytest.raises(InvalidArgument, match="must have a time since 1970; it was"):
            read("here", entry, 1000)


def test_generated_messages_are_left_out() -> None:
    """A line for the user alone tells of a compaction; the request to go on is made anew where it is needed."""
    told = Message(
        id="m1", role="user", parts=(TextPart(text="Hi"),), turn=1, step=0, created_at=datetime(2020, 1, 1, tzinfo=UTC)
    )
    assert read("here", told, 1000) is not None
    assert read("here", msgspec.structs.replace(told, audience=Audience.user), 1000) is None
    assert read("here", msgspec.structs.replace(told, id=GO_ON), 1000) is None
    assert read("here", said("user", TEXT, audience="user"), 1000) is None
    assert read("here", said("user", TEXT, id=GO_ON), 1000) is None


def test_blank_and_signed_parts_are_left_out() -> None:
    blank, thought = {**TEXT, "text": " "}, {"type": "reasoning", "text": "hm", "signature": "s"}
    signed = {**thought, "text": ""}
    source, file = SourcePart(url="https://a.example"), FilePart(media_type="text/plain", data="aGk=")
    for given, kept in (
        ([blank, TEXT, signed], ["text"]),
        ([thought, blank], ["reasoning"]),
        ([CALL, blank, signed], ["tool_call"]),
        ([blank, source], ["source"]),
        ([file, signed], ["file"]),
    ):
        taken = read("here", said("assistant", *given), 1000)
        assert taken is not None
        assert [part.type for part in taken.parts] == kept
    for nothing in ([signed], [signed, blank]):
        assert read("here", said("assistant", *nothing), 1000) is None


def test_message_keeps_its_marks_and_origin() -> None:
    marks: dict[str, Any] = {"partial": True, "synthetic": True, "erased": True, "audience": Audience.model}
    by = {name: name for name in ("agent", "agent_version", "model", "provider", "response_id", "finish_reason")}
    bare = read("here", said("assistant", TEXT), 1000)
    marked = read("here", said("assistant", TEXT, **marks, **by), 1000)
    assert bare is not None
    assert marked is not None
    assert {name: getattr(marked, name) for name in (*marks, *by)} == marks | by
    assert [getattr(bare, name) for name in marks] == [False, False, False, Audience.everyone]
    assert [getattr(bare, name) for name in by] == [None] * len(by)
