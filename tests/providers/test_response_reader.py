"""Hearing a call: whatever comes of its arguments before, the model's last word on them counts."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic_ai import messages as theirs
from pydantic_ai.usage import RequestUsage

from turnwise import ModelError
from turnwise.providers.protocol import ModelPart
from turnwise.providers.pydantic_ai.origin import Origin
from turnwise.providers.pydantic_ai.response_reader import ResponseReader, usage_of
from turnwise.states.names import Executor, StopReason
from turnwise.states.usage import Usage


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


def kinds(*events: theirs.ModelResponseStreamEvent) -> list[str]:
    return [part.type for part in heard(*events)]


def begun(index: int, part: theirs.ModelResponsePart) -> theirs.PartStartEvent:
    return theirs.PartStartEvent(index=index, part=part)


OWN = {"provider_name": "openai", "provider_details": {"key": "k"}}
KEPT = {"provider": "openai", "endpoint": "gpt-5", "details": {"key": "k"}}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (None, ["tool_call_start"]),
        ("", ["tool_call_start"]),
        ({"at": 1}, ["tool_call_start"]),
        ('{"at"', ["tool_call_start", "tool_call_delta"]),
    ],
)
def test_a_call_is_told_as_it_starts_and_once(arguments: Any, told: list[str]) -> None:
    part = theirs.ToolCallPart("look", arguments, tool_call_id="c1")
    parts = heard(begun(0, part), begun(0, part))
    assert [part.type for part in parts] == told
    assert (parts[0].id, parts[0].name, parts[0].executor) == ("c1", "look", Executor.local)
    assert [part.arguments for part in parts[1:]] == [arguments] * (len(told) - 1)


@pytest.mark.parametrize(
    ("arguments", "readable"),
    [({"at": 1}, True), ({}, False), (None, False), ("{}", True), ("[1]", False), ("nonsense", False), ("", False)],
)
def test_a_call_is_complete_when_its_arguments_are_an_object(arguments: Any, *, readable: bool) -> None:
    end = theirs.PartEndEvent(index=0, part=theirs.ToolCallPart("look", arguments, tool_call_id="c1"))
    assert ("tool_call" in kinds(begun(0, call(None)), end)) is readable
    assert kinds(end) == [], "what never began does not end"


def test_a_call_is_told_with_all_that_the_provider_said_of_it() -> None:
    part = theirs.NativeToolCallPart("web", '{"q": 1}', "c1", id="i1", **OWN)
    start, fragment, complete = heard(begun(0, part), theirs.PartEndEvent(index=0, part=part))
    assert (start.executor, fragment.id) == (Executor.provider, "c1")
    assert complete == ModelPart(
        "tool_call", id="c1", name="web", arguments='{"q": 1}', executor=Executor.provider, metadata=KEPT | {"id": "i1"}
    )


def test_fragments_are_those_of_calls_that_are_open() -> None:
    delta = theirs.PartDeltaEvent(index=0, delta=theirs.ToolCallPartDelta(args_delta='{"at"', tool_call_id="c1"))
    whole = theirs.PartDeltaEvent(index=0, delta=theirs.ToolCallPartDelta(args_delta={"at": 1}, tool_call_id="c1"))
    assert kinds(delta) == []
    assert kinds(begun(0, call(None)), delta) == ["tool_call_start", "tool_call_delta"]
    assert kinds(begun(0, call(None)), whole) == ["tool_call_start"]


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_call_whose_id_changes_stays_the_call_that_it_began_as(*, is_readable: bool) -> None:
    """Some servers give each chunk of a call an id of its own, or the only one with the last."""
    spelled = '{"at": 1}' if is_readable else '{"at": 1'
    fragment = theirs.ToolCallPartDelta(args_delta=spelled, tool_call_id="c2")
    later = theirs.ToolCallPart("look", spelled, tool_call_id="c2")
    reader = ResponseReader(Origin("openai", "gpt-5"))
    events = [
        begun(0, call(None)),
        theirs.PartDeltaEvent(index=0, delta=fragment),
        theirs.PartEndEvent(index=0, part=later),
    ]
    parts = [part for event in events for part in reader.hear(event)]
    parts += finished(reader, theirs.ToolCallPart("look", spelled, tool_call_id="c3"))
    assert [(part.type, part.id) for part in parts[:-1]] == [
        ("tool_call_start", "c1"),
        ("tool_call_delta", "c1"),
        ("tool_call", "c1"),
    ]


def test_a_result_of_the_provider_finds_its_call_whose_id_has_changed() -> None:
    later = theirs.PartEndEvent(index=0, part=theirs.NativeToolCallPart("web", '{"q": 1}', "c2"))
    result = begun(1, theirs.NativeToolReturnPart("web", ["hit"], "c2", **OWN))
    parts = heard(begun(0, theirs.NativeToolCallPart("web", None, "c1")), later, result)
    assert [part.id or part.call_id for part in parts] == ["c1"] * 3


def test_two_calls_of_one_id_are_two_calls() -> None:
    """Their pieces may come in turn."""
    fragments = [
        theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta(args_delta=piece, tool_call_id="c1"))
        for piece in ('{"at": ', "1}")
        for index in (0, 1)
    ]
    parts = heard(begun(0, call(None)), begun(1, call(None)), *fragments)
    assert [part.id for part in parts] == ["c1", "c1-1"] * 3


def test_a_result_of_the_provider_completes_its_own_call_first() -> None:
    web, other = (theirs.NativeToolCallPart("web", None, call_id) for call_id in ("c1", "c2"))
    found = theirs.NativeToolReturnPart("web", ["hit"], "c1", **OWN)
    *_, complete, result = heard(begun(0, web), begun(1, other), begun(2, found))
    assert (complete.type, complete.id) == ("tool_call", "c1")
    assert result == ModelPart("provider_result", call_id="c1", output=["hit"], metadata=KEPT)


def test_a_file_comes_whole() -> None:
    (file,) = heard(begun(0, theirs.FilePart(theirs.BinaryContent(b"hi", media_type="image/png"), **OWN)))
    assert file == ModelPart("file", media_type="image/png", data="aGk=", metadata=KEPT)


@pytest.mark.parametrize(
    ("latest", "signed"), [(theirs.ThinkingPart("a"), "s"), (theirs.TextPart("a"), None)], ids=["thought", "text"]
)
def test_a_signature_is_that_of_the_thought_under_way(latest: theirs.ModelResponsePart, signed: str | None) -> None:
    """Other signatures that come with a delta are the provider's affair."""
    delta = theirs.ThinkingPartDelta(content_delta="b", signature_delta="s")
    *_, part = heard(begun(0, latest), theirs.PartDeltaEvent(index=0, delta=delta))
    assert (part.type, part.text, part.signature) == ("reasoning_delta", "b", signed)


