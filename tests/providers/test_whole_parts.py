"""Compactions and speech of pydantic-ai go back as they came, and what was spoken can be read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import messages as theirs
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.wire.requests import asked, reply_of

from turnwise.providers.protocol import ModelReply
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.providers.pydantic_ai.origin import Origin
from turnwise.providers.pydantic_ai.response_reader import ResponseReader
from turnwise.providers.reply_builder import join

WAV = theirs.BinaryContent(b"RIFF", media_type="audio/wav")
ORIGIN = Origin("function", "")
OWN: dict[str, Any] = {"provider_name": "function"}
WHOLE = [
    theirs.CompactionPart("They spoke of foxes.", **OWN),
    theirs.CompactionPart(None, id="cmp_1", provider_details={"encrypted_content": "x1"}, **OWN),
    theirs.SpeechPart(speaker="assistant", transcript="Hello.", **OWN),
    theirs.SpeechPart(speaker="assistant", audio=WAV, id="item_1", **OWN),
    theirs.SpeechPart(
        speaker="assistant",
        transcript="Hello.",
        audio=WAV,
        interrupted_at_ms=70,
        timestamps=[theirs.SpeechTimestamp(text="Hello.", start_ms=0, duration_ms=60)],
        **OWN,
    ),
]


async def _sent_back(reply: ModelReply) -> list[theirs.ModelResponsePart]:
    """Return the parts of a reply as the model sees them in the next request."""
    seen: list[theirs.ModelMessage] = []

    def model(messages: list[theirs.ModelMessage], _info: AgentInfo) -> theirs.ModelResponse:
        seen.extend(messages)
        return theirs.ModelResponse([theirs.TextPart("Yes.")], provider_details={"finish_reason": "stop"})

    await PydanticAIModel(FunctionModel(model)).generate(asked("Hi.", reply_of(reply), "Go on."))
    return [part for message in seen if isinstance(message, theirs.ModelResponse) for part in message.parts]


def _plain(part: theirs.ModelResponsePart) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if value is not None}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("part", WHOLE, ids=lambda part: part.part_kind)
async def test_whole_part_is_stored_and_sent_back(
    part: theirs.CompactionPart | theirs.SpeechPart, streamed: bool
) -> None:
    """It stands between two texts, and stays there; a stream may tell it twice, the second time with more."""
    first, last = theirs.TextPart("So. "), theirs.TextPart("Bye.")
    response = theirs.ModelResponse([first, part, last], provider_details={"finish_reason": "stop"})
    reader = ResponseReader(ORIGIN)
    if streamed:
        events = [(0, first), (1, part), (1, part), (2, last)]
        heard = [piece for at, one in events for piece in reader.hear(theirs.PartStartEvent(index=at, part=one))]
    else:
        heard = [piece for at, one in enumerate(response.parts) for piece in reader.begin(at, one)]
    reply = join([*heard, *reader.finish(response, closed=True)])
    parts = await _sent_back(reply)
    back = [one for one in parts if type(one) is type(part)]
    assert [_plain(one) for one in back] == [_plain(part)]
    kinds = [one.part_kind for one in parts]
    assert kinds == ["text", part.part_kind, "text"]
    if part.content and isinstance(part, theirs.SpeechPart):
        assert "Hello." in reply.text


async def test_revised_speech_is_stored_as_it_ended() -> None:
    def spoken(**fields: Any) -> theirs.PartDeltaEvent:
        return theirs.PartDeltaEvent(index=0, delta=theirs.SpeechPartDelta(speaker="assistant", **fields))

    begun = theirs.PartStartEvent(index=0, part=theirs.SpeechPart(speaker="assistant", transcript="Hell"))
    events = [begun, spoken(transcript_delta="o", transcript="Hello")]
    reader = ResponseReader(ORIGIN)
    response = theirs.ModelResponse(
        [theirs.SpeechPart(speaker="assistant", transcript="Hello")], provider_details={"finish_reason": "stop"}
    )
    heard = [piece for event in events for piece in reader.hear(event)]
    assert join([*heard, *reader.finish(response, closed=True)]).text == "Hello"
