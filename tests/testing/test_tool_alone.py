"""A tool that a test calls by itself reads its arguments, runs and answers as it does in an engine."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from turnwise import (
    Engine,
    FatalToolError,
    InvalidArgument,
    InvalidContent,
    SettingsError,
    ToolContext,
    ToolFailed,
    ToolOutput,
    delegate,
    tool,
)
from turnwise.states.messages import FilePart
from turnwise.testing import Call, Reply, ScriptedModel


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
    assert [kept[:2] for kept in alone] == [kept[:2] for kept in in_engine] == [(date(2026, 5, 1), 2)]


@pytest.mark.parametrize("given", ['{"day": "2026-05-01"}', '{"day": "2026-05-01",}'])
async def test_tool_alone_takes_the_text_of_a_model(given: str) -> None:
    assert await book(given, deps=[]) == {"day": "2026-05-01", "seats": 1}


@pytest.mark.parametrize("given", ["", "{}", {"day": "soon"}, {"day": "2026-05-01", "seats": None}])
async def test_tool_alone_refuses_arguments_that_do_not_fit(given: Any) -> None:
    deps: list[Any] = []
    with pytest.raises(InvalidArgument, match="Invalid arguments for book") as refused:
        await book(given, deps=deps)
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

    context = replace(ToolContext.for_tests(chat_id="mine"), report=shown.append)
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
        """Return what has no JSON."""
        return object()

    with pytest.raises(InvalidContent):
        await odd()


async def test_tool_of_a_helper_is_not_called_alone() -> None:
    with pytest.raises(SettingsError, match="answered by a helper"):
        await delegate("default")({})


def test_tool_is_not_declared_twice() -> None:
    with pytest.raises(SettingsError, match="'book': is a tool already"):
        tool(book)
