from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import anyio
import pytest

from turnwise import InvalidArgument
from turnwise.providers.demo import DemoModel
from turnwise.providers.demo_calls import wishes
from turnwise.providers.protocol import Model, ModelPart, ModelReply, ModelRequest, Purpose, ToolSpec
from turnwise.providers.reply_builder import join
from turnwise.states.messages import (
    FilePart,
    Message,
    ReasoningPart,
    Role,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turnwise.states.names import CallStatus

_: Model = DemoModel()

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}


def takes(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


READ_FILE = ToolSpec("read_file", "Read a text file of the project.", takes(path=TEXT))
WEATHER = ToolSpec("get_weather", "Tell the weather of a city.", takes(city=TEXT))
ADD = ToolSpec("add", "Sum up two numbers.", takes(a=INTEGER, b=INTEGER))
SEARCH = ToolSpec("lookup", "Searches the company handbook.", takes(query=TEXT))
TOOLS = (READ_FILE, WEATHER, ADD, SEARCH)


def message(role: Role, *parts: Any, **more: Any) -> Message:
    said = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(id="m", role=role, parts=said, turn=1, step=1, created_at=datetime(2026, 1, 1, tzinfo=UTC), **more)


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
        ("Please read the file docs/words.md.", [("read_file", {"path": "docs/words.md"})]),
        ("read README.md and LICENSE.txt", [("read_file", {"path": p}) for p in ("README.md", "LICENSE.txt")]),
        ("How is the weather in New York?", [("get_weather", {"city": "New York"})]),
        ("get_weather Rome", [("get_weather", {"city": "Rome"})]),
        ("add 2 and -40", [("add", {"a": 2, "b": -40})]),
        ("search the handbook for 'parental leave'", [("lookup", {"query": "parental leave"})]),
        (
            "Tell me the weather in Paris, then read README.md and add 1 and 2",
            [("get_weather", {"city": "Paris"}), ("read_file", {"path": "README.md"}), ("add", {"a": 1, "b": 2})],
        ),
        ("Hello there", []),
        ("The additive is 3.5 percent of it", []),
    ],
)
def test_a_message_asks_for_the_tools_it_mentions(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert [(wish.tool, wish.arguments) for wish in wishes(text, TOOLS)] == calls


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "boolean"}, True),
        ({"enum": ["low", "high"]}, "high"),
        ({"enum": ["red", "blue"]}, "red"),
        ({"const": "fixed", "type": "string"}, "fixed"),
        ({"type": "number"}, 7.5),
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


def test_optional_arguments_are_left_out_unless_the_message_holds_them() -> None:
    properties = {"path": TEXT, "lines": INTEGER, "mode": {"enum": ["raw", "plain"]}, "note": TEXT, "deep": {}}
    tool = ToolSpec("peek", "", {"type": "object", "properties": properties})
    assert wishes("peek", [tool])[0].arguments == {}
    (wish,) = wishes('peek at a.txt for 5 lines, plain, "soon"', [tool])
    assert wish.arguments == {"path": "a.txt", "lines": 5, "mode": "plain", "note": "soon"}


def test_a_missing_number_is_the_least_allowed() -> None:
    tool = ToolSpec("roll", "", takes(dice={"type": "integer", "minimum": 2}, sides=INTEGER))
    assert wishes("roll please", [tool])[0].arguments == {"dice": 2, "sides": 1}


async def test_it_thinks_speaks_and_calls_in_small_pieces() -> None:
    asked = request(message("user", "Read README.md and add 1 and 2"))
    parts = [part async for part in DemoModel().stream(asked)]
    reply = join(parts)
    assert [part.type for part in reply.parts] == ["reasoning", "text", "tool_call", "tool_call"]
    assert [(made.call_id, made.name) for made in reply.calls] == [("call_3_1", "read_file"), ("call_3_2", "add")]
    assert reply.text == "Let me ask read_file and add."
    assert sum(part.type == "text_delta" for part in parts) == 6
    fragments = "".join(str(part.arguments) for part in parts if part.type == "tool_call_delta")
    assert fragments == '{"path": "README.md"}{"a": 1, "b": 2}'


