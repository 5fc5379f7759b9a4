"""The history for strict providers: the messages of a request, the rest of a reply, and unanswered messages."""

from datetime import UTC, datetime
from typing import Any

import pytest

from turnwise import FilePart, TextPart
from turnwise.engine.prompt.history import (
    EDITED,
    is_made,
    is_said,
    sendable,
    unanswered,
    with_continue_prompt,
    with_results,
)
from turnwise.states.messages import Message, ReasoningPart, SourcePart, ToolCallPart, ToolResultPart, length_of
from turnwise.states.names import CallStatus, Executor

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PICTURE = FilePart(media_type="image/png", data="x" * 160)
SOURCE = SourcePart(url="https://example.org")
SIGNED = ReasoningPart(text="hm", signature="s")


def call(call_id: str, executor: Executor = Executor.local) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name="look", arguments={}, executor=executor)


def searched(call_id: str) -> ToolCallPart:
    return call(call_id, Executor.provider)


def result(call_id: str, output: Any = "found", **more: Any) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="look", output=output, **more)


def message_of(role: Any, *parts: Any, **more: Any) -> Message:
    texts = [TextPart(text=part) if isinstance(part, str) else part for part in parts]
    return Message(id="m", role=role, parts=tuple(texts), turn=1, created_at=NOW, **{"step": 0, **more})


def texts(message: Message) -> list[str]:
    return [part.text if isinstance(part, TextPart | ReasoningPart) else part.type for part in message.parts]


@pytest.mark.parametrize(
    ("parts", "partial", "sent"),
    [
        (("a", " \n", ""), False, ["a"]),
        (("a", SOURCE, PICTURE), False, ["a", "file"]),
        ((SIGNED, "a"), True, ["hm", "a"]),
        ((ReasoningPart(text="hm"), "a"), False, ["hm", "a"]),
        ((ReasoningPart(text="hm"), "a"), True, ["a"]),
        ((ReasoningPart(text=" "), "a"), False, ["a"]),
        ((" ", SOURCE), False, None),
    ],
)
def test_empty_unsigned_and_cited_parts_are_not_sent(parts: Any, *, partial: bool, sent: list[str] | None) -> None:
    message = message_of("assistant", *parts, partial=partial)
    assert [texts(found) for found in sendable([message])] == ([sent] if sent is not None else [])


@pytest.mark.parametrize(
    ("parts", "stored"),
    [
        ((searched("a"), result("a")), [0, 1]),
        ((searched("a"), "so"), [1]),
        ((searched("a"), result("b"), "so"), [2]),
        ((searched("a"), result("a"), searched("b"), result("c")), [0, 1]),
        ((call("a"), searched("b"), "so"), [0, 2]),
        ((call("a"), result("a"), "so"), [0, 2]),
    ],
)
def test_provider_call_and_result_are_sent_together(parts: Any, stored: list[int]) -> None:
    message = message_of("assistant", *parts)
    assert with_results(message.parts) == tuple(message.parts[at] for at in stored)
    assert [found.parts for found in sendable([message])] == [tuple(message.parts[at] for at in stored)]


def test_result_notes_edited_arguments() -> None:
    edited = {"edited_arguments": {"at": 3}}
    history = [message_of("tool", result("a", output, **edited)) for output in ("found", {"n": 1}, ["x"])]
    note = f'{EDITED} {{"at":3}}'
    found = [message.result for message in sendable([*history, message_of("tool", result("b"))])]
    expected = [f"[{note}]\nfound", {"note": note, "output": {"n": 1}}, {"note": note, "output": ["x"]}, "found"]
    assert [one.output for one in found if one is not None] == expected
    assert all(one is not None and one.edited_arguments is None for one in found)
    assert history[0].result == result("a", **edited), "the history itself is as it was"


def test_results_are_sent_in_call_order() -> None:
    history = [message_of("tool", result(name), step=2, call_index=at) for name, at in (("b", 1), ("a", 0))]
    assert [message.call_index for message in sendable(history)] == [0, 1]