def test_deltas_are_what_they_bring() -> None:
    text = theirs.PartDeltaEvent(index=0, delta=theirs.TextPartDelta(content_delta="b"))
    silent = theirs.PartDeltaEvent(index=0, delta=theirs.ThinkingPartDelta(signature_delta="s"))
    assert heard(begun(0, theirs.TextPart("a")), text)[1] == ModelPart("text_delta", text="b")
    assert heard(begun(0, theirs.ThinkingPart("a")), silent)[1] == ModelPart("reasoning_delta", signature="s")


@pytest.mark.parametrize(
    ("part", "delta"),
    [
        (theirs.TextPart("a"), theirs.TextPartDelta(content_delta="")),
        (theirs.ThinkingPart("a"), theirs.ThinkingPartDelta(content_delta="", signature_delta="")),
        (theirs.TextPart("a"), theirs.ThinkingPartDelta(signature_delta="s")),
        (call("{"), theirs.ToolCallPartDelta(args_delta="", tool_call_id="c1")),
    ],
    ids=["text", "thought", "signature of no thought", "arguments"],
)
def test_deltas_that_bring_nothing_are_left_out(
    part: theirs.ModelResponsePart, delta: theirs.ModelResponsePartDelta
) -> None:
    assert heard(begun(0, part), theirs.PartDeltaEvent(index=0, delta=delta)) == heard(begun(0, part))