async def test_it_answers_from_the_results() -> None:
    asked = message("user", "Read README.md")
    reply = await answer(asked, called("read_file"), result("read_file", "# Title\n\nKeeps  chats."))
    assert reply.calls == ()
    assert "read_file says: “# Title Keeps chats.”" in reply.text


async def test_it_tells_what_went_wrong() -> None:
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


async def test_a_new_question_counts_and_old_results_do_not() -> None:
    earlier = (message("user", "Read a.md"), called("read_file"), result("read_file", "old"), message("assistant", "x"))
    assert [made.name for made in (await answer(*earlier, message("user", "weather in Rome"))).calls] == ["get_weather"]


async def test_a_summary_is_never_taken_for_a_question() -> None:
    """A summary names tools; calling them again would go round for ever."""
    reply = await answer(message("user", "The user said: read README.md", synthetic=True))
    assert reply.calls == ()
    assert "summary" in reply.text


async def test_reminders_are_not_taken_for_questions() -> None:
    reply = await answer(message("user", "add 1 and 2"), message("system", "<reminder>read README.md</reminder>"))
    assert [made.name for made in reply.calls] == ["add"]


async def test_no_tool_is_called_when_none_may_be() -> None:
    reply = await answer(message("user", "add 1 and 2"), parameters={"tool_choice": "none"})
    assert reply.calls == ()


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("Hello!", "Hello! I am the demo model"),
        ("Who are you?", "no network, no key"),
        ("Thanks a lot", "You are welcome."),
        ("Why is the sky blue?", "cannot know that: “Why is the sky blue?”"),
        ("It rains.", "I heard: “It rains.”"),
    ],
)
async def test_small_talk_is_answered(said: str, part: str) -> None:
    assert part in (await answer(message("user", said))).text


async def test_usage_grows_with_the_history() -> None:
    """A demo must be able to cross the context limit."""
    short = await answer(message("user", "Hello"))
    long = await answer(message("user", "x" * 4000), message("assistant", "y" * 4000), message("user", "Hello"))
    assert short.usage is not None
    assert long.usage is not None
    assert (long.usage.input_tokens or 0) - (short.usage.input_tokens or 0) == 2002
    assert short.usage.output_tokens
    assert short.usage.reasoning_tokens
    assert short.finish.context_limit == 8192


async def test_a_summary_tells_goal_talk_results_and_what_is_left() -> None:
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


async def test_a_summary_stays_small_however_long_the_history() -> None:
    history = [message("user", f"{n} " + "x" * 500) for n in range(100)]
    reply = await answer(*history, message("user", "Summarise."), purpose="summary")
    assert len(reply.text) < 1500


async def test_a_title_is_the_first_words_of_the_first_message() -> None:
    reply = await answer(message("user", "what does the README promise to its readers?"), purpose="title")
    assert reply.text == "What does the README promise to"
    assert (await answer(purpose="title")).text == "A new chat"
    named = await answer(message("assistant", "Hello."), message("user", "fold a boat"), purpose="title")
    assert named.text == "Fold a boat"


async def test_the_same_request_gets_the_same_answer() -> None:
    asked = message("user", "Read README.md and tell me the weather in Oslo")
    assert await answer(asked) == await answer(asked)


async def test_the_finish_comes_last() -> None:
    parts: list[ModelPart] = [part async for part in DemoModel().stream(request(message("user", "Hi")))]
    assert [part.type for part in parts].index("finish") == len(parts) - 1


async def test_a_summary_says_what_is_left_by_the_last_words() -> None:
    """A call with a word before it is no answer yet."""
    asked = message("user", "What is in the README?")
    begun = message("assistant", "I look.", ToolCallPart(call_id="a", name="read_file", arguments={}))
    for since, left in (
        ([], "Left: answer: What is in the README?"),
        ([begun], "Left: answer: What is in the README?"),
        ([begun, result("a", "text"), message("assistant", "Much.")], "Left: nothing; the last message was answered"),
    ):
        told = (await answer(asked, *since, message("user", "Summarise."), purpose="summary")).text
        assert told.splitlines()[-1] == left


