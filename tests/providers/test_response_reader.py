"""Hearing a call: whatever comes of its arguments before, the model's last word on them counts."""

from __future__ import annotations

import pytest
from pydantic_ai import messages as theirs
from pydantic_ai.usage import RequestUsage

from turnwise import ModelError
from turnwise.providers.protocol import ModelPart
from turnwise.providers.pydantic_ai.origin import Origin
from turnwise.providers.pydantic_ai.response_reader import ResponseReader


def heard(*events: theirs.ModelResponseStreamEvent) -> list[ModelPart]:
    reader = ResponseReader(Origin("openai", "gpt-5"))
    return [part for event in events for part in reader.hear(event)]


def call(arguments: str | None) -> theirs.ToolCallPart:
    return theirs.ToolCallPart("look", arguments, tool_call_id="c1")


@pytest.mark.parametrize("begun", [None, "", '{"at": '])
def test_arguments_that_come_whole_at_the_end_are_the_calls(begun: str | None) -> None:
    parts = heard(
        theirs.PartStartEvent(index=0, part=call(begun)),
        theirs.PartEndEvent(index=0, part=call('{"at": "it"}')),
    )
    assert parts[0].type == "tool_call_start"
    (told,) = [part for part in parts if part.type == "tool_call"]
    assert (told.id, told.name, told.arguments) == ("c1", "look", '{"at": "it"}')


def test_arguments_that_cannot_be_read_wait_for_the_end_of_the_reply() -> None:
    parts = heard(
        theirs.PartStartEvent(index=0, part=call("")),
        theirs.PartDeltaEvent(index=0, delta=theirs.ToolCallPartDelta(args_delta='{"at"', tool_call_id="c1")),
        theirs.PartEndEvent(index=0, part=call('{"at"')),
    )
    assert [part.type for part in parts] == ["tool_call_start", "tool_call_delta"]


def thought(text: str, id_: str | None) -> theirs.ThinkingPart:
    return theirs.ThinkingPart(text, id=id_)


@pytest.mark.parametrize(
    ("before", "after", "gap"),
    [
        (thought("One.", "r1"), thought("Two.", "r1"), "\n\n"),
        (thought("One.", "r1"), thought("Two.", "r2"), ""),
        (thought("One.", None), thought("Two.", None), ""),
        (theirs.TextPart("One.", id="r1"), thought("Two.", "r1"), ""),
    ],
)
def test_one_reasoning_that_comes_in_several_parts_has_paragraphs(
    before: theirs.ModelResponsePart, after: theirs.ThinkingPart, gap: str
) -> None:
    *_, last = heard(theirs.PartStartEvent(index=0, part=before), theirs.PartStartEvent(index=1, part=after))
    assert (last.type, last.text) == ("reasoning_delta", f"{gap}Two.")


def test_usage_is_told_when_it_changes() -> None:
    reader = ResponseReader(Origin("openai", "gpt-5"))
    told = [
        [part.usage.output_tokens for part in reader.measure(measured) if part.usage is not None]
        for measured in (used(1), used(1), used(5), used(5))
    ]
    assert told == [[1], [], [5], []]


def used(tokens: int) -> theirs.ModelResponse:
    return theirs.ModelResponse(parts=[], usage=RequestUsage(input_tokens=2, output_tokens=tokens))


def test_a_reply_whose_end_says_nothing_was_cut() -> None:
    for details in (None, {}, {"finish_reason": None}):
        with pytest.raises(ModelError, match="without a finish reason") as cut:
            list(ResponseReader(Origin("openai", "gpt-5")).finish(theirs.ModelResponse([], provider_details=details)))
        assert cut.value.kind == "network"
