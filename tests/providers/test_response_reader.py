"""Reading a streamed call: the model's last version of its arguments counts."""

import dataclasses
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic_ai import messages as theirs
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage
from tests.wire.requests import asked, reply_of

from turnwise.providers.protocol import ModelPart, ModelReply
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.providers.pydantic_ai.provider_data import ProviderOrigin
from turnwise.providers.pydantic_ai.response_reader import ResponseReader, usage_of
from turnwise.providers.reply_builder import join
from turnwise.states.names import StopReason
from turnwise.states.usage import Usage


def parts_of(*events: theirs.ModelResponseStreamEvent) -> list[ModelPart]:
    reader = ResponseReader(ProviderOrigin("openai", "gpt-5"))
    return [part for event in events for part in reader.read(event)]


def call(arguments: str | None) -> theirs.ToolCallPart:
    return theirs.ToolCallPart("look", arguments, tool_call_id="c1")


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
def test_parts_of_one_reasoning_become_paragraphs(
    before: theirs.ModelResponsePart, after: theirs.ThinkingPart, gap: str
) -> None:
    *_, last = parts_of(theirs.PartStartEvent(index=0, part=before), theirs.PartStartEvent(index=1, part=after))
    assert (last.type, last.text) == ("reasoning_delta", f"{gap}Two.")


def used(tokens: int) -> theirs.ModelResponse:
    return theirs.ModelResponse(parts=[], usage=RequestUsage(input_tokens=2, output_tokens=tokens))


def started(index: int, part: theirs.ModelResponsePart) -> theirs.PartStartEvent:
    return theirs.PartStartEvent(index=index, part=part)


OWN = {"provider_name": "openai", "provider_details": {"key": "k"}}
KEPT = {"provider": "openai", "endpoint": "gpt-5", "details": {"key": "k"}}


@pytest.mark.parametrize("is_readable", [True, False])
def test_call_keeps_its_first_id(*, is_readable: bool) -> None:
    """Some servers give each chunk of a call its own id, or an id only with the last."""
    spelled = '{"at": 1}' if is_readable else '{"at": 1'
    fragment = theirs.ToolCallPartDelta(args_delta=spelled, tool_call_id="c2")
    later = theirs.ToolCallPart("look", spelled, tool_call_id="c2")
    reader = ResponseReader(ProviderOrigin("openai", "gpt-5"))
    events = [
        started(0, call(None)),
        theirs.PartDeltaEvent(index=0, delta=fragment),
        theirs.PartEndEvent(index=0, part=later),
    ]
    parts = [part for event in events for part in reader.read(event)]
    parts += finished(reader, theirs.ToolCallPart("look", spelled, tool_call_id="c3"))
    expected = [("tool_call_start", "c1"), ("tool_call_delta", "c1"), ("tool_call", "c1")]
    assert [(part.type, part.id) for part in parts[:-1]] == expected


def test_two_calls_of_one_id_stay_two_calls() -> None:
    """Their pieces may alternate."""
    fragments = [
        theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta(args_delta=piece, tool_call_id="c1"))
        for piece in ('{"at": ', "1}")
        for index in (0, 1)
    ]
    parts = parts_of(started(0, call(None)), started(1, call(None)), *fragments)
    assert [part.id for part in parts] == ["c1", "c1-1"] * 3


def test_provider_result_completes_its_call_first() -> None:
    web, other = (theirs.NativeToolCallPart("web", None, call_id) for call_id in ("c1", "c2"))
    found = theirs.NativeToolReturnPart("web", ["hit"], "c1", **OWN)
    *_, complete, result = parts_of(started(0, web), started(1, other), started(2, found))
    assert (complete.type, complete.id) == ("tool_call", "c1")
    assert result == ModelPart("provider_result", call_id="c1", output=["hit"], metadata=KEPT)


def test_file_is_one_part() -> None:
    (file,) = parts_of(started(0, theirs.FilePart(theirs.BinaryContent(b"hi", media_type="image/png"), **OWN)))
    assert file == ModelPart("file", media_type="image/png", data="aGk=", metadata=KEPT)


def cited(*urls: str) -> theirs.TextPart:
    other = theirs.DocumentCitationSource(document_id="d")
    return theirs.TextPart(
        "a", citations=[theirs.Citation([theirs.WebCitationSource(url, title="T"), other]) for url in urls], **OWN
    )


