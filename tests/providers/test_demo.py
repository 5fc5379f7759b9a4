import math
import time
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from turnwise import InvalidArgument
from turnwise.providers.demo import DemoModel
from turnwise.providers.demo_calls import wishes
from turnwise.providers.protocol import ModelReply, ModelRequest, Purpose, ToolSpec
from turnwise.providers.reply_builder import join
from turnwise.states.messages import Message, Role, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}


def takes(*optional: str, **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


READ_FILE = ToolSpec("read_file", "Read a text file of the project.", takes(path=TEXT))
WEATHER = ToolSpec("get_weather", "Tell the weather of a city.", takes(city=TEXT))
ADD = ToolSpec("add", "Sum up two numbers.", takes(a=INTEGER, b=INTEGER))
SEARCH = ToolSpec("lookup", "Searches the company handbook.", takes(query=TEXT))
TOOLS = (READ_FILE, WEATHER, ADD, SEARCH)


def message(role: Role, *parts: Any, **more: Any) -> Message:
    content = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(
        id="m", role=role, parts=content, turn=1, step=1, created_at=datetime(2026, 1, 1, tzinfo=UTC), **more
    )


def result(name: str, output: Any, **more: Any) -> Message:
    return message("tool", ToolResultPart(call_id=name, name=name, output=output, **more))


def called(*names: str) -> Message:
    return message("assistant", *(ToolCallPart(call_id=name, name=name, arguments={}) for name in names))


def request(*messages: Message, purpose: Purpose = "step", **more: Any) -> ModelRequest:
    return ModelRequest(purpose=purpose, chat_id="c", messages=list(messages), tools=TOOLS, step=3, **more)


async def answer(*messages: Message, **more: Any) -> ModelReply:
    return await DemoModel().generate(request(*messages, **more))


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("What does README.md promise?", [("read_file", {"path": "README.md"})]),
        ("read README.md and LICENSE.txt", [("read_file", {"path": p}) for p in ("README.md", "LICENSE.txt")]),
        ("How is the weather in New York?", [("get_weather", {"city": "New York"})]),
        ("add 2 and -40", [("add", {"a": 2, "b": -40})]),
        ("search the handbook for 'parental leave'", [("lookup", {"query": "parental leave"})]),
        (
            "Tell me the weather in Paris, then read README.md and add 1 and 2",
            [("get_weather", {"city": "Paris"}), ("read_file", {"path": "README.md"}), ("add", {"a": 1, "b": 2})],
        ),
        ("Hello there", []),
    ],
)
def test_message_calls_the_tools_that_it_names(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert [(wish.tool, wish.arguments) for wish in wishes(text, TOOLS)] == calls


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "boolean"}, True),
        ({"enum": ["low", "high"]}, "high"),
        ({"const": "fixed", "type": "string"}, "fixed"),
        ({"type": ["integer", "null"]}, 7),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 7),
        ({"type": "array", "items": {"type": "number"}}, [7.5]),
        ({"$ref": "#/$defs/Level"}, "high"),
        ({"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}, {"to": "bob"}),
    ],
)
def test_arguments_follow_the_schema(schema: dict[str, Any], value: Any) -> None:
    whole = {**takes(given=schema), "$defs": {"Level": {"enum": ["low", "high"]}}}
    (wish,) = wishes('Use ping with high force 7.5 for "bob"', [ToolSpec("ping", "", whole)])
    assert wish.arguments == {"given": value}


async def test_stream_has_reasoning_text_and_call_fragments() -> None:
    asked = request(message("user", "Read README.md and add 1 and 2"))
    parts = [part async for part in DemoModel().stream(asked)]
    reply = join(parts)
    assert [part.type for part in reply.parts] == ["reasoning", "text", "tool_call", "tool_call"]
    assert [(call.call_id, call.name) for call in reply.calls] == [("call_3_1", "read_file"), ("call_3_2", "add")]
    assert reply.text == "Let me ask read_file and add."
    assert sum(part.type == "text_delta" for part in parts) == 6
    fragments = "".join(str(part.arguments) for part in parts if part.type == "tool_call_delta")
    assert fragments == '{"path": "README.md"}{"a": 1, "b": 2}'


async def test_answer_names_each_failed_call() -> None:
    reply = await answer(
        message("user", "go"),
        called("a", "b", "c", "d"),
        result("a", "no such file", is_error=True, outcome=CallStatus.failed),
        result("b", "?", outcome=CallStatus.interrupted),
        result("c", "?", is_error=True, outcome=CallStatus.unknown),
        result("d", {"x": "y" * 999}),
    )
    lines = reply.text.splitlines()
    assert lines[2:5] == [
        "- a failed: no such file",
        "- b was stopped before it answered.",
        "- c may or may not have run: its outcome is unknown.",
    ]
    assert lines[5].startswith('- d says: “{"x": "yyy')
    assert len(lines[5]) < 200


async def test_summary_message_triggers_no_call() -> None:
    """A summary names tools; calling them again would never end."""
    reply = await answer(message("user", "The user said: read README.md", synthetic=True))
    assert reply.calls == ()
    assert "summary" in reply.text


