"""Declaring tools: schemas of functions and client tools, parsed arguments, and results as JSON."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from typing_extensions import TypeAliasType

from support.engines import MakeModel, OpenChat, OpenEngine
from turnwise import ClientTool, Engine, FilePart, ProviderDefinition, Settings, Tool, ToolContext, ToolOutput, tool
from turnwise.engine.commands import create
from turnwise.engine.commands.create import check_client_tools
from turnwise.engine.tools.signatures import context_parameter, signature_of
from turnwise.engine.tools.sources import tools_by_name
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import SettingsError


class Animal(BaseModel):
    name: str = "rex"
    legs: int = Field(default=4, alias="legCount")


ANYTHING = object()


def of(function: Callable[..., Any], without: str | None = None) -> Any:
    return signature_of(function, "tool", without=without)


def taking(hint: Any) -> Any:
    """Return the signature of a function with one parameter of that type."""

    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    return of(take)


def test_schema_lists_the_parameters() -> None:
    def order(item: str, day: date, count: int = 3, context: Any = None) -> None:
        """Order."""

    schema = of(order, "context").schema
    assert schema == {
        "type": "object",
        "properties": {
            "item": {"type": "string"},
            "day": {"type": "string", "format": "date"},
            "count": {"type": "integer", "default": 3},
        },
        "required": ["item", "day"],
        "additionalProperties": False,
    }
    assert of(lambda: None).schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_field_describes_a_parameter() -> None:
    def find(
        words: Annotated[str, Field(min_length=2)], limit: int = Field(default=5, ge=1, description="Most.")
    ) -> None:
        """Find."""

    found = of(find)
    assert found.schema["properties"]["words"] == {"type": "string", "minLength": 2}
    limit = {"type": "integer", "minimum": 1, "default": 5, "description": "Most."}
    assert found.schema["properties"]["limit"] == limit
    assert found.read({"words": "ab", "limit": "7"}) == {"words": "ab", "limit": 7}


def test_default_that_is_not_json_is_left_out() -> None:
    def find(where: Any = ANYTHING, shape: Callable[[int], int] | int = 3) -> None:
        """Find."""

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        properties = of(find).schema["properties"]
    assert properties == {"where": {}, "shape": {"type": "integer", "default": 3}}


@pytest.mark.parametrize("arguments", [{}, {"item": 1, "more": 2}, {"item": "x"}], ids=str)
def test_invalid_arguments_are_refused(arguments: dict[str, Any]) -> None:
    read = taking(int)
    with pytest.raises(ValidationError):
        read.read(arguments)
    with pytest.raises(ValidationError):
        read.spelled(arguments)


@pytest.mark.parametrize(
    ("hint", "value", "spelled"),
    [
        (int, "30", 30),
        (date, "2026-01-02", "2026-01-02"),
        (list[int], ["1", 2], [1, 2]),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (Animal, {"name": "tom", "legCount": "3"}, {"name": "tom", "legCount": 3}),
        (SecretStr, "hidden", "hidden"),
    ],
    ids=str,
)
def test_arguments_are_spelled_as_the_function_receives_them(hint: Any, value: Any, spelled: Any) -> None:
    signature, arguments = taking(hint), {"value": value}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = signature.spelled(arguments)
    assert found == {"value": spelled}
    assert type(found["value"]) is type(spelled)
    assert arguments == {"value": value}


class Slot(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    tags: set[str]
    count: int = 0


def test_strict_type_reads_json_spellings() -> None:
    value = {"day": "2026-01-02", "tags": ["a"]}
    assert taking(Slot).read({"value": value}) == {"value": Slot(day=date(2026, 1, 2), tags={"a"})}
    assert taking(Slot).spelled({"value": value}) == {"value": value}
    with pytest.raises(ValidationError):
        taking(Slot).read({"value": value | {"count": "3"}})


Mine = ToolContext[int]
Stated = TypeAliasType("Stated", ToolContext[int])


def one(word: str, context: ToolContext) -> None: ...
def noted(context: Annotated[ToolContext | None, "mine"]) -> None: ...
def none(word: str, contexts: list[ToolContext], other: ToolContext | str) -> None: ...
def aliased(word: str, context: Mine) -> None: ...
def stated(word: str, context: Stated) -> None: ...
def beside(value: Missing, context: ToolContext) -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("function", "expected"),
    [*((function, "context") for function in (one, noted, beside, aliased, stated)), (none, None)],
)
def test_context_is_the_parameter_of_its_type(function: Any, expected: str | None) -> None:
    assert context_parameter(function, "tool", ToolContext) == expected


def test_two_contexts_are_refused_by_name() -> None:
    def two(first: ToolContext, second: ToolContext | None) -> None: ...

    with pytest.raises(SettingsError, match="first, second"):
        context_parameter(two, "tool", ToolContext)


def bare(value) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001
def method(self, value: int) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001
def every(*values: int) -> None: ...
def by_place(value: int, /) -> None: ...
def missing(value: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821
def unspeakable(first: int, value: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (bare, "'value' has no type hint"),
        (method, "is a method of a class: declare that of an object, as in tool.shop.look."),
        (every, "parameter [*]values.* can't be named"),
        (by_place, "parameter value.* can't be named"),
        (missing, "'value' cannot be read .*Missing"),
        (unspeakable, "of parameter 'value'"),
        (type, "does not say what it takes"),
    ],
)
def test_parameter_that_no_model_can_fill_is_refused(function: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        of(function)
    assert "'tool'" in str(refused.value)
    assert "'first'" not in str(refused.value)


@functools.wraps(one)
def wrapped(*args: Any, **kwargs: Any) -> None:
    one(*args, **kwargs)


GOOGLE = "Do.\n\n{}:\n    word: What\n        to say.\n    other: Not there.\n"
NUMPY = "Do.\n\n{}\n----------\nword : str\n    What\n    to say.\n"
SPHINX = "Do.\n\n:{} word: What\n    to say.\n"


@pytest.mark.parametrize(
    "doc",
    [
        *(GOOGLE.format(word) for word in ("Args", "Parameters", "Keyword Args")),
        *(NUMPY.format(word) for word in ("Parameters", "Other Parameters")),
        *(SPHINX.format(word) for word in ("param", "keyword")),
    ],
)
def test_docstring_describes_parameters_in_three_styles(doc: str, caplog: pytest.LogCaptureFixture) -> None:
    def do(word: str, bare: int = 1) -> None: ...

    do.__doc__ = doc
    with caplog.at_level(logging.DEBUG):
        properties = of(do).schema["properties"]
    expected = {"word": {"type": "string", "description": "What to say."}, "bare": {"type": "integer", "default": 1}}
    assert properties == expected
    assert caplog.records == []


# Declarations


class Search:
    """Search the library."""

    async def __call__(self, words: str) -> str:
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
    expected = [("Search", "Search the library."), ("titles", "List titles.")]
    assert [(tool(one).name, tool(one).description) for one in tools[:2]] == expected
    calls = Call("Search", {"words": "a"}), Call("titles", {"limit": "3"}), Call("wrapped", {"limit": 4})
    assert await outputs(tools, *calls) == ["a", 3, 4]


async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def count(amount: int) -> Iterator[int]:
    """Count."""
    yield from range(amount)


async def each() -> AsyncIterator[int]:
    """Count."""
    yield 1


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (each, "yields; a tool returns one result"),
        (count, "yields; a tool returns one result"),
        (Search, "is a class"),
        (3, "must be a function|no function and no tool"),
    ],
)
def test_tool_refuses_what_gives_no_single_result(function: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        tool(function)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), 1e12])
def test_invalid_timeout_is_refused(timeout: float) -> None:
    problem = r"timeout: must be (a number|above 0|at most 946684800); it was"
    with pytest.raises(SettingsError, match=problem):
        tool(name="odd", description="Odd.", timeout=timeout)(lambda: "x")
    sound = tool(name="odd", description="Odd.")(lambda: "x")
    with pytest.raises(SettingsError, match=problem):
        replace(sound, timeout=timeout)


def test_tool_is_what_was_declared_and_careful_by_default() -> None:
    def pay(n: int) -> int:
        """Pay."""
        return n

    async def reconcile(_context: ToolContext) -> None: ...

    schema = {"type": "object", "description": "Whatever it costs."}
    options: dict[str, Any] = {
        "name": "spend",
        "description": "Spend.",
        "schema": schema,
        "parallel_safe": True,
        "timeout": 0.5,
        "crash": "at_least_once",
        "stop_after": True,
        "policy": "ask",
        "reconcile": reconcile,
    }
    declared = tool(**options)(pay)
    assert {name: getattr(declared, name) for name in options} == options
    assert (declared.run, declared.signature, declared.is_async) == (pay, None, False)
    for careful in (tool(pay), tool()(pay), Tool(name="pay", description="Pay.", schema=schema, run=pay)):
        assert (careful.name, careful.description, careful.run) == ("pay", "Pay.", pay)
        assert (careful.parallel_safe, careful.timeout, careful.crash) == (False, None, "at_most_once")
        assert (careful.stop_after, careful.policy, careful.reconcile) == (False, "auto", None)
        assert (careful.context_parameter, careful.is_async) == (None, False)
        assert (careful.spec.name, careful.spec.description, careful.spec.schema) == ("pay", "Pay.", careful.schema)


def test_invalid_schema_is_refused() -> None:
    schema: Any = {"type": "object", "properties": {"x": {"type": "strnig"}}}
    with pytest.raises(SettingsError, match=r"tool 'odd': .*not valid at properties\.x\.type"):
        tools_by_name([tool(name="odd", description="Odd.", schema=schema)(lambda: "x")])


# Client tools


OBJECT = {"type": "object"}


def asking(name: str = "ask", schema: Any = OBJECT, **more: Any) -> ClientTool:
    return ClientTool(name, "Ask.", schema, **more)


def test_schema_that_takes_too_long_to_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = asking("a", schema={"type": "object", "title": "known"})
    check_client_tools([known])
    monkeypatch.setattr(create, "TO_DECLARE", 0)
    check_client_tools([known])
    with pytest.raises(SettingsError, match=r"^client tool 'b': its JSON schema takes too long to check"):
        check_client_tools([known, asking("b", schema={"type": "object", "title": "another"})])


# Definitions


SCREEN = {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768}
DEFINITION = ProviderDefinition("anthropic", SCREEN, betas=["computer-use-2025-01-24"])
PICTURE = FilePart(media_type="image/png", data="aGVsbG8=")


@tool(definition=DEFINITION)
async def use(action: str, coordinate: list[int] | None = None) -> ToolOutput:
    return ToolOutput([action, coordinate], (PICTURE,))


@tool
async def look() -> str:
    """Look."""
    return "seen"


def claude(*replies: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), provider="anthropic", name="claude", **options)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tool": {"name": "computer"}}, r"tool\.type: must be text, as anthropic documents it"),
        ({"tool": {"type": "computer_toolset_20260801"}}, r"tool\.name: must be text"),
        ({"tool": {**SCREEN, "deep": float("nan")}}, "tool"),
        ({"provider": ""}, "provider"),
        ({"betas": "computer-use-2025-01-24"}, "betas: must be"),
        ({"betas": [7]}, r"betas\[0\]: must be"),
    ],
)
def test_invalid_definition_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        ProviderDefinition(**{"provider": "anthropic", "tool": SCREEN, **fields})


def test_definition_excludes_name_and_description() -> None:
    """The definition alone describes the tool; the model would never see a second description."""
    for option in ({"name": "mouse"}, {"description": "Moves the mouse."}):
        with pytest.raises(SettingsError, match=f"tool 'computer': has a definition.*leave out {next(iter(option))}="):
            tool(definition=DEFINITION, **option)(use.run)
    with pytest.raises(SettingsError, match="tool 'mouse': must be named 'computer'"):
        Tool(name="mouse", description="", schema={"type": "object"}, run=use.run, definition=DEFINITION)
    with pytest.raises(SettingsError, match="needs a name of 1 to 64 letters"):
        tool(definition=ProviderDefinition("anthropic", {**SCREEN, "name": "my computer"}))(use.run)


async def test_defined_tool_runs_with_checked_arguments(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    calls = [Call("computer", {"action": "screenshot", "coordinate": ["1", 2]}), Call("computer", {"coordinate": []})]
    model = strict_model([Reply(calls=calls), "I see."], provider="anthropic")
    async with open_engine(model, tools=[use, look]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Look.")
    done, wrong = (message.result for message in result.messages if message.role == "tool")
    assert (done.output, done.attachments) == (["screenshot", [1, 2]], (PICTURE,))
    assert wrong.is_error
    assert "Invalid arguments for computer: action: Field required" in wrong.output
    assert [spec.definition for spec in model.requests[0].tools] == [DEFINITION, None]


async def test_chat_refuses_incompatible_model_and_tools(open_engine: OpenEngine, open_chat: OpenChat) -> None:
    settings = Settings(active_tools=["look"])
    async with open_chat(claude("ok"), tools=[look, use]) as (engine, chat, _):
        refused = "this chat: tool 'computer' is anthropic's own.*model 'x' of demo"
        with pytest.raises(SettingsError, match=refused):
            await engine.create_chat(model="demo:x")
        with pytest.raises(SettingsError, match=refused):
            await engine.configure(chat.id, model="demo:x")
        assert await engine.get_chat(chat.id) == chat
        moved = await engine.configure(chat.id, model="demo:x", active_tools=["look"])
        with pytest.raises(SettingsError, match=refused):
            await engine.configure(chat.id, active_tools=["computer"])
        assert await engine.get_chat(chat.id) == moved
        assert (await engine.ask(chat.id, "hi")).stop_reason == "end_turn"
        assert (await engine.configure(chat.id, system="Be brief.")).version > moved.version
    async with open_engine("demo", tools=[look, use], settings=settings) as engine:
        await engine.create_chat()
        with pytest.raises(SettingsError, match="tool 'computer' is anthropic's own"):
            await engine.create_chat(active_tools=["computer"])
        assert len((await engine.list_chats()).items) == 2
