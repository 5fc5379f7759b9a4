"""Signatures: what a function asks of the model, how arguments are read, and how they are spelled as JSON."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_serializer
from typing_extensions import TypeAliasType

from turnwise import SettingsError, ToolContext
from turnwise import ToolContext as ThisOne
from turnwise.engine.tools.signatures import context_parameter, function_called, function_described, signature_of


class Animal(BaseModel):
    name: str = "rex"
    legs: int = Field(default=4, alias="legCount")


class Colour(Enum):
    red = "red"


class Unwritable(BaseModel):
    """Cannot be spelled."""

    n: int

    @model_serializer
    def spelled(self) -> dict[str, int]:
        raise RuntimeError("no")


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
    assert found.schema["properties"]["limit"] == {
        "type": "integer",
        "minimum": 1,
        "default": 5,
        "description": "Most.",
    }
    assert found.read({"words": "ab", "limit": "7"}) == {"words": "ab", "limit": 7}


def test_default_that_is_not_json_is_left_out() -> None:
    def find(where: Any = ANYTHING, shape: Callable[[int], int] | int = 3) -> None:
        """Find."""

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        properties = of(find).schema["properties"]
    assert properties == {"where": {}, "shape": {"type": "integer", "default": 3}}


@pytest.mark.parametrize("given", [{}, {"item": 1, "more": 2}, {"item": "x"}], ids=str)
def test_invalid_arguments_are_refused(given: dict[str, Any]) -> None:
    read = taking(int)
    with pytest.raises(ValidationError):
        read.read(given)
    with pytest.raises(ValidationError):
        read.spelled(given)


@pytest.mark.parametrize(
    ("hint", "given", "spelled"),
    [
        (int, "30", 30),
        (date, "2026-01-02", "2026-01-02"),
        (list[int], ["1", 2], [1, 2]),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (Animal, {"name": "tom", "legCount": "3"}, {"name": "tom", "legCount": 3}),
        (SecretStr, "hidden", "hidden"),
        (Unwritable, {"n": "3"}, {"n": "3"}),
    ],
    ids=str,
)
def test_arguments_are_spelled_as_the_function_receives_them(hint: Any, given: Any, spelled: Any) -> None:
    signature, arguments = taking(hint), {"value": given}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = signature.spelled(arguments)
    assert found == {"value": spelled}
    assert type(found["value"]) is type(spelled)
    assert arguments == {"value": given}


class Slot(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    colour: Colour
    key: UUID
    price: Decimal
    tags: set[str]
    count: int = 0


def test_strict_type_reads_json_spellings() -> None:
    key = "00000000-0000-0000-0000-000000000001"
    given = {"day": "2026-01-02", "colour": "red", "key": key, "price": "1.50", "tags": ["a"]}
    slot = taking(Slot).read({"value": given})["value"]
    assert slot == Slot(day=date(2026, 1, 2), colour=Colour.red, key=UUID(key), price=Decimal("1.50"), tags={"a"})
    assert taking(Slot).spelled({"value": given}) == {"value": given}
    with pytest.raises(ValidationError):
        taking(Slot).read({"value": given | {"count": "3"}})


Mine = ToolContext[int]
Stated = TypeAliasType("Stated", ToolContext[int])


def one(word: str, context: ToolContext) -> None: ...
def optional(context: ToolContext | None, word: str) -> None: ...
def noted(context: Annotated[ToolContext | None, "mine"]) -> None: ...
def none(word: str, contexts: list[ToolContext], other: ToolContext | str) -> None: ...
def aliased(word: str, context: Mine) -> None: ...
def renamed(word: str, context: ThisOne[int]) -> None: ...
def stated(word: str, context: Stated) -> None: ...
def beside(value: Missing, context: ToolContext) -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        *((function, "context") for function in (one, optional, noted, beside, aliased, renamed, stated)),
        (none, None),
    ],
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


class Callables:
    def method(self, word: str) -> None: ...

    def __call__(self, word: str) -> None: ...


@functools.wraps(one)
def wrapped(*args: Any, **kwargs: Any) -> None:
    one(*args, **kwargs)


@pytest.mark.parametrize(
    ("given", "under"),
    [
        (one, one),
        (functools.partial(functools.partial(one, "a"), context=None), one),
        (wrapped, wrapped),
        (Callables(), Callables.__call__),
        (Callables().method, Callables.method),
    ],
)
def test_function_called_and_described(given: Any, under: Any) -> None:
    assert function_called(given) is under
    assert function_described(given) is (one if given is wrapped else under)


def test_partial_arguments_are_not_in_the_schema() -> None:
    def find(database: object, words: str, *, limit: int = 3, sort: str = "up") -> None:
        """Find."""

    properties = of(functools.partial(find, object(), limit=4)).schema["properties"]
    assert list(properties) == ["words", "sort"]


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
    assert properties == {
        "word": {"type": "string", "description": "What to say."},
        "bare": {"type": "integer", "default": 1},
    }
    assert caplog.records == []