async def test_a_summary_tells_the_last_six_words_and_results() -> None:
    said = [message("user", f"question {n}") for n in range(8)]
    results = [result(f"r{n}", f"output {n}") for n in range(8)]
    told = (await answer(*said, *results, message("user", "Summarise."), purpose="summary")).text
    assert [n for n in range(8) if f"- user: question {n}" in told] == list(range(2, 8))
    assert [n for n in range(8) if f"output {n}" in told] == list(range(2, 8))


async def test_a_longer_prompt_is_counted_longer_whatever_of_it_is_long() -> None:
    async def tokens(*messages: Message, **more: Any) -> int:
        reply = await answer(*messages, **more)
        assert reply.usage is not None
        assert reply.usage.input_tokens is not None
        return reply.usage.input_tokens

    short = await tokens(message("user", "hi"))
    assert await tokens(message("user", "hi"), system="s" * 4000) > short + 500
    assert await tokens(message("user", "hi"), message("user", "x" * 4000), message("user", "hi")) > short + 500
    assert await tokens(message("user", "hi"), result("r", {"k": "v" * 4000}), message("user", "hi")) > short + 500


async def test_a_pace_is_kept_between_words_and_without_one_others_get_their_turn() -> None:
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
        ({"context_limit": -1}, "context_limit: must be from 0 to"),
        ({"context_limit": "8192"}, "context_limit: must be a whole number or None; it was '8192'"),
        ({"pace": -0.1}, "pace: must be at least 0; it was -0.1"),
        ({"pace": math.inf}, "pace: must be finite; it was inf"),
        ({"speed": 1}, "speed: DemoModel has no such argument"),
    ],
)
def test_what_the_demo_model_cannot_be_is_refused(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{problem}"):
        DemoModel(**wrong)


async def test_four_characters_are_a_token_of_what_was_sent() -> None:
    for said in ("Read README.md, add 1 and 2", "Hi", "x", "xx", "xxx", "xxxx"):
        parts = [part async for part in DemoModel().stream(request(message("user", said)))]
        thought = sum(len(part.text) for part in parts if part.type == "reasoning_delta")
        written = sum(len(part.text) + len(part.arguments or "") for part in parts if part.type != "tool_call")
        usage = join(parts).usage
        assert usage is not None
        assert 0 <= 4 * (usage.reasoning_tokens or 0) - thought < 4
        assert 0 <= 4 * (usage.output_tokens or 0) - written < 4


LONG = "l" * 40


@pytest.mark.parametrize(
    ("part", "longer", "tokens"),
    [
        (TextPart(text="a"), TextPart(text="a" + LONG), 10),
        (ReasoningPart(text="a"), ReasoningPart(text="a" + LONG), 10),
        (
            ToolCallPart(call_id="c", name="f", arguments={}),
            ToolCallPart(call_id="c", name="f" + LONG, arguments={}),
            10,
        ),
        (
            ToolCallPart(call_id="c", name="f", arguments={"k": ""}),
            ToolCallPart(call_id="c", name="f", arguments={"k": "é" * 40}),
            10,
        ),
        (
            ToolResultPart(call_id="c", name="f", output="a"),
            ToolResultPart(call_id="c", name="f", output="a" + LONG),
            10,
        ),
        (SourcePart(url="u"), SourcePart(url="u" + LONG), 0),
    ],
    ids=lambda value: getattr(value, "type", None),
)
async def test_four_characters_are_a_token_of_what_is_in_the_history(part: Any, longer: Any, tokens: int) -> None:
    async def counted(said: Any) -> int:
        return await input_tokens(message("user", "hi"), message("assistant", said), message("user", "hi"))

    assert await counted(longer) - await counted(part) == tokens


async def input_tokens(*messages: Message, tools: tuple[ToolSpec, ...] = (), **more: Any) -> int:
    asked = ModelRequest(purpose="step", chat_id="c", messages=list(messages), tools=tools, **more)
    usage = (await DemoModel().generate(asked)).usage
    assert usage is not None
    assert usage.input_tokens is not None
    return usage.input_tokens


async def test_four_characters_are_a_token_of_the_tools_on_offer_and_of_the_instructions() -> None:
    async def counted(name: str, description: str, schema: Mapping[str, Any]) -> int:
        return await input_tokens(message("user", "hi"), tools=(ToolSpec(name, description, schema),))

    plain = await counted("t", "d", {})
    assert plain > await input_tokens(message("user", "hi"))
    assert await counted("t" + LONG, "d", {}) == plain + 10
    assert await counted("t", "d" + LONG, {}) == plain + 10
    frozen = MappingProxyType({"properties": MappingProxyType({"k": ""})})
    assert await counted("t", "d", frozen) > plain
    assert await input_tokens(message("user", "hi"), system=LONG) == await input_tokens(message("user", "hi")) + 10


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ((), "Tell me how to go on."),
        ((message("user", "add 1 and 2"), message("assistant", "Hm.")), "Let me ask add."),
        ((message("user", "Read a.md"), result("read_file", "old"), message("user", "Thanks")), "You are welcome."),
        ((message("user", "go"), result("a", "")), "a returned nothing."),
        ((message("user", "go"), result("a", "?", outcome=CallStatus.cancelled)), "a was cancelled."),
        ((message("user", "go"), result("a", "?", outcome=CallStatus.timed_out)), "a did not answer in time."),
        ((message("user", "go"), result("a", {"k": "é"})), '{"k": "é"}'),
        ((message("user", "go"), result("a", "x"), result("a", "y")), "- a says: “y”"),
        ((message("user", "What can you do?"),), "read_file, get_weather, add and lookup"),
        ((message("user", "x" * 160),), f"“{'x' * 160}”"),
        ((message("user", "x" * 161),), f"“{'x' * 159}…”"),
    ],
)
async def test_it_answers_by_the_last_question_and_what_came_since(messages: tuple[Message, ...], told: str) -> None:
    assert told in (await answer(*messages)).text


