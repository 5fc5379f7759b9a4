"""Declaring tools: whatever a function may look like, its schema says what it takes, or a typed error what is wrong."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, NoReturn

import pytest
from pydantic import BaseModel, Field

from turnwise import ClientTool, Engine, ProviderDefinition, SettingsError, Tool, ToolContext, tool
from turnwise.engine.tools.declare import tools_by_name
from turnwise.providers.scripted import Call, Reply, ScriptedModel


class Item(BaseModel):
    name: str
    count: int = 1


class Search:
    """Search the library."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, words: str) -> str:
        self.asked.append(words)
        return words

    async def titles(self, limit: int) -> int:
        """List titles."""
        return limit


async def outputs(tools: list[Any], *calls: Call) -> list[Any]:
    model = ScriptedModel([Reply(calls=calls), "done"])
    async with Engine("sqlite://", model=model, tools=tools) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        return [message.result.output for message in result.messages if message.result is not None]


async def test_parameters_may_have_any_name() -> None:
    @tool
    async def odd(_y: int, model_config: int, schema: int, copy: int, self: int, json: int = 6) -> list[int]:
        """Take odd names."""
        return [_y, model_config, schema, copy, self, json]

    names = ["_y", "model_config", "schema", "copy", "self", "json"]
    assert list(odd.schema["properties"]) == names
    assert odd.schema["required"] == names[:-1]
    arguments = {name: str(at) for at, name in enumerate(names[:-1], start=1)}
    assert await outputs([odd], Call("odd", arguments)) == [[1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(
    "doc",
    [
        "Order.\n\nArgs:\n    item: What to\n        order.\n    day: When.\n",
        "Order.\n\nParameters\n----------\nitem : Item\n    What to order.\nday\n    When.\n",
        "Order.\n\n:param item: What to order.\n:param day: When.\n",
    ],
)
def test_what_a_docstring_says_of_parameters_reaches_the_model(doc: str) -> None:
    async def order(item: Item, day: Annotated[date, Field(description="The day.")], context: ToolContext) -> None: ...

    order.__doc__ = doc
    declared = tool(order)
    described = {name: known.get("description") for name, known in declared.schema["properties"].items()}
    assert declared.description == "Order."
    assert described == {"item": "What to order.", "day": "The day."}


def test_reading_docstrings_costs_nothing_where_there_is_nothing_to_read() -> None:
    code = (
        "import sys\nfrom turnwise import tool\n"
        "@tool\ndef look(at: str) -> str:\n    'Look.'\n    return at\n"
        "assert not {'griffe', 'jsonschema'} & set(sys.modules), 'imported for nothing'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("hint", [ToolContext | None, "ToolContext | None", Annotated[ToolContext, "mine"]])
async def test_a_context_may_be_optional(hint: Any) -> None:
    async def ask(word: str, context: Any = None) -> str:
        """Ask."""
        return f"{word} {context.call_id}"

    ask.__annotations__["context"] = hint
    assert list(tool(ask).schema["properties"]) == ["word"]
    assert await outputs([ask], Call("ask", {"word": "a"}, id="x")) == ["a x"]


def test_two_contexts_are_refused() -> None:
    async def ask(one: ToolContext, two: ToolContext) -> None:
        """Ask."""

    with pytest.raises(SettingsError, match="parameters one, two are each a ToolContext"):
        tool(ask)


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        (object(), "parameter 'x'"),
        ("Missing", "type hint of parameter 'x' cannot be read .*Missing.*import"),
        (Callable[[], int], "type of parameter 'x'"),
        (Search, "type of parameter 'x'"),
        (Iterator[3], "parameter 'x'"),  # type: ignore[misc]
    ],
)
def test_a_hint_of_which_no_schema_can_be_made_is_a_typed_error_that_names_the_parameter(
    hint: Any, problem: str
) -> None:
    async def odd(first: int, x: Any) -> None:
        """Be odd."""

    odd.__annotations__["x"] = hint
    with pytest.raises(SettingsError, match=rf"(?s)tool 'odd'.*{problem}"):
        tool(odd)


def test_what_a_function_returns_may_be_annotated_with_what_is_not_there() -> None:
    async def look(at: str) -> None:
        """Look."""

    look.__annotations__["return"] = "Missing"
    assert list(tool(look).schema["properties"]) == ["at"]


async def test_what_a_partial_has_filled_in_is_not_the_models() -> None:
    async def find(database: object, words: str, *, limit: int = 3) -> str:
        """Find."""
        return f"{words} {limit} {database}"

    assert list(tool(functools.partial(find, "db")).schema["properties"]) == ["words", "limit"]
    partial = functools.partial(find, database="db")
    assert (tool(partial).name, tool(partial).description) == ("find", "Find.")
    calls = Call("find", {"words": "a"}), Call("find", {"words": "a", "database": "mine"})
    found, refused = await outputs([partial], *calls)
    assert found == "a 3 db"
    assert "database" in refused
    assert "mine" not in refused


async def test_what_a_partial_has_filled_in_is_not_the_models_where_no_type_hints_say_what_is() -> None:
    async def pay(who: str = "nobody", amount: int = 0, **more: Any) -> str:
        """Pay."""
        return f"{who} pays {amount} {more}"

    anns = functools.partial(pay, who="ann")
    asks: dict[str, Any] = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    calls = Call("pay", {"amount": 5, "more": 1}), Call("pay", {"amount": 5, "who": "bob"})
    for declared in (
        tool(schema=asks)(anns),
        tool(definition=ProviderDefinition("scripted", {"type": "pay", "name": "pay"}))(anns),
        Tool(name="pay", description="Pay.", schema=asks, run=anns),
    ):
        paid, refused = await outputs([declared], *calls)
        assert paid == "ann pays 5 {'more': 1}"
        assert refused.startswith("Invalid arguments for pay: who: is not for you to give. Received fields: amount")
    with pytest.raises(SettingsError, match=r"asks the model for 'amount', which functools\.partial has filled in"):
        tool(schema=asks)(functools.partial(pay, amount=1))


async def test_objects_methods_and_wrapped_functions_are_tools() -> None:
    search = Search()

    @functools.wraps(search.titles)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return search.titles(*args, **kwargs)

    tools = [search, search.titles, tool(name="wrapped")(wrapped)]
    assert [(tool(one).name, tool(one).description) for one in tools[:2]] == [
        ("Search", "Search the library."),
        ("titles", "List titles."),
    ]
    calls = Call("Search", {"words": "a"}), Call("titles", {"limit": "3"}), Call("wrapped", {"limit": 4})
    assert await outputs(tools, *calls) == ["a", 3, 4]


async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def count(amount: int) -> Iterator[int]:
    """Count."""
    yield from range(amount)


@pytest.mark.parametrize(
    ("wrapped", "wrapper", "output"),
    [
        (pay, lambda amount: asyncio.run(pay(amount)), "paid 3"),
        (pay, lambda amount: pay(amount), "paid 3"),  # noqa: PLW0108 - such are decorators that note calls
        (count, lambda amount: [*count(amount)], [0, 1, 2]),
    ],
    ids=["runs an async function to its end", "returns what is to be awaited", "collects what is yielded"],
)
async def test_how_a_function_runs_is_up_to_what_wraps_it_and_what_it_takes_to_what_is_inside(
    wrapped: Any, wrapper: Any, output: Any
) -> None:
    known = tool(functools.wraps(wrapped)(wrapper))
    assert not known.is_async
    assert await outputs([known], Call(known.name, {"amount": "3"})) == [output]


async def each() -> AsyncIterator[int]:
    """Count."""
    yield 1


def every() -> Iterator[int]:
    """Count."""
    yield 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (each, "yields; a tool returns one result"),
        (every, "yields; a tool returns one result"),
        (functools.partial(each), "yields"),
        (Search, "is a class"),
        (3, "must be a function|no function and no tool"),
    ],
)
def test_what_gives_no_one_result_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        tool(given)


