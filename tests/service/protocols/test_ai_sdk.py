"""The chunks that an AI SDK page gets of a turn."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.service.protocols.one_turn import (
    asking,
    call,
    calling,
    finished,
    numbered,
    reply,
    state,
    tool,
    types,
    user,
    whole,
    words,
)

from turnwise import InvalidArgument
from turnwise.service import AISDKEncoder, encode_ai_sdk
from turnwise.states.actions.calls import DENIED_TEXT
from turnwise.states.events import AttemptDiscardedEvent, ErrorEvent, ErrorInfo, Event
from turnwise.states.messages import FilePart, ReasoningPart, SourcePart, TextPart, ToolResultPart
from turnwise.states.names import CallStatus, ChatState, Executor, StopReason

START = {"type": "start", "messageId": "c1-t3"}


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("version", lambda: AISDKEncoder(version=5)),
        ("version", lambda: list(encode_ai_sdk([], version="7"))),
        ("known_calls", lambda: AISDKEncoder(known_calls="k")),
        ("event", lambda: AISDKEncoder().encode({"kind": "status"})),
        ("cut", lambda: AISDKEncoder().end(cut=7)),
    ],
)
def test_wrong_argument_is_refused_by_name(argument: str, wrong: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        wrong()
    assert refused.value.argument == argument


def encode(*events: Event, **version: Any) -> list[dict[str, Any]]:
    return list(encode_ai_sdk(numbered(*events), **version))


def test_text_and_reasoning_are_parts_around_a_call() -> None:
    message = reply(ReasoningPart(text="Hm"), TextPart(text="One two"), call(a=1), TextPart(text="Three"))
    assert encode(
        user(), state(ChatState.streaming), words("Hm", kind="reasoning"), words("One ", index=1),
        words("two", index=1), calling('{"a"', index=2), calling(": 1}", index=2),
        whole("tool_call", index=2, call_id="k", name="look", arguments={"a": 1}), words("Three", index=3), message,
        tool(ToolResultPart(call_id="k", name="look", output=[1])), finished(),
    ) == [
        START,
        {"type": "start-step"},
        {"type": "reasoning-start", "id": "reasoning-1-0"},
        {"type": "reasoning-delta", "id": "reasoning-1-0", "delta": "Hm"},
        {"type": "reasoning-end", "id": "reasoning-1-0"},
        {"type": "text-start", "id": "text-1-1"},
        {"type": "text-delta", "id": "text-1-1", "delta": "One "},
        {"type": "text-delta", "id": "text-1-1", "delta": "two"},
        {"type": "text-end", "id": "text-1-1"},
        {"type": "tool-input-start", "toolCallId": "k", "toolName": "look"},
        {"type": "tool-input-delta", "toolCallId": "k", "inputTextDelta": '{"a"'},
        {"type": "tool-input-delta", "toolCallId": "k", "inputTextDelta": ": 1}"},
        {"type": "tool-input-available", "toolCallId": "k", "toolName": "look", "input": {"a": 1}},
        {"type": "text-start", "id": "text-1-3"},
        {"type": "text-delta", "id": "text-1-3", "delta": "Three"},
        {"type": "text-end", "id": "text-1-3"},
        {"type": "finish-step"},
        {"type": "tool-output-available", "toolCallId": "k", "output": [1]},
        {"type": "finish", "finishReason": "stop"},
    ]  # fmt: skip


@pytest.mark.parametrize("version", [6, 7])
@pytest.mark.parametrize("message", [[reply(TextPart(text="One"))], []], ids=["something is kept", "nothing is"])
def test_discarded_call_ends_in_an_error(version: Any, message: list[Event]) -> None:
    """Otherwise the page would wait for the output of an answer call that was cut off."""
    shown = whole("tool_call", index=1, call_id="k", name="final_answer", arguments={"a": "hel"})
    chunks = encode(user(), state(ChatState.streaming), words("One"), shown, *message, finished(), version=version)
    assert chunks[-3]["toolCallId"] == "k"
    assert types(chunks)[-4:] == ["tool-input-available", "tool-output-error", "finish-step", "finish"]


@pytest.mark.parametrize("version", [6, 7])
def test_stored_file_is_sent_by_digest(version: Any) -> None:
    """No address would work without a token: the page requests the bytes."""
    drawn, produced = "a" * 64, "b" * 64
    picture = FilePart(media_type="image/png", blob=drawn, size=100_000, name="p.png")
    given_files = ToolResultPart(call_id="k", name="look", output="drawn", attachments=(picture,))
    lived = (
        user(),
        reply(call(), FilePart(media_type="image/png", blob=produced, size=7)),
        tool(given_files),
        finished(),
    )
    assert [one["data"] for one in encode(*lived, version=version) if one["type"] == "data-file"] == [
        {"digest": produced, "mediaType": "image/png", "size": 7},
        {"digest": drawn, "mediaType": "image/png", "size": 100_000, "name": "p.png"},
    ]
    encoder = AISDKEncoder(version=version, file_address=lambda file: f"/files/{file.blob}")
    chunks = [chunk for event in numbered(*lived) for chunk in encoder.encode(event)]
    assert [one["url"] for one in chunks if one["type"] == "file"] == [f"/files/{produced}", f"/files/{drawn}"]
    assert not [one for one in chunks if one["type"] == "data-file"]


def test_provider_results_and_files_are_shown_once() -> None:
    file = FilePart(media_type="image/png", data="AA==")
    attached = [{"media_type": "a/b", "url": "http://x"}]
    result = {"call_id": "k", "name": "look", "output": "seen", "attachments": attached}
    seen = ToolResultPart(call_id="k", name="look", output="seen")
    source, document = SourcePart(url="http://s", title="S"), SourcePart(id="f1", source_type="document")
    lived = (
        user(), state(ChatState.streaming),
        whole("tool_call", call_id="k", name="look", arguments={}, executor="provider"),
        whole("tool_result", index=1, **result), whole("file", index=2, media_type="image/png", data="AA=="),
        whole("source", index=3, url="http://s", title="S"), whole("source", index=4, id="f1", source_type="document"),
        reply(call(executor=Executor.provider), seen, file, source, document), finished(),
    )  # fmt: skip
    shown = [
        START,
        {"type": "start-step"},
        {"type": "tool-input-start", "toolCallId": "k", "toolName": "look", "providerExecuted": True},
        {"type": "tool-input-available", "toolCallId": "k", "toolName": "look", "input": {}, "providerExecuted": True},
        {"type": "tool-output-available", "toolCallId": "k", "output": "seen", "providerExecuted": True},
        {"type": "file", "url": "http://x", "mediaType": "a/b"},
        {"type": "file", "url": "data:image/png;base64,AA==", "mediaType": "image/png"},
        {"type": "source-url", "sourceId": "1-3", "url": "http://s", "title": "S"},
        {"type": "source-document", "sourceId": "f1", "mediaType": "application/octet-stream", "title": "f1"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]
    assert encode(*lived) == shown
    without_parts = encode(user(), *lived[-2:])
    assert types(without_parts) == [one["type"] for one in shown if one.get("url") != "http://x"]


@pytest.mark.parametrize(
    ("outcome", "output", "is_error", "shown"),
    [
        (CallStatus.cancelled, DENIED_TEXT, True, {"type": "tool-output-denied"}),
        (CallStatus.cancelled, "Stopped.", True, {"type": "tool-output-error", "errorText": "Stopped."}),
        (CallStatus.failed, {"a": "\u00e4"}, True, {"type": "tool-output-error", "errorText": '{"a": "\u00e4"}'}),
        (CallStatus.interrupted, "Stopped.", False, {"type": "tool-output-error", "errorText": "Stopped."}),
        (CallStatus.succeeded, DENIED_TEXT, False, {"type": "tool-output-available", "output": DENIED_TEXT}),
    ],
)
def test_outcome_decides_the_output_chunk(
    outcome: CallStatus, output: Any, is_error: bool, shown: dict[str, Any]
) -> None:
    part = ToolResultPart(call_id="k", name="look", output=output, is_error=is_error, outcome=outcome)
    assert encode(user(), reply(call()), tool(part))[-2] == {**shown, "toolCallId": "k"}


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([finished(StopReason.end_turn)], {"type": "finish", "finishReason": "stop"}),
        ([finished(StopReason.max_tokens)], {"type": "finish", "finishReason": "length"}),
        ([finished(StopReason.max_steps)], {"type": "finish", "finishReason": "other"}),
        ([finished(StopReason.interrupted)], {"type": "abort", "reason": "interrupted"}),
        ([state(ChatState.interrupted)], {"type": "abort", "reason": "interrupted"}),
        ([finished(StopReason.error)], {"type": "error", "errorText": "An error occurred."}),
        ([ErrorEvent(error=ErrorInfo(kind="x", message="Oh"))], {"type": "error", "errorText": "Oh"}),
        (
            [ErrorEvent(error=ErrorInfo(kind="x", message="Oh")), state(ChatState.streaming)],
            {"type": "finish", "finishReason": "stop"},
        ),
        ([reply(call()), asking(("k", None))], {"type": "finish", "finishReason": "tool-calls"}),
        (
            [reply(call()), asking(("k", None)), state(ChatState.waiting)],
            {"type": "finish", "finishReason": "stop"},
        ),
    ],
)
def test_stream_ends_as_its_turn(events: list[Event], end: dict[str, Any]) -> None:
    assert encode(user(), *events)[-1] == end


def test_cut_stream_ends_in_an_error() -> None:
    encoder = AISDKEncoder()
    assert list(encoder.end(cut="come back")) == [{"type": "start"}, {"type": "error", "errorText": "come back"}]


def test_approval_is_requested_once() -> None:
    asks = asking(("k", "asked"), ("j", "asked"), ("i", None))
    assert encode(user(), reply(call()), asks, asks)[4:] == [
        {"type": "finish-step"},
        {"type": "start-step"},
        *[
            one
            for call_id in ("j", "i")
            for one in (
                {"type": "tool-input-start", "toolCallId": call_id, "toolName": "look"},
                {"type": "tool-input-available", "toolCallId": call_id, "toolName": "look", "input": {}},
            )
        ],
        {"type": "tool-approval-request", "approvalId": "k", "toolCallId": "k"},
        {"type": "tool-approval-request", "approvalId": "j", "toolCallId": "j"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "tool-calls"},
    ]


def test_discarded_attempt_is_taken_back_by_version() -> None:
    lived = (
        user(), state(ChatState.streaming), whole("tool_call", call_id="j", name="look", arguments={}),
        calling("{", index=1), words("Half", index=2), AttemptDiscardedEvent(step=1, attempt=1, reason="lost"),
        words("All", attempt=2), reply(TextPart(text="All")), finished(),
    )  # fmt: skip
    opening = encode(user(), state(ChatState.streaming), *lived[2:5])[:8]
    all_of_it = [
        {"type": "text-start", "id": "text-1-0"},
        {"type": "text-delta", "id": "text-1-0", "delta": "All"},
        {"type": "text-end", "id": "text-1-0"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]
    short = "The call was not made: the reply was cut short."
    assert encode(*lived, version=7) == [*opening, {"type": "reset-step"}, *all_of_it]
    assert encode(*lived) == [
        *opening,
        {"type": "text-end", "id": "text-1-2"},
        {"type": "tool-input-error", "toolCallId": "k", "toolName": "look", "input": None, "errorText": short},
        {"type": "tool-output-error", "toolCallId": "j", "errorText": short},
        {"type": "data-discarded", "id": "discarded-1-1", "data": {"step": 1, "attempt": 1, "reason": "lost"}},
        {"type": "finish-step"},
        {"type": "start-step"},
        *all_of_it,
    ]
