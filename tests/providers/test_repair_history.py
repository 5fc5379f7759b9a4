import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest

from turnwise import TextPart
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.repair_history import HistoryRepair
from turnwise.states.messages import Message, Part, ReasoningPart, Role, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def msg(role: Role, *parts: Part | str) -> Message:
    content = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(id=f"{role}-{parts!r}", role=role, parts=content, turn=1, step=1, created_at=EPOCH, position=1)


def call(call_id: str, executor: Executor = Executor.local) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name="look", arguments={}, executor=executor)


def result(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="look", output=f"seen {call_id}")


def request(messages: Sequence[Message]) -> ModelRequest:
    return ModelRequest(purpose="step", chat_id="c1", messages=list(messages))


def lines_of(messages: Sequence[Message]) -> list[str]:
    return [f"{message.role}: {' + '.join(_words(message))}" for message in messages]


def _words(message: Message) -> Iterator[str]:
    for part in message.parts:
        match part:
            case TextPart():
                yield part.text
            case ToolCallPart():
                yield f"call {part.call_id}"
            case ToolResultPart():
                yield str(part.output)
            case _:
                yield part.type


VALID = [
    msg("user", "Look."),
    msg("assistant", ReasoningPart(text="Hm.", signature="s"), "I look.", call("a"), call("b")),
    msg("tool", result("a")),
    msg("tool", result("b")),
    msg("assistant", call("w", Executor.provider), result("w"), "Seen."),
    msg("user", "And?"),
    msg("system", "<reminder>be quick</reminder>"),
]


def test_valid_history_is_unchanged_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert HistoryRepair().repair(request(VALID)) == VALID
    assert caplog.records == []


@pytest.mark.parametrize(
    ("history", "expected", "change"),
    [
        pytest.param(
            [msg("user", "Look."), msg("assistant", call("a"), call("b")), msg("tool", result("b"))],
            ["user: Look.", "assistant: call a + call b", "tool: No result of this call is known.", "tool: seen b"],
            "call a has no result",
            id="a call without a result gets one, in its place",
        ),
        pytest.param(
            [msg("user", "Look."), msg("tool", result("a")), msg("assistant", "Seen."), msg("user", "And?")],
            ["user: Look.", "assistant: Seen.", "user: And?"],
            "result a answers no call before it",
            id="a result without its call is dropped",
        ),
        pytest.param(
            [msg("user", "Look."), msg("assistant", call("a")), msg("tool", result("a")), msg("tool", result("a"))],
            ["user: Look.", "assistant: call a", "tool: seen a"],
            "result a answers no call before it",
            id="a second result is dropped",
        ),
        pytest.param(
            [msg("user", "Look."), msg("assistant", call("a")), msg("user", "Well?"), msg("tool", result("a"))],
            ["user: Look.", "assistant: call a", "tool: seen a", "user: Well?"],
            "results stood away from their calls",
            id="a result comes right after its call",
        ),
        pytest.param(
            [
                msg("user", "Look."),
                msg("assistant", call("a"), call("b")),
                msg("tool", result("b")),
                msg("tool", result("a")),
            ],
            ["user: Look.", "assistant: call a + call b", "tool: seen a", "tool: seen b"],
            "results stood away from their calls",
            id="results come in the order of their calls",
        ),
        pytest.param(
            [msg("user", "Look."), msg("assistant", "I look.", call("w", Executor.provider)), msg("user", "And?")],
            ["user: Look.", "assistant: I look.", "user: And?"],
            "provider call w has no result",
            id="a provider's call without its result is dropped",
        ),
        pytest.param(
            [msg("user", "Look."), msg("assistant", result("w"), "Seen."), msg("user", "And?")],
            ["user: Look.", "assistant: Seen.", "user: And?"],
            "provider result w has no call",
            id="a provider's result without its call is dropped",
        ),
        pytest.param(
            [
                msg("user", "Look."),
                msg("assistant", call("w", Executor.provider), "Hm.", result("w")),
                msg("user", "?"),
            ],
            ["user: Look.", "assistant: call w + seen w + Hm.", "user: ?"],
            "a provider's result stood away from its call",
            id="a provider's result comes right after its call",
        ),
        pytest.param(
            [msg("assistant", "Hello."), msg("user", "Hi.")],
            ["user: Continue.", "assistant: Hello.", "user: Hi."],
            "the history did not begin with the user",
            id="the user begins",
        ),
        pytest.param(
            [msg("user", "Hi."), msg("assistant", "Hello."), msg("system", "reminder")],
            ["user: Hi.", "assistant: Hello.", "user: Continue.", "system: reminder"],
            "the history ended with a reply",
            id="there is something to answer",
        ),
    ],
)
def test_invalid_history_is_repaired_and_logged(
    history: list[Message], expected: list[str], change: str, caplog: pytest.LogCaptureFixture
) -> None:
    mended = HistoryRepair().repair(request(history))
    assert lines_of(mended) == expected
    assert [change in record.getMessage() and "chat_id=c1" in record.getMessage() for record in caplog.records] == [
        True
    ]
    assert ";" not in caplog.text, "one change is logged once"
    assert HistoryRepair().repair(request(mended)) == mended
    assert len(caplog.records) == 1


def test_inserted_messages_are_synthetic_and_for_the_model() -> None:
    """It is not stored, and no adapter may take it for a message of the chat."""
    history = [msg("assistant", call("a")), msg("assistant", "Hm.")]
    first, asked, answer, _, last = HistoryRepair().repair(request(history))
    assert asked.calls
    assert (answer.result.is_error, answer.result.outcome, answer.result.name) == (True, "unknown", "look")
    for inserted in (first, answer, last):
        assert (inserted.synthetic, inserted.audience, inserted.partial, inserted.position) == (True, "model", False, 0)
    assert len({inserted.id for inserted in (asked, answer)}) == 2
    assert (first.role, first.text, last.role) == ("user", "Continue.", "user")


def test_empty_parts_and_sources_are_left_out() -> None:
    history = [
        msg("user", "Hi.", " "),
        msg("assistant", ReasoningPart(), ""),
        msg("assistant", SourcePart(url="https://turn.example"), "Hello.", call("a")),
        msg("tool", " ", result("a")),
        msg("user", "And?"),
    ]
    mended = HistoryRepair().repair(request(history))
    assert lines_of(mended) == ["user: Hi.", "assistant: Hello. + call a", "tool: seen a", "user: And?"]


def test_one_result_answers_one_call_of_equal_ids() -> None:
    """Of calls that share an id the first one is answered, by the first result after it."""
    twice = msg("assistant", call("a"), call("a"))
    unknown = "tool: No result of this call is known."
    for history, expected in (
        ([twice, msg("tool", result("a"))], ["assistant: call a + call a", "tool: seen a", unknown]),
        (
            [msg("assistant", call("a")), msg("assistant", "Hm.", call("a")), msg("tool", result("a"))],
            ["assistant: call a", "tool: seen a", "assistant: Hm. + call a", unknown],
        ),
        ([msg("tool", result("a")), msg("assistant", call("a"))], ["assistant: call a", unknown]),
    ):
        asked = msg("user", "Look.")
        assert lines_of(HistoryRepair().repair(request([asked, *history]))) == ["user: Look.", *expected]