def test_source_is_yielded_once_however_often_cited() -> None:
    reader = ResponseReader(ProviderOrigin("openai", "gpt-5"))
    first, *sources = reader.begin(0, cited("u1", "u1"))
    assert first == ModelPart("text_delta", text="a", metadata=KEPT)
    document = ModelPart("source", id="d", source_type="document")
    assert sources == [ModelPart("source", url="u1", title="T"), document]
    ended, *more = reader.read(theirs.PartEndEvent(index=0, part=cited("u1", "u2")))
    assert ended == ModelPart("text_delta", metadata=KEPT)
    assert [source.url for source in more] == ["u2"]
    rest = reader.pause(theirs.ModelResponse([cited("u1", "u3"), theirs.ThinkingPart("a"), theirs.TextPart("b")]))
    assert [source.url for source in rest] == ["u3"]


def finished(reader: ResponseReader, *parts: theirs.ModelResponsePart, **fields: Any) -> list[ModelPart]:
    known: dict[str, Any] = {"provider_details": {"finish_reason": "stop"}, "finish_reason": "stop"}
    return list(reader.finish(theirs.ModelResponse(list(parts), **known | fields), closed=True))


def test_open_calls_are_yielded_before_the_finish() -> None:
    reader = ResponseReader(ProviderOrigin("openai", "gpt-5"))
    early = theirs.ToolCallPart("look", '{"at": 0}', tool_call_id="c0")
    late = theirs.ToolCallPart("look", '{"at"', tool_call_id="c1")
    for index, part in enumerate((early, late, late)):
        list(reader.begin(index, part))
    list(reader.read(theirs.PartEndEvent(index=0, part=early)))
    last = theirs.ToolCallPart("look", '{"at": 2', tool_call_id="c1")
    first, second, finish = finished(reader, early, last, theirs.TextPart("x"))
    assert [(part.id, part.arguments) for part in (first, second)] == [("c1", '{"at": 2'), ("c1-2", '{"at"')]
    assert finish.type == "finish"


@pytest.mark.parametrize(
    ("fields", "stop_reason", "reason"),
    [
        ({}, StopReason.end_turn, "stop"),
        ({"provider_details": {"finish_reason": "length"}}, StopReason.max_tokens, "length"),
        ({"finish_reason": "content_filter", "provider_details": None}, StopReason.content_filter, "content_filter"),
        ({"finish_reason": "length", "provider_details": None}, StopReason.max_tokens, "length"),
        ({"provider_details": {"finish_reason": "odd"}}, StopReason.unknown, "odd"),
    ],
    ids=str,
)
def test_finish_has_stop_reason_and_response_metadata(
    fields: dict[str, Any], stop_reason: StopReason, reason: str
) -> None:
    reader = ResponseReader(ProviderOrigin("openai", "gpt-5"))
    text = theirs.TextPart("Hi.")  # or a word that is not known would reject the reply
    *_, finish = finished(reader, text, provider_response_id="r1", model_name="gpt-5-mini", usage=usage(5), **fields)
    assert finish.stop_reason is stop_reason
    assert finish.metadata == {"reason": reason, "response_id": "r1", "response_model": "gpt-5-mini"}
    assert finish.usage.output_tokens == 5


def usage(output: int, **more: int) -> RequestUsage:
    return RequestUsage(input_tokens=2, output_tokens=output, **more)


def unmeasured() -> RequestUsage:
    return RequestUsage(unmeasured_requests=1)


def tokens(input_tokens: int, output_tokens: int) -> Usage:
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens)


def ended(response: theirs.ModelResponse) -> theirs.ModelResponse:
    return dataclasses.replace(response, provider_details={"finish_reason": "stop"}, finish_reason="stop")


def test_usage_before_a_pause_counts() -> None:
    reader = ResponseReader(ProviderOrigin("openai", "gpt-5"))
    assert [*reader.measure(used(1)), *reader.pause(used(1))] == [ModelPart("usage", usage=tokens(2, 1))]
    same, more, end = reader.measure(used(1)), reader.measure(used(4)), reader.finish(ended(used(4)), closed=True)
    assert [part.usage for part in (*same, *more, *end)] == [tokens(4, 2), tokens(4, 5), tokens(4, 5)]


