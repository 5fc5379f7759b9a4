"""What the demo model reads out of a message: which tools it asks for, in which order, with which arguments."""

from __future__ import annotations

import time
from typing import Any

import pytest

from turnwise.providers.demo_calls import wishes
from turnwise.providers.protocol import ToolSpec

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}


def takes(*optional: str, **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


READ_FILE = ToolSpec("read_file", "Read a text file of the project.", takes(path=TEXT))
WEATHER = ToolSpec("get_weather", "Tell the weather of a city.", takes(city=TEXT))
ADD = ToolSpec("add", "Sum up two numbers.", takes(a=INTEGER, b=INTEGER))
ROLL = ToolSpec("roll", "", takes(dice=INTEGER))
SEARCH = ToolSpec("lookup", "Searches the company handbook.", takes(query=TEXT))
PEEK = ToolSpec("peek", "Shows lines of a text.", takes("lines", "note", path=TEXT, lines=INTEGER, note=TEXT))
FIND = ToolSpec("find_book", "", takes(title=TEXT))


def calls(text: str, *tools: ToolSpec) -> list[tuple[str, dict[str, Any]]]:
    return [(wish.tool, wish.arguments) for wish in wishes(text, tools)]


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("search the handbook for leave", SEARCH, {"query": "leave"}),
        ("Leave: search the handbook", SEARCH, {"query": "Leave"}),
        ("Dune, book to find", FIND, {"title": "Dune"}),
        ("get_weather", WEATHER, {"city": "get_weather"}),
        ("weather in a.md and b.md", WEATHER, {"city": "a.md"}),
        ("What do the lines of a.txt say?", PEEK, {"path": "a.txt"}),
        ("peek 'soon'", PEEK, {"path": "soon"}),
    ],
)
def test_words_that_name_a_tool_are_no_argument(text: str, tool: ToolSpec, arguments: dict[str, Any]) -> None:
    assert calls(text, tool) == [(tool.name, arguments)]


def test_description_or_path_selects_only_one_tool() -> None:
    other = ToolSpec("consult", "Searches a handbook.", takes(query=TEXT))
    assert [name for name, _ in calls("search the handbook for leave", SEARCH, other)] == ["lookup"]
    assert [name for name, _ in calls("What about plan.md?", PEEK, READ_FILE)] == ["peek"]
    assert [name for name, _ in calls("add 1 and 2 of the company handbook", SEARCH, ADD)] == ["add"]


def test_each_of_two_tools_gets_its_nearest_arguments() -> None:
    assert calls("add 1 and 2, then roll 7", ADD, ROLL) == [("add", {"a": 1, "b": 2}), ("roll", {"dice": 7})]
    assert calls("roll 7 and add 1 and 2", ADD, ROLL) == [("roll", {"dice": 7}), ("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize("text", ["find book {} Dune", "find book Dune {}", "find book Dune {}x"])
@pytest.mark.parametrize("again", ["“", "”", "“a", '"', ".", "-1", "\n"])
def test_repetitive_message_is_parsed_in_linear_time(text: str, again: str) -> None:
    """The event loop waits for it: minutes, where an end is looked for from every place where one may begin."""
    began = time.process_time()
    assert calls(text.format(again * (100_000 // len(again))), FIND)
    assert time.process_time() - began < 5
