"""New input in a front end's messages, and the effect of its answers to calls."""

from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from turnwise.service.protocols.new_input import AISDKRequest, NewInput, new_input_of_agui, new_input_of_ai_sdk
from turnwise.states.calls import ToolResult
from turnwise.states.messages import FilePart, TextPart

HI = {"type": "text", "text": "Hi!"}


def agui(*messages: dict[str, Any], resume: list[dict[str, Any]] | None = None) -> NewInput:
    fields = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return new_input_of_agui(RunAgentInput.model_validate({**fields, "messages": messages, "resume": resume}))


def ai_sdk(*messages: tuple[str, list[dict[str, Any]]]) -> NewInput:
    page = [{"id": f"u{place}", "role": role, "parts": parts} for place, (role, parts) in enumerate(messages)]
    return new_input_of_ai_sdk(AISDKRequest.model_validate({"id": "tab-1", "messages": page}))


def user(message_id: str, content: Any) -> dict[str, Any]:
    return {"id": message_id, "role": "user", "content": content}


def assistant(*calls: str) -> dict[str, Any]:
    tool_calls = [{"id": call, "type": "function", "function": {"name": "look", "arguments": "{}"}} for call in calls]
    return {"id": "a", "role": "assistant", "content": "", "toolCalls": tool_calls}


def result(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": f"r-{call_id}", "role": "tool", "toolCallId": call_id, "content": "1", **fields}


@pytest.mark.parametrize(
    ("status", "payload", "approves"),
    [
        ("resolved", True, True),
        ("resolved", {"approved": True}, True),
        ("resolved", "yes", None),
        ("cancelled", True, False),
        ("cancelled", None, False),
    ],
)
def test_cancelled_interrupt_approves_nothing(status: str, payload: Any, approves: bool | None) -> None:
    answers = agui(resume=[{"interruptId": "k", "status": status, "payload": payload}]).answers
    assert answers.keys() == {"k"}
    assert (answers["k"].call_id, answers["k"].approves, answers["k"].is_error) == ("k", approves, False)


def test_agui_input_is_what_follows_the_answer() -> None:
    old = (user("u1", "Old"), assistant("j", "k"), result("j"), assistant("l"))
    new = (result("k"), result("l", error="Oh"), user("u2", "One"), user("u3", [HI, HI]))
    assert agui(*old, *new) == NewInput(
        [("u2", [TextPart(text="One")]), ("u3", [TextPart(text="Hi!")] * 2)],
        {"k": ToolResult("k", "1"), "l": ToolResult("l", "Oh", is_error=True)},
        frozenset({"j", "k", "l"}),
        frozenset({"j", "k", "l"}),
        behind="a",
    )
    assert agui(*old) == NewInput([], {}, frozenset({"j", "k", "l"}), frozenset({"j"}), behind="a")


def test_blank_message_is_left_out() -> None:
    """A page repeats a refused message with every later request."""
    blank, file = [{"type": "text", "text": " \n"}], {"type": "file", "mediaType": "image/png", "url": "http://x"}
    run = agui(user("u1", ""), user("u2", blank), user("u3", "Hi!"), user("u4", []))
    page = ai_sdk(("user", blank), ("user", [file]), ("user", []))
    assert [[name for name, _ in asked.messages] for asked in (run, page)] == [["u3"], ["u1"]]


def test_agui_files_by_data_url_and_digest() -> None:
    sources = [
        {"type": "data", "value": "AA==", "mimeType": "image/png"},
        {"type": "url", "value": "http://x"},
        {"type": "file", "value": "file-abc", "provider": "elsewhere"},
        {"type": "file", "value": "0" * 64, "provider": "turnwise"},
    ]
    content = [HI, *({"type": "image", "source": source} for source in sources)]
    assert agui(user("u1", content)).messages == [
        (
            "u1",
            [
                TextPart(text="Hi!"),
                FilePart(media_type="image/png", data="AA=="),
                FilePart(media_type="application/octet-stream", url="http://x"),
                FilePart(media_type="application/octet-stream", blob="0" * 64),
            ],
        )
    ]


def test_ai_sdk_input_is_what_follows_the_answer() -> None:
    old = ("assistant", [{"type": "tool-look", "toolCallId": "j", "state": "output-available", "output": 1}])
    asked = ("assistant", [{"type": "tool-look", "toolCallId": "k", "state": "input-available"}])
    both = ("user", [HI, {"type": "step-start"}]), ("user", [{"type": "text"}])
    known, answered = frozenset({"j", "k"}), frozenset({"j"})
    texts = [("u3", [TextPart(text="Hi!")])]  # and "u4" says nothing
    assert ai_sdk(("user", [HI]), old, asked, *both) == NewInput(texts, {}, known, answered, behind="u2")
    assert ai_sdk(("user", [HI]), old, asked) == NewInput([], {}, known, answered, behind="u2")
    assert ai_sdk(asked, old) == NewInput([], {"j": ToolResult("j", 1)}, known, answered, behind="u1")
    assert ai_sdk(old, ("user", [HI])).answers == {"j": ToolResult("j", 1)}, "it may be answered and gone on at once"
    assert ai_sdk(("user", old[1])).answers == {}, "only the assistant calls"
    assert ai_sdk(("assistant", [HI | {"state": "output-available"}, *old[1]])).answers == {"j": ToolResult("j", 1)}
    assert ai_sdk() == NewInput()


@pytest.mark.parametrize(
    ("part", "answer"),
    [
        ({"state": "output-available", "output": {"a": 1}}, ToolResult("k", {"a": 1})),
        ({"state": "output-error", "errorText": "Oh"}, ToolResult("k", "Oh", is_error=True)),
        ({"state": "approval-responded", "approval": {"approved": True}}, ToolResult("k", {"approved": True})),
        ({"state": "approval-responded", "approval": {"approved": False}}, ToolResult("k", {"approved": False})),
        ({"state": "approval-responded", "approval": {"approved": "yes"}}, ToolResult("k", {"approved": False})),
        ({"state": "approval-responded"}, ToolResult("k", {"approved": False})),
        (
            {"state": "approval-responded", "approval": {"approved": True, "reason": "go"}},
            ToolResult("k", {"approved": True, "reason": "go"}),
        ),
        ({"state": "approval-requested"}, None),
        ({}, None),
    ],
)
def test_part_state_is_the_answer(part: dict[str, Any], answer: ToolResult | None) -> None:
    answers = ai_sdk(("assistant", [{"type": "tool-look", "toolCallId": "k", **part}])).answers
    assert answers == ({} if answer is None else {"k": answer})
