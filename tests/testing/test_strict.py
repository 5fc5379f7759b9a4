"""The strict provider itself: a check that cannot fail would prove nothing."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from turnwise import Engine, Message, ModelRequest, TextPart, ToolContext, ToolOutput, ToolSpec, delegate, tool
from turnwise.providers.scripted import Reply
from turnwise.states.errors import FatalToolError, InvalidArgument, InvalidContent, SettingsError, ToolFailed
from turnwise.states.messages import FilePart, Part, ReasoningPart, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor
from turnwise.testing import Call, ScriptedModel
from turnwise.testing.strict import StrictModel, faults_in

USER = ("user", (TextPart(text="hi"),))
SAID = ("assistant", (TextPart(text="hello"),))
REMINDER = ("system", (TextPart(text="<reminder>go on</reminder>"),))


def call(call_id: str, executor: Executor = Executor.local) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name="look", arguments={}, executor=executor)


def result(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="look", output="seen")


def request(*messages: tuple[Any, tuple[Part, ...]], **options: Any) -> ModelRequest:
    history = [
        Message(id=f"m{place}", role=role, parts=parts, turn=1, step=1, created_at=datetime(2026, 1, 1, tzinfo=UTC))
        for place, (role, parts) in enumerate(messages, start=1)
    ]
    return ModelRequest(purpose="step", chat_id="c", messages=history, step=options.pop("step", 1), **options)


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


async def test_history_may_begin_with_a_greeting() -> None:
    model = StrictModel("Here is the menu.")
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat(history=[{"role": "assistant", "content": "What would you like?"}])
        await engine.ask(chat.id, "The menu, please.")
    assert model.faults == []


# A tool alone


@tool
async def book(day: date, seats: int = 1, *, context: ToolContext[list[Any]]) -> dict[str, Any]:
    """Book seats for a day."""
    context.deps.append((day, seats, context.key))
    return {"day": day, "seats": seats}


async def test_tool_alone_answers_as_in_an_engine() -> None:
    alone: list[Any] = []
    in_engine: list[Any] = []
    arguments = {"day": "2026-05-01", "seats": "2"}
    output = await book(arguments, deps=alone)
    model = ScriptedModel([Reply(calls=[Call("book", arguments)]), "Booked."])
    async with Engine("sqlite://", model=model, tools=[book], deps=in_engine) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Book it.")
        results = [message.result for message in await engine.messages(chat.id) if message.result is not None]
    assert [result.output for result in results] == [output] == [{"day": "2026-05-01", "seats": 2}]
    assert [one[:2] for one in alone] == [one[:2] for one in in_engine] == [(date(2026, 5, 1), 2)]


@pytest.mark.parametrize("argument", ['{"day": "2026-05-01"}', '{"day": "2026-05-01",}'])
async def test_tool_alone_takes_the_text_of_a_model(argument: str) -> None:
    assert await book(argument, deps=[]) == {"day": "2026-05-01", "seats": 1}


@pytest.mark.parametrize("argument", ["", "{}", {"day": "soon"}, {"day": "2026-05-01", "seats": None}])
async def test_tool_alone_refuses_arguments_that_do_not_fit(argument: Any) -> None:
    deps: list[Any] = []
    with pytest.raises(InvalidArgument, match="Invalid arguments for book") as refused:
        await book(argument, deps=deps)
    assert refused.value.argument == "arguments"
    assert deps == []


async def test_blocking_tool_alone_runs_in_a_thread() -> None:
    @tool
    def where() -> int:
        """Tell the thread."""
        return threading.get_ident()

    assert await where() != threading.get_ident()


@pytest.mark.parametrize("error", [ToolFailed("sold out"), FatalToolError("no"), KeyError("day"), StopAsyncIteration()])
@pytest.mark.parametrize("blocking", [True, False])
async def test_tool_alone_raises_what_it_raises(error: Exception, *, blocking: bool) -> None:
    def fail() -> None:
        """Fail."""
        raise error

    async def fail_later() -> None:
        """Fail."""
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)) as raised:
        await tool(fail if blocking else fail_later)()
    assert raised.value is error


async def test_tool_alone_is_given_a_whole_context() -> None:
    shown: list[Any] = []

    @tool
    async def attach(context: ToolContext[Any]) -> ToolOutput:
        """Attach a file."""
        context.report({"half": True})
        file = await context.put_file(b"abc", media_type="text/plain")
        return ToolOutput({context.chat_id, context.chat.id} == {"mine", "chat"}, (file,))

    context = ToolContext.for_tests(chat_id="mine", report=shown.append)
    output = await attach(context=context)
    assert output == ToolOutput(output=True, attachments=(FilePart.from_bytes(b"abc", "text/plain"),))
    assert shown == [{"half": True}]
    with pytest.raises(InvalidArgument, match="stands in the context"):
        await attach(deps=1, context=context)


async def test_file_of_a_tool_alone_is_read_from_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "plan.txt"
    path.write_text("plan")
    assert await ToolContext.for_tests().put_file(path) == FilePart.from_path(path)


async def test_tool_alone_refuses_output_without_json() -> None:
    @tool
    async def odd() -> object:
        """Return a value without JSON."""
        return object()

    with pytest.raises(InvalidContent):
        await odd()


async def test_tool_of_a_subagent_is_not_called_alone() -> None:
    with pytest.raises(SettingsError, match="answered by a subagent"):
        await delegate("default")({})


def test_tool_is_not_declared_twice() -> None:
    with pytest.raises(SettingsError, match="'book': is a tool already"):
        tool(book)
