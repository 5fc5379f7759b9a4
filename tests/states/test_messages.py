"""Messages: what a user may send, and what a client may see."""

from __future__ import annotations

from typing import Any

import pytest

from support.life import NOW, streaming
from turnwise.states import Trigger
from turnwise.states.arguments import Reply
from turnwise.states.errors import InvalidContent
from turnwise.states.messages import (
    FilePart,
    Message,
    Part,
    QueuedMessage,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    parts_of,
    without_metadata,
)


def message(role: Any, *parts: Part) -> Message:
    return Message(id="m", role=role, parts=parts, turn=1, step=1, created_at=NOW)


def test_empty_content_is_refused() -> None:
    file = FilePart(media_type="image/png", url="https://example.org/a.png")

    assert parts_of("hello") == (TextPart(text="hello"),)
    assert parts_of([TextPart(text=" "), file]) == (file,)
    for nothing in ("", "  \n", [], [TextPart(text="")]):
        with pytest.raises(InvalidContent, match="must hold text or a file; it was empty"):
            parts_of(nothing)


def test_message_has_text_calls_and_result() -> None:
    call = ToolCallPart(call_id="a", name="t", arguments={})
    said = message("assistant", TextPart(text="a"), ReasoningPart(text="hm"), call, TextPart(text="b"))

    assert (said.text, said.calls, said.result) == ("ab", (call,), None)
    result = ToolResultPart(call_id="a", name="t", output=None)
    assert message("tool", result).result == result
    assert message("tool").result is None
    assert QueuedMessage(id="m", parts=said.parts, accepted_at=NOW).text == "ab"


def test_client_never_sees_provider_metadata() -> None:
    secret = message("assistant", TextPart(text="a", metadata={"k": 1}), TextPart(text="b"))

    assert [part.metadata for part in without_metadata(secret).parts] == [None, None]
    assert secret.parts[0].metadata == {"k": 1}
    assert without_metadata(without_metadata(secret)) is not secret


def test_commit_keeps_metadata_that_events_leave_out() -> None:
    life = streaming()
    part = TextPart(text="hi", metadata={"k": 1})
    told = life.held(Trigger.step_finished, reply=Reply(parts=(part,)))

    assert life.messages[-1].parts == (part,)
    assert told.events[0].message == without_metadata(life.messages[-1]) != life.messages[-1]


def test_only_text_and_files_are_content() -> None:
    with pytest.raises(InvalidContent, match="must be text, or a sequence of TextPart and FilePart"):
        parts_of([ReasoningPart(text="x")])  # type: ignore[list-item]
