"""The strict provider itself: a check that cannot fail would prove nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from turnwise import Message, ModelRequest, TextPart, ToolSpec
from turnwise.providers.scripted import Reply
from turnwise.states.messages import Part, ReasoningPart, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor
from turnwise.testing.strict import StrictModel, faults_in

USER = ("user", (TextPart(text="hi"),))
SAID = ("assistant", (TextPart(text="hello"),))
REMINDER = ("system", (TextPart(text="<reminder>go on</reminder>"),))


def call(call_id: str, executor: Executor = Executor.local) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name="look", arguments={}, executor=executor)


def result(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="look", output="seen")


def request(*messages: tuple[Any, tuple[Part, ...]], **options: Any) -> ModelRequest:
    made = [
        Message(id=f"m{place}", role=role, parts=parts, turn=1, step=1, created_at=datetime(2026, 1, 1, tzinfo=UTC))
        for place, (role, parts) in enumerate(messages, start=1)
    ]
    return ModelRequest(purpose="step", chat_id="c", messages=made, step=options.pop("step", 1), **options)


def test_valid_conversation_has_no_fault() -> None:
    asked = ("assistant", (TextPart(text="see"), call("a"), call("b")))
    assert faults_in(request(USER, asked, ("tool", (result("a"),)), ("tool", (result("b"),)), REMINDER)) == []


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ((), "nothing to answer"),
        ((SAID, USER), "begins with"),
        ((USER, SAID), "ends with"),
        ((USER, REMINDER, USER), "inside the history"),
        ((USER, ("assistant", (call("a"),)), USER), "before the results of ['a']"),
        ((USER, ("assistant", (call("a"),))), "ends before the results"),
        ((USER, ("tool", (result("a"),))), "the result of a comes where"),
        ((USER, ("assistant", (call("a"),)), *2 * [("tool", (result("a"),))]), "the result of a comes where"),
        (
            (USER, ("assistant", (call("a"), call("b"))), ("tool", (result("b"),)), ("tool", (result("a"),))),
            "comes where the result of ['a'] is due",
        ),
        ((USER, *2 * [("assistant", (call("a"),)), ("tool", (result("a"),))]), "is used again"),
        ((("user", (TextPart(text=" "),)),), "empty text"),
        ((("user", ()),), "has no part"),
        ((USER, ("assistant", (ReasoningPart(),)), USER), "empty reasoning"),
        ((USER, ("assistant", (SourcePart(url="https://example.org"),)), USER), "part of type source"),
        ((USER, ("assistant", (call("p", Executor.provider),)), USER), "provider call p is followed by result None"),
        ((("user", (TextPart(text="\ud800"),)),), "cannot be sent as JSON"),
    ],
)
def test_planted_fault_is_found(messages: tuple[Any, ...], fault: str) -> None:
    assert any(fault in found for found in faults_in(request(*messages)))


def test_duplicate_tools_and_bad_schemas_are_found() -> None:
    faults = faults_in(request(USER, tools=2 * (ToolSpec("look", "Look.", {}),)))
    assert [fault.split(":")[0] for fault in faults] == ["a tool is offered twice", "tool look", "tool look"]


@pytest.mark.parametrize(
    ("back", "faults"),
    [((ReasoningPart(text="hm", signature="s1"),), 0), ((ReasoningPart(text="hm", signature="S1"),), 1), ((), 1)],
)
async def test_changed_or_missing_signature_is_found(back: tuple[Part, ...], faults: int) -> None:
    model = StrictModel(Reply("hello", reasoning="hm", signature="s1"))
    await model.generate(request(USER))
    await model.generate(request(USER, ("assistant", (*back, TextPart(text="hello"))), USER, step=2))
    assert len(model.faults) == faults