def test_trailing_answer_is_followed_by_a_continue_request() -> None:
    question, answer = message_of("user", "hi"), message_of("assistant", "well", partial=True, step=4)
    assert with_continue_prompt([], "Go on.") == []
    assert with_continue_prompt([question], "Go on.") == [question]
    *before, last = with_continue_prompt([question, answer], "Go on.")
    assert before == [question, answer]
    assert (last.role, texts(last), last.turn, last.step, last.position) == ("user", ["Go on."], 1, 4, 0)


@pytest.mark.parametrize(
    ("after", "answered"),
    [
        (message_of("assistant", "yes"), True),
        (message_of("assistant", SIGNED, PICTURE), True),
        (message_of("assistant", searched("a"), result("a"), "I look", call("b")), False),
        (message_of("assistant", searched("a"), result("a"), "yes"), True),
        (message_of("assistant", "yes", partial=True), False),
        (message_of("assistant", "I look", call("a")), False),
        (message_of("assistant", " "), False),
        (message_of("assistant", SIGNED), False),
        (message_of("tool", result("a")), False),
        (message_of("tool", result("last")), True),
        (message_of("tool", result("last", outcome=CallStatus.failed, is_error=True)), False),
        (message_of("tool", result("last", outcome=CallStatus.interrupted), synthetic=True), False),
        (message_of("assistant", call("last")), False),
    ],
)
def test_whole_reply_or_turn_ending_call_is_an_answer(after: Message, *, answered: bool) -> None:
    asked = [message_of("user", "one", position=3), message_of("user", "two", position=4)]
    assert unanswered([*asked, after], ending={"last"}) == (() if answered else (3, 4))
    assert unanswered([asked[0], after, asked[1]], ending={"last"}) == ((4,) if answered else (3, 4))


@pytest.mark.parametrize(
    "behind",
    [
        [message_of("assistant", "not that either", partial=True)],
        [message_of("assistant", call("a")), message_of("tool", result("a", outcome=CallStatus.interrupted))],
        [message_of("user", "Once more.", position=9, step=2), message_of("assistant", "not that", partial=True)],
    ],
)
def test_refused_reply_is_no_answer(behind: list[Message]) -> None:
    """The answer lacked the form, and the turn ended without another."""
    one, two = message_of("user", "one", position=3), message_of("user", "two", position=4)
    refused = message_of("assistant", "not what was wanted")
    assert unanswered([one, refused, *behind]) == (3,)
    assert unanswered([one, refused, *behind, two]) == (3, 4)
    assert unanswered([one, refused, two, *behind]) == (4,), "the turn of the second question says nothing of the first"
    assert unanswered([one, refused, *behind, message_of("assistant", "what was wanted"), two]) == (4,)


def test_synthetic_user_message_awaits_no_answer() -> None:
    own, synthetic = message_of("user", "mine", position=1), message_of("user", "made", position=2, step=1)
    assert [is_made(message) for message in (own, synthetic)] == [False, True]
    assert unanswered([own, synthetic]) == (1,)


def test_sources_and_blank_text_are_no_content() -> None:
    parts = [TextPart(text="a"), TextPart(text=" \n"), SOURCE, PICTURE, ReasoningPart(), call("a")]
    assert [is_said(part) for part in parts] == [True, False, False, True, True, True]


def test_part_length_is_its_share_of_the_prompt() -> None:
    link = FilePart(media_type="image/png", url="https://example.org/" + "a" * 140)
    gone, stored = FilePart(media_type="image/png"), FilePart(media_type="image/png", blob="a" * 64, size=1212)
    parts = (TextPart(text="abc"), SIGNED, PICTURE, link, gone, stored)
    assert [length_of(part) for part in parts] == [3, 2, 10, 10, 0, 101]
    short, long = (length_of(result("a", "x" * size)) for size in (0, 100))
    assert long - short == 100