async def test_a_call_is_written_as_it_reads() -> None:
    asked = request(message("user", "weather in Zürich"))
    parts = [part async for part in DemoModel().stream(asked) if part.type == "tool_call_delta"]
    assert "".join(str(part.arguments) for part in parts) == '{"city": "Zürich"}'


async def test_without_tools_it_says_so() -> None:
    reply = await answer(message("user", "What can you do?"), parameters={"tool_choice": "none"})
    assert "No tool is offered" in reply.text


@pytest.mark.parametrize(
    ("history", "lines"),
    [
        ((), ["Goal: as before", "Said:", "Left: nothing; the last message was answered"]),
        (
            (message("user", "One.", synthetic=True), message("user", "Two.", synthetic=True)),
            ["Goal: as before", "Earlier: Two.", "Said:", "Left: nothing; the last message was answered"],
        ),
        (
            (message("assistant", "Hello."), message("user", "Go."), message("user", "Note.", synthetic=True)),
            ["Goal: Go.", "Earlier: Note.", "Said:", "- assistant: Hello.", "- user: Go.", "Left: answer: Go."],
        ),
        (
            (message("user", "Go."), message("system", "Be kind.")),
            ["Goal: Go.", "Said:", "- user: Go.", "Left: answer: Go."],
        ),
        (
            (message("user", "Go."), message("assistant", ReasoningPart(text="hm"))),
            ["Goal: Go.", "Said:", "- user: Go.", "Left: answer: Go."],
        ),
    ],
)
async def test_a_summary_is_made_of_what_is_there(history: tuple[Message, ...], lines: list[str]) -> None:
    reply = await answer(*history, message("user", "Summarise."), purpose="summary")
    assert reply.text.splitlines() == lines


async def test_a_title_is_made_of_words_not_of_a_file() -> None:
    file = FilePart(media_type="text/plain", data="aGk=")
    reply = await answer(message("user", file), message("user", "fold a boat"), purpose="title")
    assert reply.text == "Fold a boat"
