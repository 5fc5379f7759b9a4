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
        ("find the book Dune", FIND, {"title": "Dune"}),
        ("get_weather", WEATHER, {"city": "get_weather"}),
        ("read_file, the one of yesterday", READ_FILE, {"path": "one of yesterday"}),
        ("weather in a.md and b.md", WEATHER, {"city": "a.md"}),
        ("peek at a.txt and b.txt", PEEK, {"path": "a.txt"}),
        ("What do the lines of a.txt say?", PEEK, {"path": "a.txt"}),
        ("peek 'soon'", PEEK, {"path": "soon"}),
    ],
)
def test_words_that_ask_for_a_tool_are_no_argument(text: str, tool: ToolSpec, arguments: dict[str, Any]) -> None:
    assert calls(text, tool) == [(tool.name, arguments)]


@pytest.mark.parametrize(
    "text",
    [
        "I read a lot",
        "search for gold",
        "a book for Rome",
        "Hello there",
        "run",
    ],
)
def test_half_a_name_and_one_word_of_a_description_ask_for_nothing(text: str) -> None:
    forecast = ToolSpec("get_weather_forecast", "", takes(city=TEXT))
    silent = ToolSpec("get", "", takes())
    assert calls(text, READ_FILE, SEARCH, FIND, forecast, silent) == []
    assert calls("weather in Rome", forecast) == []


@pytest.mark.parametrize(
    ("description", "text", "asked"),
    [
        ("Fold card", "fold my card", True),
        ("Fold", "fold it", True),
        ("Fold big card", "fold it", False),
        ("Go to it", "go to it", False),
        ("", "go to it", False),
    ],
)
def test_two_telling_words_of_a_description_ask_for_a_tool(description: str, text: str, *, asked: bool) -> None:
    assert bool(calls(text, ToolSpec("x", description, takes()))) is asked


@pytest.mark.parametrize(
    ("tool", "text", "asked"),
    [
        ("fold", "folding", True),
        ("dish", "dishes", True),
        ("cat", "cats", True),
        ("paste", "pasting", True),
        ("bu", "bus", False),
        ("r", "ring", False),
        ("th", "the", False),
        ("tax", "taxes", False),
    ],
)
def test_a_word_asks_for_a_tool_whatever_its_ending(tool: str, text: str, *, asked: bool) -> None:
    """What is short is not cut: a bus is no "bu"."""
    assert bool(calls(text, ToolSpec(tool, "", takes()))) is asked


@pytest.mark.parametrize(
    ("tool", "asked"),
    [
        (PEEK, True),
        (READ_FILE, True),
        (ToolSpec("write_file", "Writes a text.", takes(path=TEXT)), False),
        (ToolSpec("read_mind", "Reads.", takes(whose=TEXT)), False),
        (ToolSpec("read_mind", "Reads.", takes()), False),
    ],
)
def test_a_path_asks_for_the_tool_that_reads_files(tool: ToolSpec, *, asked: bool) -> None:
    made = calls("What about notes/plan.md?", tool)
    assert made == ([(tool.name, {"path": "notes/plan.md"})] if asked else [])


def test_what_is_only_described_or_implied_is_asked_once() -> None:
    other = ToolSpec("consult", "Searches a handbook.", takes(query=TEXT))
    assert [name for name, _ in calls("search the handbook for leave", SEARCH, other)] == ["lookup"]
    assert [name for name, _ in calls("What about plan.md?", PEEK, READ_FILE)] == ["peek"]
    assert [name for name, _ in calls("add 1 and 2 of the company handbook", SEARCH, ADD)] == ["add"]


def test_each_of_two_tools_gets_what_stands_by_it() -> None:
    assert calls("add 1 and 2, then roll 7", ADD, ROLL) == [("add", {"a": 1, "b": 2}), ("roll", {"dice": 7})]
    assert calls("roll 7 and add 1 and 2", ADD, ROLL) == [("roll", {"dice": 7}), ("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize(
    ("schema", "text", "arguments"),
    [
        (takes("path", "note", path=TEXT, note=TEXT), "use at a.txt", {"path": "a.txt"}),
        (takes("path", "note", path=TEXT, note=TEXT), "use 'soon'", {"note": "soon"}),
        (takes(note=TEXT, path=TEXT), "use 'soon' a.txt", {"note": "soon", "path": "a.txt"}),
        (takes(path_from=TEXT, path_to=TEXT), "use a.txt, b.txt", {"path_from": "a.txt", "path_to": "b.txt"}),
        (takes(x=TEXT, y=TEXT), "use 'one' and 'two'", {"x": "one", "y": "two"}),
        (takes(x=TEXT, y=TEXT), "use a.txt and b.txt", {"x": "a.txt", "y": "b.txt"}),
        (takes(files={"type": "array", "items": TEXT}), "use a.txt", {"files": ["a.txt"]}),
        (takes(x={"type": ["null", "integer"]}), "use 7", {"x": 7}),
        (takes(x={"type": ["null"]}), "use it", {"x": "it"}),
        (takes(x={"oneOf": [{"type": "null"}, {"type": "boolean"}]}), "use it", {"x": True}),
    ],
)
def test_each_quotation_path_and_number_is_used_once(
    schema: dict[str, Any], text: str, arguments: dict[str, Any]
) -> None:
    assert calls(text, ToolSpec("use", "", schema)) == [("use", arguments)]


@pytest.mark.parametrize("text", ["find book {} Dune", "find book Dune {}", "find book Dune {}x"])
@pytest.mark.parametrize(
    "again", ["“", "”", "“a", "a”", "'", " '", "`", '"', ".", "and ", "Then. ", "a/", "a.", "-1", "\n"]
)
def test_however_often_a_message_says_a_thing_it_is_soon_read(text: str, again: str) -> None:
    """The event loop waits for it: minutes, where an end is looked for from every place where one may begin."""
    began = time.process_time()
    assert calls(text.format(again * (100_000 // len(again))), FIND)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("end", ["", ".", " and", ", then please!", " AND THEN?", "\n", " please.\n\n"])
def test_what_ends_a_request_is_no_argument(end: str) -> None:
    assert calls(f"find the book Sand{end}", FIND) == [("find_book", {"title": "Sand"})]
    assert calls(f"find the book “and please”{end}", FIND) == [("find_book", {"title": "and please"})]