def test_response_without_usage_makes_the_sum_partial() -> None:
    silent = theirs.ModelResponse([], usage=unmeasured())
    for first, second in ((silent, used(1)), (used(1), silent)):
        reader = ResponseReader(ProviderOrigin("openai", "gpt-5"))
        list(reader.pause(first))
        (finish,) = reader.finish(ended(second), closed=True)
        assert finish.usage == tokens(2, 1).marked_partial()
    (finish,) = ResponseReader(ProviderOrigin("openai", "gpt-5")).finish(ended(silent), closed=True)
    assert finish.usage is None


def test_each_response_of_a_reply_is_priced_alone() -> None:
    """A long prompt has a higher price, and prices change daily."""
    asked: list[tuple[Usage | None, datetime]] = []

    def price(usage: Usage | None, at: datetime) -> Usage | None:
        asked.append((usage, at))
        return usage and replace(usage, cost=Decimal(len(asked)))

    reader, first, second = ResponseReader(ProviderOrigin("openai", "gpt-5"), price), used(1), ended(used(4))
    list(reader.pause(first))
    (finish,) = reader.finish(second, closed=True)
    assert finish.usage == replace(tokens(4, 5), cost=Decimal(3))
    assert asked == [(tokens(2, 1), first.timestamp), (tokens(2, 4), second.timestamp)]
    asked.clear()
    (whole,) = ResponseReader(ProviderOrigin("openai", "gpt-5"), price).finish(second, closed=True)
    assert (whole.usage, asked) == (tokens(2, 4), []), "whoever asked for a single response prices it"


@pytest.mark.parametrize("provider", [None, "openai", "google", "google-cloud"])
def test_all_reported_token_counts_are_stored(provider: str | None) -> None:
    counts = RequestUsage(
        input_tokens=2, output_tokens=0, cache_read_tokens=0, cache_write_tokens=4, output_reasoning_tokens=5
    )
    usage = usage_of(theirs.ModelResponse([], usage=counts, provider_name=provider))
    google = str(provider).startswith("google")
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (2, 0, 5)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (None if google else 0, 4)


# Compactions by the provider


ORIGIN = ProviderOrigin("function", "")
MINE: dict[str, Any] = {"provider_name": "function"}
COMPACTIONS = [
    theirs.CompactionPart("They spoke of foxes.", **MINE),
    theirs.CompactionPart(None, id="cmp_1", provider_details={"encrypted_content": "x1"}, **MINE),
]


async def _sent_back(reply: ModelReply) -> list[theirs.ModelResponsePart]:
    """Return the parts of a reply in the next request."""
    seen: list[theirs.ModelMessage] = []

    def model(messages: list[theirs.ModelMessage], _info: AgentInfo) -> theirs.ModelResponse:
        seen.extend(messages)
        return theirs.ModelResponse([theirs.TextPart("Yes.")], provider_details={"finish_reason": "stop"})

    await PydanticAIModel(FunctionModel(model)).generate(asked("Hi.", reply_of(reply), "Go on."))
    return [part for message in seen if isinstance(message, theirs.ModelResponse) for part in message.parts]


def _plain(part: theirs.ModelResponsePart) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if value is not None}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("part", COMPACTIONS)
async def test_compaction_is_stored_and_sent_back(part: theirs.CompactionPart, streamed: bool) -> None:
    """It stays between two texts; a stream may repeat it with more content."""
    first, last = theirs.TextPart("So. "), theirs.TextPart("Bye.")
    response = theirs.ModelResponse([first, part, last], provider_details={"finish_reason": "stop"})
    reader = ResponseReader(ORIGIN)
    if streamed:
        events = [(0, first), (1, part), (1, part), (2, last)]
        pieces = [piece for at, one in events for piece in reader.read(theirs.PartStartEvent(index=at, part=one))]
    else:
        pieces = [piece for at, one in enumerate(response.parts) for piece in reader.begin(at, one)]
    reply = join([*pieces, *reader.finish(response, closed=True)])
    parts = await _sent_back(reply)
    back = [one for one in parts if type(one) is type(part)]
    assert [_plain(one) for one in back] == [_plain(part)]
    kinds = [one.part_kind for one in parts]
    assert kinds == ["text", part.part_kind, "text"]
