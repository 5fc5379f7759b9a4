"""The events that an AG-UI client gets of a turn."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
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
from turnwise.service import AGUIEncoder, encode_agui
from turnwise.states.events import AttemptDiscardedEvent, ErrorEvent, ErrorInfo, Event
from turnwise.states.messages import FilePart, ReasoningPart, TextPart, ToolResultPart
from turnwise.states.names import ChatState, StopReason
from turnwise.states.usage import Usage

RUN = {"threadId": "t", "runId": "r"}
STARTED = {"type": "RUN_STARTED", **RUN, "protocolVersion": "1.0"}
USER = {"id": "u1", "role": "user", "content": "Hi!"}


def encode(*events: Event, history: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Return the events between the run's start and its end."""
    encoder = AGUIEncoder("t", "r", history=history)
    run = [*encoder.begin(), *(one for event in numbered(*events) for one in encoder.encode(event)), *encoder.end()]
    assert run[0] == STARTED
    return run[1:-1]


def text(*pieces: str, step: int = 1) -> list[dict[str, Any]]:
    message = {"messageId": f"c1-s{step}"}
    return [
        {"type": "TEXT_MESSAGE_START", **message, "role": "assistant"},
        *({"type": "TEXT_MESSAGE_CONTENT", **message, "delta": piece} for piece in pieces),
        {"type": "TEXT_MESSAGE_END", **message},
    ]


def test_text_and_reasoning_close_around_a_call() -> None:
    message = reply(ReasoningPart(text="Hm"), TextPart(text="One two"), call(a=1), TextPart(text="Three"))
    thought = {"messageId": "c1-s1-r0"}
    assert encode(
        user(), state(ChatState.streaming), words("Hm", kind="reasoning"), words("One ", index=1),
        words("two", index=1), calling('{"a"', index=2), calling(": 1}", index=2),
        whole("tool_call", index=2, call_id="k", name="look", arguments={"a": 1}), words("Three", index=3), message,
        tool(ToolResultPart(call_id="k", name="look", output=[1])), words("Done", step=2),
        reply(TextPart(text="Done"), step=2), finished(), history=[USER],
    ) == [
        {"type": "REASONING_START", **thought},
        {"type": "REASONING_MESSAGE_START", **thought, "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", **thought, "delta": "Hm"},
        {"type": "REASONING_MESSAGE_END", **thought},
        {"type": "REASONING_END", **thought},
        *text("One ", "two"),
        {"type": "TOOL_CALL_START", "toolCallId": "k", "toolCallName": "look", "parentMessageId": "c1-s1"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "k", "delta": '{"a"'},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "k", "delta": ": 1}"},
        {"type": "TOOL_CALL_END", "toolCallId": "k"},
        *text("Three"),
        {"type": "TOOL_CALL_RESULT", "messageId": "r-k", "toolCallId": "k", "content": "[1]", "role": "tool"},
        *text("Done", step=2),
    ]  # fmt: skip