@pytest.mark.parametrize("signature", [None, ""])
def test_no_signature_is_none(signature: str | None) -> None:
    thought = theirs.ThinkingPart("a", signature=signature, id="r1", **OWN)
    began, ended = heard(begun(0, thought), theirs.PartEndEvent(index=0, part=thought))
    assert (began.text, began.signature, began.metadata) == ("a", None, KEPT | {"id": "r1"})
    assert (ended.text, ended.signature, ended.metadata) == ("", None, KEPT | {"id": "r1"})


def test_the_end_of_a_thought_brings_its_signature() -> None:
    thought = theirs.ThinkingPart("a", signature="s")
    assert heard(theirs.PartEndEvent(index=0, part=thought)) == [ModelPart("reasoning_delta", signature="s")]


def cited(*urls: str) -> theirs.TextPart:
    other = theirs.DocumentCitationSource(document_id="d")
    return theirs.TextPart(
        "a", citations=[theirs.Citation([theirs.WebCitationSource(url, title="T"), other]) for url in urls], **OWN
    )


def test_a_source_is_told_once_wherever_it_is_cited() -> None:
    reader = ResponseReader(Origin("openai", "gpt-5"))
    first, *sources = reader.begin(0, cited("u1", "u1"))
    assert first == ModelPart("text_delta", text="a", metadata=KEPT)
    assert sources == [ModelPart("source", url="u1", title="T")]
    ended, *more = reader.hear(theirs.PartEndEvent(index=0, part=cited("u1", "u2")))
    assert ended == ModelPart("text_delta", metadata=KEPT)
    assert [source.url for source in more] == ["u2"]
    rest = reader.pause(theirs.ModelResponse([cited("u1", "u3"), theirs.ThinkingPart("a"), theirs.TextPart("b")]))
    assert [source.url for source in rest] == ["u3"]


def finished(reader: ResponseReader, *parts: theirs.ModelResponsePart, **fields: Any) -> list[ModelPart]:
    known: dict[str, Any] = {"provider_details": {"finish_reason": "done"}, "finish_reason": "stop"}
    return list(reader.finish(theirs.ModelResponse(list(parts), **known | fields)))


def test_what_was_left_open_is_yielded_before_the_finish_with_the_last_word() -> None:
    reader = ResponseReader(Origin("openai", "gpt-5"))
    early = theirs.ToolCallPart("look", '{"at": 0}', tool_call_id="c0")
    late = theirs.ToolCallPart("look", '{"at"', tool_call_id="c1")
    for index, part in enumerate((early, late, late)):
        list(reader.begin(index, part))
    list(reader.hear(theirs.PartEndEvent(index=0, part=early)))
    last = theirs.ToolCallPart("look", '{"at": 2', tool_call_id="c1")
    first, second, finish = finished(reader, early, last, theirs.TextPart("x"))
    assert [(part.id, part.arguments) for part in (first, second)] == [("c1", '{"at": 2'), ("c1-2", '{"at"')]
    assert finish.type == "finish"


@pytest.mark.parametrize(
    ("fields", "stop_reason", "reason"),
    [
        ({}, StopReason.end_turn, "done"),
        ({"finish_reason": "tool_call"}, StopReason.end_turn, "done"),
        ({"finish_reason": "length"}, StopReason.max_tokens, "done"),
        ({"finish_reason": "content_filter"}, StopReason.content_filter, "done"),
        ({"finish_reason": "content_filter", "provider_details": None}, StopReason.content_filter, "content_filter"),
        ({"finish_reason": None}, StopReason.end_turn, "done"),
    ],
    ids=str,
)
def test_the_finish_says_why_and_who(fields: dict[str, Any], stop_reason: StopReason, reason: str) -> None:
    reader = ResponseReader(Origin("openai", "gpt-5"))
    (finish,) = finished(reader, provider_response_id="r1", model_name="gpt-5-mini", usage=usage(5), **fields)
    assert finish.stop_reason is stop_reason
    assert finish.metadata == {"reason": reason, "response_id": "r1", "response_model": "gpt-5-mini"}
    assert finish.usage is not None
    assert finish.usage.output_tokens == 5