async def test_summary_has_goal_talk_results_and_open_question() -> None:
    history = (
        message("user", "Summary of before: we met.", synthetic=True),
        message("user", "Read README.md"),
        called("read_file"),
        result("read_file", "# Title"),
        message("assistant", "It has a title."),
        message("user", "And the licence?"),
    )
    reply = await answer(*history, message("user", "Summarise, please."), purpose="summary")
    assert reply.text.splitlines() == [
        "Goal: Read README.md",
        "Earlier: Summary of before: we met.",
        "Said:",
        "- user: Read README.md",
        "- assistant: It has a title.",
        "- user: And the licence?",
        "Tools returned:",
        "- read_file says: “# Title”",
        "Left: answer: And the licence?",
    ]


async def test_title_is_the_first_words_of_the_first_message() -> None:
    reply = await answer(message("user", "what does the README promise to its readers?"), purpose="title")
    assert reply.text == "What does the README promise to"
    assert (await answer(purpose="title")).text == "A new chat"
    named = await answer(message("assistant", "Hello."), message("user", "fold a boat"), purpose="title")
    assert named.text == "Fold a boat"


async def test_pace_delays_words_and_no_pace_yields_to_other_tasks() -> None:
    with anyio.move_on_after(0.01) as waited:
        await anext(DemoModel(pace=1).stream(request(message("user", "Hi"))))
    assert waited.cancelled_caught
    turns: list[str] = []

    async def other() -> None:
        turns.append("other")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        turns += [part.type async for part in DemoModel().stream(request(message("user", "Hi")))]
    assert "other" in turns[: turns.index("finish")]
    assert DemoModel().pace == 0
    assert DemoModel("quick").name == "quick"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"name": ""}, "name: must say something; it was empty"),
        ({"context_limit": -1}, "context_limit: must be at least 0; it was -1"),
        ({"pace": math.inf}, "pace: must be finite; it was inf"),
        ({"speed": 1}, "speed: DemoModel has no such argument"),
    ],
)
def test_demo_model_rejects_invalid_arguments(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{problem}"):
        DemoModel(**wrong)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((), "Tell me how to go on."),
        ((message("user", "Read a.md"), result("read_file", "old"), message("user", "Thanks")), "You are welcome."),
        ((message("user", "go"), result("a", "")), "a returned nothing."),
        ((message("user", "go"), result("a", "?", outcome=CallStatus.cancelled)), "a was cancelled."),
        ((message("user", "go"), result("a", "?", outcome=CallStatus.timed_out)), "a did not answer in time."),
        ((message("user", "What can you do?"),), "read_file, get_weather, add and lookup"),
        ((message("user", "x" * 160),), f"“{'x' * 160}”"),
    ],
)
async def test_answer_depends_on_last_question_and_later_results(messages: tuple[Message, ...], expected: str) -> None:
    assert expected in (await answer(*messages)).text


# Which tools a message asks for


ROLL = ToolSpec("roll", "", takes(dice=INTEGER))
PEEK = ToolSpec("peek", "Shows lines of a text.", takes("lines", "note", path=TEXT, lines=INTEGER, note=TEXT))
FIND = ToolSpec("find_book", "", takes(title=TEXT))
CONSULT = ToolSpec("consult", "Searches a handbook.", takes(query=TEXT))


@pytest.mark.parametrize(
    ("text", "tools", "calls"),
    [
        ("search the handbook for leave", [SEARCH], [("lookup", {"query": "leave"})]),
        ("Leave: search the handbook", [SEARCH], [("lookup", {"query": "Leave"})]),
        ("Dune, book to find", [FIND], [("find_book", {"title": "Dune"})]),
        ("get_weather", [WEATHER], [("get_weather", {"city": "get_weather"})]),
        ("weather in a.md and b.md", [WEATHER], [("get_weather", {"city": "a.md"})]),
        ("What do the lines of a.txt say?", [PEEK], [("peek", {"path": "a.txt"})]),
        ("peek 'soon'", [PEEK], [("peek", {"path": "soon"})]),
        ("search the handbook for leave", [SEARCH, CONSULT], [("lookup", {"query": "leave"})]),
        ("What about plan.md?", [PEEK, READ_FILE], [("peek", {"path": "plan.md"})]),
        ("add 1 and 2 of the company handbook", [SEARCH, ADD], [("add", {"a": 1, "b": 2})]),
        ("add 1 and 2, then roll 7", [ADD, ROLL], [("add", {"a": 1, "b": 2}), ("roll", {"dice": 7})]),
        ("roll 7 and add 1 and 2", [ADD, ROLL], [("roll", {"dice": 7}), ("add", {"a": 1, "b": 2})]),
    ],
)
def test_message_gives_each_tool_its_nearest_arguments(
    text: str, tools: list[ToolSpec], calls: list[tuple[str, dict[str, Any]]]
) -> None:
    """The words that name a tool are no argument of it, and a description or a path names one tool only."""
    assert [(wish.tool, wish.arguments) for wish in wishes(text, tools)] == calls


@pytest.mark.parametrize("text", ["find book {} Dune", "find book Dune {}", "find book Dune {}x"])
@pytest.mark.parametrize("again", ["“", "”", "“a", '"', ".", "-1", "\n"])
def test_repetitive_message_is_parsed_in_linear_time(text: str, again: str) -> None:
    """A quadratic search would block the event loop for minutes."""
    start = time.process_time()
    assert wishes(text.format(again * (100_000 // len(again))), [FIND])
    assert time.process_time() - start < 5