def test_what_is_no_function_is_refused_under_a_name_too() -> None:
    with pytest.raises(SettingsError, match="3 is no function and no tool"):
        tool(name="three", description="Three.")(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, 0.0, -1, float("nan"), float("inf"), 1e12])
def test_a_time_that_no_call_could_keep_is_refused(timeout: float) -> None:
    problem = r"timeout: must be a number; it was nan|tool 'odd': timeout must be above 0 s, and .*; it was"
    with pytest.raises(SettingsError, match=problem):
        tool(name="odd", description="Odd.", timeout=timeout)(lambda: "x")
    sound = tool(name="odd", description="Odd.")(lambda: "x")
    with pytest.raises(SettingsError, match=problem):
        replace(sound, timeout=timeout)


def test_a_tool_is_what_was_declared_and_by_default_the_most_careful_one() -> None:
    def pay(n: int) -> int:
        """Pay."""
        return n

    async def asked(_context: ToolContext) -> None: ...

    schema = {"type": "object", "description": "Whatever it costs."}
    declared = tool(
        name="spend",
        description="Spend.",
        schema=schema,
        parallel_safe=True,
        timeout=0.5,
        crash="at_least_once",
        stop_after=True,
        policy="ask",
        reconcile=asked,
    )(pay)
    assert (declared.name, declared.description, declared.schema, declared.run) == ("spend", "Spend.", schema, pay)
    assert (declared.parallel_safe, declared.timeout, declared.crash) == (True, 0.5, "at_least_once")
    assert (declared.stop_after, declared.policy, declared.reconcile) == (True, "ask", asked)
    assert (declared.signature, declared.context_parameter, declared.is_async) == (None, None, False)
    for careful in (tool(pay), tool()(pay), Tool(name="pay", description="Pay.", schema=schema, run=pay)):
        assert (careful.name, careful.description, careful.run) == ("pay", "Pay.", pay)
        assert (careful.parallel_safe, careful.timeout, careful.crash) == (False, None, "at_most_once")
        assert (careful.stop_after, careful.policy, careful.reconcile) == (False, "auto", None)
        assert (careful.context_parameter, careful.is_async) == (None, False)
        assert (careful.spec.name, careful.spec.description, careful.spec.schema) == ("pay", "Pay.", careful.schema)