def test_a_reply_that_the_provider_ended_in_error_is_none() -> None:
    with pytest.raises(ModelError) as failed:
        finished(ResponseReader(Origin("openai", "gpt-5")), finish_reason="error")
    assert failed.value.kind == "server_error"


def usage(output: int, **more: int) -> RequestUsage:
    return RequestUsage(input_tokens=2, output_tokens=output, **more)


def unmeasured() -> RequestUsage:
    return RequestUsage(unmeasured_requests=1)


def tokens(given: int, made: int) -> Usage:
    return Usage(input_tokens=given, output_tokens=made)


def ended(response: theirs.ModelResponse) -> theirs.ModelResponse:
    return dataclasses.replace(response, provider_details={"finish_reason": "done"}, finish_reason="stop")


def test_what_was_used_before_a_pause_counts() -> None:
    reader = ResponseReader(Origin("openai", "gpt-5"))
    assert [*reader.measure(used(1)), *reader.pause(used(1))] == [ModelPart("usage", usage=tokens(2, 1))]
    same, more, end = reader.measure(used(1)), reader.measure(used(4)), reader.finish(ended(used(4)))
    assert [part.usage for part in (*same, *more, *end)] == [tokens(4, 2), tokens(4, 5), tokens(4, 5)]


def test_a_response_that_does_not_say_what_it_used_makes_the_sum_partial() -> None:
    silent = theirs.ModelResponse([], usage=unmeasured())
    for first, second in ((silent, used(1)), (used(1), silent)):
        reader = ResponseReader(Origin("openai", "gpt-5"))
        list(reader.pause(first))
        (finish,) = reader.finish(ended(second))
        assert finish.usage == tokens(2, 1).marked_partial()
    (finish,) = ResponseReader(Origin("openai", "gpt-5")).finish(ended(silent))
    assert finish.usage is None


def test_each_response_of_a_reply_has_a_price_of_its_own() -> None:
    """The price of a long prompt is higher, and that of the day may change."""
    asked: list[tuple[Usage | None, datetime]] = []

    def price(usage: Usage | None, at: datetime) -> Usage | None:
        asked.append((usage, at))
        return usage and replace(usage, cost=Decimal(len(asked)))

    reader, first, second = ResponseReader(Origin("openai", "gpt-5"), price), used(1), ended(used(4))
    list(reader.pause(first))
    (finish,) = reader.finish(second)
    assert finish.usage == replace(tokens(4, 5), cost=Decimal(3))
    assert asked == [(tokens(2, 1), first.timestamp), (tokens(2, 4), second.timestamp)]
    asked.clear()
    (whole,) = ResponseReader(Origin("openai", "gpt-5"), price).finish(second)
    assert (whole.usage, asked) == (tokens(2, 4), []), "whoever asked for a single response prices it"


def test_the_prompt_of_the_last_response_is_told_apart_from_the_sum() -> None:
    reader = ResponseReader(Origin("openai", "gpt-5"))
    list(reader.pause(used(1)))
    (finish,) = reader.finish(ended(used(4)))
    assert finish.metadata is not None
    assert finish.metadata["context_tokens"] == 2


def test_a_source_is_told_once_however_often_the_provider_pauses() -> None:
    reader, response = ResponseReader(Origin("openai", "gpt-5")), theirs.ModelResponse([cited("u1")])
    assert [part.url for part in reader.pause(response)] == ["u1"]
    assert [part.type for part in reader.finish(ended(response))] == ["finish"]


@pytest.mark.parametrize("provider", [None, "openai", "google", "google-cloud"])
def test_every_count_that_was_reported_is_told(provider: str | None) -> None:
    counts = RequestUsage(
        input_tokens=2, output_tokens=0, cache_read_tokens=0, cache_write_tokens=4, output_reasoning_tokens=5
    )
    told = usage_of(theirs.ModelResponse([], usage=counts, provider_name=provider))
    assert told is not None
    google = str(provider).startswith("google")
    assert (told.input_tokens, told.output_tokens, told.reasoning_tokens) == (2, 0, 5)
    assert (told.cache_read_tokens, told.cache_write_tokens) == (None if google else 0, 4)
