"""Messages: what a user may send, and what a client may see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.life import NOW, streaming
from turnwise.states import Trigger
from turnwise.states.arguments import Reply
from turnwise.states.errors import InvalidContent
from turnwise.states.message_order import in_call_order, in_prompt_order, in_transcript_order
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
    without_secrets,
)
from turnwise.states.names import Audience


def message(role: Any, *parts: Part, step: int = 1, call_index: int | None = None) -> Message:
    return Message(id="m", role=role, parts=parts, turn=1, step=step, created_at=NOW, call_index=call_index)


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
    assert [part.metadata for part in without_secrets(secret).parts] == [None, None]
    assert secret.parts[0].metadata == {"k": 1}
    assert without_secrets(without_secrets(secret)) is not secret


def test_commit_keeps_metadata_that_events_leave_out() -> None:
    life = streaming()
    part = TextPart(text="hi", metadata={"k": 1})
    decided = life.held(Trigger.step_finished, reply=Reply(parts=(part,)))
    assert life.messages[-1].parts == (part,)
    assert decided.events[0].message == without_secrets(life.messages[-1]) != life.messages[-1]


def test_only_text_and_files_are_content() -> None:
    with pytest.raises(InvalidContent, match="must be text, or a sequence of TextPart and FilePart"):
        parts_of([ReasoningPart(text="x")])  # type: ignore[list-item]


def result(index: int, step: int = 1) -> Message:
    part = ToolResultPart(call_id=f"{step}.{index}", name="t", output=None)
    return message("tool", part, step=step, call_index=index)


@given(st.permutations(range(5)), st.permutations(range(5, 8)))
def test_results_stand_in_call_order(first: list[int], second: list[int]) -> None:
    asked = message("assistant", TextPart(text="x"))
    history = [asked, *map(result, first), asked, *(result(index, step=2) for index in second)]
    ordered = in_call_order(history)
    assert [entry.call_index for entry in ordered] == [None, *range(5), None, *range(5, 8)]
    assert in_call_order(ordered) == ordered == in_transcript_order(history)


@given(st.permutations(range(5)), st.integers(0, 5))
def test_marker_among_results_keeps_its_place(indexes: list[int], place: int) -> None:
    marker, results = message("system"), [*map(result, indexes)]
    ordered = in_transcript_order([*results[:place], marker, *results[place:]])
    assert [entry.call_index for entry in ordered if entry is not marker] == [*range(5)]
    assert (ordered[place], in_transcript_order(ordered)) == (marker, ordered)


def test_results_apart_stay_apart_in_a_prompt() -> None:
    history = [result(1), message("user"), result(0)]
    assert in_call_order(history) == history
    assert in_transcript_order(history) == history[::-1]


def test_prompt_starts_with_what_the_boundary_lists() -> None:
    def at(position: int, audience: Audience = Audience.everyone) -> Message:
        return replace(message("user"), id=f"m{position}", position=position, audience=audience)

    seen = [at(2), at(6, Audience.model), at(7)]
    assert [message.position for message in in_prompt_order(seen, (6, 2))] == [6, 2, 7]
    assert [message.position for message in in_prompt_order(seen, (2, 6))] == [2, 6, 7]