def test_discarded_attempt_is_taken_back() -> None:
    opening = (
        user(), state(ChatState.streaming), whole("tool_call", call_id="j", name="look", arguments={}),
        whole("tool_result", index=1, call_id="j", name="look", output="1"),
        calling("{", index=2), words("Hm", kind="reasoning", index=3),
    )  # fmt: skip
    events = encode(
        *opening, AttemptDiscardedEvent(step=1, attempt=1, reason="lost"), state(ChatState.streaming),
        words("All", attempt=2), reply(TextPart(text="All")), finished(), history=[USER],
    )  # fmt: skip
    thought = {"messageId": "c1-s1-r3"}
    assert events[-8:] == [
        {"type": "REASONING_MESSAGE_CONTENT", **thought, "delta": "Hm"},
        {"type": "REASONING_MESSAGE_END", **thought},
        {"type": "REASONING_END", **thought},
        {"type": "TOOL_CALL_END", "toolCallId": "k"},
        {"type": "MESSAGES_SNAPSHOT", "messages": [USER, {"id": "c1-s1-r3", "role": "reasoning", "content": ""}]},
        *text("All"),
    ]
    later = encode(
        *opening, AttemptDiscardedEvent(step=1, attempt=1, reason="lost"), reply(TextPart(text="All")),
        words("Tw", step=2), reply(TextPart(text="2"), step=2), finished(), history=[USER],
    )  # fmt: skip
    messages = [("u1", "Hi!"), ("c1-s1", "All"), ("c1-s2", "2"), ("c1-s1-r3", "")]
    assert [(one["id"], one["content"]) for one in later[-1]["messages"]] == messages
    assert types(encode(*opening)).count("MESSAGES_SNAPSHOT") == 0, "a client without a history is corrected nowhere"
    open_text = encode(words("Half"), AttemptDiscardedEvent(step=1, attempt=1, reason="lost"), words("All", attempt=2))
    assert open_text == [*text("Half"), *text("All")]


@pytest.mark.parametrize(
    ("shown", "message", "differs"),
    [
        ([words("One")], reply(TextPart(text="One")), False),
        ([words("One")], reply(TextPart(text="Other")), True),
        ([words("On")], reply(TextPart(text="One")), False),
        ([calling('{"a": 1}')], reply(call(a=1)), False),
        ([calling('{"a": 1')], reply(call(a=1)), True),
        ([calling('{"a": 2}')], reply(call(a=1)), True),
        ([calling(None)], reply(call(a=1)), False),
        ([calling('{"a": 1}')], reply(TextPart(text="One")), True),
        ([whole("tool_call", call_id="k", name="look", arguments={})], reply(call("j")), True),
        ([words("One")], finished(), True),
        ([words("Hm", kind="reasoning")], reply(ReasoningPart(text="Hm")), False),
        ([words("Hm", kind="reasoning")], reply(ReasoningPart(text="Other")), True),
        ([], finished(), False),
    ],
)
def test_snapshot_corrects_a_differing_client(shown: list[Event], message: Event, differs: bool) -> None:
    events = encode(user(), state(ChatState.streaming), *shown, message, history=[])
    assert ("MESSAGES_SNAPSHOT" in types(events)) is differs