@pytest.mark.parametrize("name", ["", "two words", "naïve", "a" * 65, "a.b", "a\n"])
async def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="1 to 64 letters, digits, _ and -"):
        tool(name=name, description="Odd.", schema={"type": "object"})(lambda: "x")
    with pytest.raises(SettingsError, match="1 to 64 letters, digits, _ and -"):
        Tool(name=name, description="Odd.", schema={"type": "object"}, run=lambda: "x")
    async with Engine("sqlite://", model=ScriptedModel([])) as engine:
        with pytest.raises(SettingsError):
            await engine.create_chat(client_tools=[ClientTool(name, "Odd.", {"type": "object"})])
        assert (await engine.list_chats()).items == []


INVALID = [
    ({"type": "object", "properties": {"x": {"type": "strnig"}}}, "not valid at properties.x.type"),
    ({"type": "object", "properties": {"x": {"pattern": "("}}}, "not valid at properties.x.pattern"),
    ({"type": "object", "required": "x"}, "not valid at required"),
    ({"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}}, "refers to '#/\\$defs/X'"),
    ({"type": "object", "properties": {"x": {"$ref": "https://example.org/x"}}}, "refers to 'https"),
    ({"type": "object", "default": object()}, "JSON can spell"),
]


@pytest.mark.parametrize(("schema", "problem"), INVALID)
async def test_a_schema_that_is_not_valid_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=f"tool 'odd': .*{problem}|must hold JSON values only"):
        tools_by_name([tool(name="odd", description="Odd.", schema=schema)(lambda: "x")])
    async with Engine("sqlite://", model=ScriptedModel([])) as engine:
        with pytest.raises(SettingsError, match=f"{problem}|must hold JSON values only"):
            await engine.create_chat(client_tools=[ClientTool("odd", "Odd.", schema)])
        assert (await engine.list_chats()).items == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": "integer"}}},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"type": "integer"}}},
        {"type": "object", "properties": {"x": {"$ref": "#X"}}, "$defs": {"X": {"$anchor": "X", "type": "integer"}}},
        {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"x": {"type": "integer"}},
        },
    ],
)
async def test_a_schema_may_refer_within_itself_and_is_understood_there(schema: Any) -> None:
    @tool(schema=schema)
    async def take(**given: Any) -> Any:
        """Take."""
        return given

    assert await outputs([take], Call("take", {"x": "3"})) == [{"x": 3}]


def test_an_object_that_raises_whatever_it_is_asked_is_refused() -> None:
    class Odd:
        def __call__(self, query: str) -> str:
            """Search."""
            return query

        def __getattr__(self, name: str) -> NoReturn:
            raise ZeroDivisionError

    with pytest.raises(SettingsError, match="a value of type Odd raised ZeroDivisionError"):
        tool(Odd())


def test_a_parameter_that_cannot_be_given_by_name_is_refused_with_a_schema_too() -> None:
    """Every call would fail."""

    def by_place(amount: int, /) -> str:
        """Pay."""
        return str(amount)

    def wrapped(first: int = 0, /, *rest: int, amount: int = 0, **more: int) -> str:
        """Pay."""
        return str(first + amount + len(rest) + len(more))

    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    for options in ({}, {"schema": schema}):
        with pytest.raises(SettingsError, match="tool 'by_place': parameter 'amount' cannot be given by name"):
            tool(**options)(by_place)
    assert tool(schema=schema)(wrapped).run(amount=2) == "2"
