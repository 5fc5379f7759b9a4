"""Declaring tools: whatever a function may look like, its schema says what it takes, or a typed error what is wrong."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from turnwise import ClientTool, Engine, ProviderDefinition, SettingsError, Tool, ToolContext, tool
from turnwise.engine.settings import LONGEST
from turnwise.engine.tools import client_tools
from turnwise.engine.tools.client_tools import check_client_tools
from turnwise.engine.tools.declare import tools_by_name
from turnwise.providers.scripted import Call, Reply, ScriptedModel


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


def test_unresolvable_return_type_is_ignored() -> None:
    async def look(at: str) -> None:
        """Look."""

    look.__annotations__["return"] = "Missing"
    assert list(tool(look).schema["properties"]) == ["at"]


async def test_partial_arguments_are_not_the_models_with_a_schema() -> None:
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
async def test_wrapper_decides_how_a_function_runs(wrapped: Any, wrapper: Any, output: Any) -> None:
    known = tool(functools.wraps(wrapped)(wrapper))
    assert not known.is_async
    assert await outputs([known], Call(known.name, {"amount": "3"})) == [output]


async def each() -> AsyncIterator[int]:
    """Count."""
    yield 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (each, "yields; a tool returns one result"),
        (count, "yields; a tool returns one result"),
        (Search, "is a class"),
        (3, "must be a function|no function and no tool"),
    ],
)
def test_tool_refuses_what_gives_no_single_result(given: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        tool(given)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), 1e12])
def test_invalid_timeout_is_refused(timeout: float) -> None:
    problem = r"timeout: must be a number; it was nan|tool 'odd': timeout must be above 0 s, and .*; it was"
    with pytest.raises(SettingsError, match=problem):
        tool(name="odd", description="Odd.", timeout=timeout)(lambda: "x")
    sound = tool(name="odd", description="Odd.")(lambda: "x")
    with pytest.raises(SettingsError, match=problem):
        replace(sound, timeout=timeout)


def test_tool_is_what_was_declared_and_careful_by_default() -> None:
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


def test_invalid_tool_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="1 to 64 letters, digits, _ and -"):
        tool(name="two words", description="Odd.", schema={"type": "object"})(lambda: "x")
    with pytest.raises(SettingsError, match="1 to 64 letters, digits, _ and -"):
        Tool(name="", description="Odd.", schema={"type": "object"}, run=lambda: "x")


def test_invalid_schema_is_refused() -> None:
    schema: Any = {"type": "object", "properties": {"x": {"type": "strnig"}}}
    with pytest.raises(SettingsError, match=r"tool 'odd': .*not valid at properties\.x\.type"):
        tools_by_name([tool(name="odd", description="Odd.", schema=schema)(lambda: "x")])


def test_positional_only_parameter_is_refused() -> None:
    """Every call would fail."""

    def by_place(amount: int, /) -> str:
        """Pay."""
        return str(amount)

    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    for options in ({}, {"schema": schema}):
        with pytest.raises(SettingsError, match="tool 'by_place': parameter 'amount' cannot be given by name"):
            tool(**options)(by_place)


# Client tools


OBJECT = {"type": "object"}


def asking(name: str = "ask", schema: Any = OBJECT, **more: Any) -> ClientTool:
    return ClientTool(name, "Ask.", schema, **more)


@pytest.mark.parametrize(
    ("tools", "whose", "problem"),
    [
        ([asking("look")], "'look'", "needs a name of its own"),
        ([asking("a"), asking("b"), asking("a")], "'a'", "needs a name of its own"),
        ([asking("two words")], "'two words'", "needs a name of 1 to 64"),
        ([asking(schema={"type": "array"})], "'ask'", 'of type "object"'),
        ([asking(), asking("b", schema={"type": "object", "required": 3})], "'b'", "not valid at required"),
    ],
)
def test_invalid_client_tool_is_refused(tools: list[ClientTool], whose: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=f"^client tool {whose}: .*{problem}"):
        check_client_tools(tools, {"look"})


def test_schema_that_takes_too_long_to_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = asking("a", schema={"type": "object", "title": "known"})
    check_client_tools([known], ())
    monkeypatch.setattr(client_tools, "TO_DECLARE", 0)
    check_client_tools([known], ())
    with pytest.raises(SettingsError, match=r"^client tool 'b': its JSON schema takes too long to check"):
        check_client_tools([known, asking("b", schema={"type": "object", "title": "another"})], ())


@pytest.mark.parametrize("deadline", [0, -1, LONGEST + 1])
def test_invalid_deadline_is_refused(deadline: float) -> None:
    with pytest.raises(SettingsError, match="deadline"):
        check_client_tools([asking(deadline=deadline)], ())