def test_files_and_sources_become_custom_events() -> None:
    files = (
        FilePart(media_type="Audio/WAV", data="AA=="),
        FilePart(media_type="text/plain", url="http://x"),
        FilePart(media_type="image/png", blob="0" * 64),
    )
    sources = [
        {"type": "audio", "source": {"type": "data", "value": "AA==", "mimeType": "Audio/WAV"}},
        {"type": "document", "source": {"type": "url", "value": "http://x", "mimeType": "text/plain"}},
        {
            "type": "image",
            "source": {"type": "file", "value": "0" * 64, "provider": "turnwise", "mimeType": "image/png"},
        },
    ]
    result = ToolResultPart(call_id="k", name="look", output="seen", attachments=files)
    shown = (whole("source", url="http://s", title="S"), whole("file", index=1, data="AA==", media_type="a/b"))
    events = encode(*shown, reply(call(), step=2), tool(result, step=2))
    source = {"id": None, "type": "url", "url": "http://s", "title": "S"}
    assert events[0] == {"type": "CUSTOM", "name": "source", "value": source}
    assert (events[1]["name"], events[1]["value"]["type"]) == ("file", "document")
    assert events[-1]["content"] == [{"type": "text", "text": "seen"}, *sources]


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("history", lambda: AGUIEncoder("t", "r", history=7)),
        ("history[1]", lambda: AGUIEncoder("t", "r", history=[USER, {"id": "m1"}])),
        ("thread_id", lambda: AGUIEncoder(7, "r")),
        ("events", lambda: encode_agui(7, thread_id="t", run_id="r")),
        ("event", lambda: list(encode_agui(iter(["x"]), thread_id="t", run_id="r"))),
        ("anew", lambda: AGUIEncoder("t", "r").begin(anew="yes")),
    ],
)
def test_wrong_argument_is_refused_by_name(argument: str, wrong: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        wrong()
    assert refused.value.argument == argument


USED = Usage(input_tokens=3, output_tokens=None)
SUCCESS = {"type": "RUN_FINISHED", **RUN, "outcome": {"type": "success"}}
CANCELLED = {"type": "RUN_FINISHED", **RUN, "outcome": {"type": "cancelled"}}
PENDING = SUCCESS | {"outcome": {"type": "success", "pendingToolCallIds": ["k", "j"]}}


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([], SUCCESS),
        ([finished(usage=USED)], SUCCESS | {"usage": [{"inputTokens": 3}]}),
        (
            [finished(StopReason.error, USED), state(ChatState.streaming), finished(usage=USED + USED)],
            SUCCESS | {"usage": [{"inputTokens": 6}]},
        ),
        ([finished(StopReason.interrupted)], CANCELLED),
        ([finished(StopReason.max_steps)], CANCELLED),
        ([finished(StopReason.stop_after_tool)], SUCCESS),
        ([finished(StopReason.content_filter)], SUCCESS),
        ([state(ChatState.interrupted)], CANCELLED),
        ([finished(StopReason.error)], {"type": "RUN_ERROR", "message": "An error occurred.", "code": "error"}),
        (
            [ErrorEvent(error=ErrorInfo(kind="auth", message="Oh"))],
            {"type": "RUN_ERROR", "message": "Oh", "code": "auth"},
        ),
        ([reply(call()), asking(("k", None), ("j", "granted"))], PENDING),
    ],
)
def test_run_ends_as_its_turn(events: list[Event], end: dict[str, Any]) -> None:
    encoder = AGUIEncoder("t", "r")
    for event in numbered(user(), *events):
        list(encoder.encode(event))
    assert encoder.over is any(event.kind == "turn_finished" for event in events)
    assert list(encoder.end())[-1] == end
    assert list(encoder.end(cut="come back")) == [{"type": "RUN_ERROR", "message": "come back", "code": "reconnect"}]


ALL = Usage(input_tokens=40, output_tokens=9)
SPENT = finished(usage=Usage(input_tokens=10, output_tokens=1))


@pytest.mark.parametrize(
    ("events", "usage"),
    [
        ([user(), reply(usage=Usage(input_tokens=3)), finished(usage=ALL)], ALL),
        ([reply(usage=Usage(input_tokens=3, output_tokens=1)), reply(step=2, usage=USED), finished(usage=ALL)], (6, 1)),
        ([user(synthetic=True), reply(usage=Usage(input_tokens=3)), finished(usage=ALL)], (3, None)),
        ([user(), reply(call(), usage=Usage(input_tokens=3)), asking(("k", "asked"))], (3, None)),
        ([user(), reply(usage=USED), ErrorEvent(error=ErrorInfo(kind="auth", message="Oh"))], (3, None)),
        ([reply(), finished(usage=ALL)], None),
        (
            [reply(usage=USED), finished(usage=ALL), user(turn=4), reply(step=2, usage=USED), replace(SPENT, turn=4)],
            (13, 1),
        ),
    ],
)
def test_run_reports_usage_of_its_replies(events: list[Event], usage: Any) -> None:
    """A run that starts with the turn reports all calls; a run that continues reports the calls that it streams."""
    if isinstance(usage, Usage):
        usage = (usage.input_tokens, usage.output_tokens)
    encoder = AGUIEncoder("t", "r")
    for event in numbered(*events):
        list(encoder.encode(event))
    end = list(encoder.end())[-1]
    counted = [(one.get("inputTokens"), one.get("outputTokens")) for one in end.get("usage", ())]
    assert counted == ([] if usage is None else [usage])
