"""Checked calls: every argument is checked by its type hint before the call does anything."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Protocol, Self, TypedDict

import pytest
from pydantic import AfterValidator, InstanceOf, SkipValidation

from turnwise.engine.engine import Engine
from turnwise.states.errors import InvalidArgument, InvalidContent, SettingsError, WrongCall
from turnwise.states.names import ChatState
from turnwise.states.values.checked import checked, configuration
from turnwise.states.values.limits import JsonObject, Key, Ordinal
from turnwise.states.values.plain import plain
from turnwise.states.values.values import Json

DEEP: Any = 1
for _ in range(101):
    DEEP = [DEEP]


class Speaks(Protocol):
    name: str

    def say(self) -> str: ...


class Speaker:
    name = "x"

    def say(self) -> str:
        return "x"


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Choices(TypedDict, total=False):
    heat: float


class Text(str):
    __slots__ = ()


@checked
def call(  # noqa: PLR0913 - one of each kind
    text: str,
    *,
    key: Key | None = None,
    count: int = 0,
    number: Ordinal = 0,
    seconds: float = 0,
    flag: bool = False,
    word: Literal["ask", "auto"] = "auto",
    state: ChatState = ChatState.waiting,
    names: Sequence[str] = (),
    labels: JsonObject | None = None,
    texts: Mapping[str, str] | None = None,
    choices: Choices | None = None,
    version: Literal[6, 7] = 7,
    value: Annotated[Json, AfterValidator(plain)] = None,
    pair: tuple[int, int] = (0, 0),
    function: Callable[..., Any] = print,
    voice: Speaks | str = "x",
    later: Annotated[int, SkipValidation] = 0,
    raw: Annotated[str, InstanceOf] = "",
    anything: Any = None,
    nothings: Sequence[None] = (),
    row: tuple[None, int] = (None, 0),
    either: Sequence[int | None] = (),
    nested: Sequence[Sequence[str]] = (),
    words: Sequence[Literal["a", "b"]] = (),
    content: str | Sequence[str] = "",
    named: Named | None = None,
) -> dict[str, Any]:
    return dict(locals())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"text": 1}, "text: must be a string; it was 1"),
        ({"key": "é" * 513}, "key: must be 1,024 bytes at most; it was 1,026"),
        ({"count": True}, "count: must be a whole number; it was True"),
        ({"count": 1.0}, r"count: must be a whole number; it was 1\.0"),
        ({"count": 2**63}, "count: must be at most 9223372036854775807; it was a whole number of 64 bits"),
        ({"seconds": float("nan")}, "seconds: must be a number; it was nan"),
        ({"word": "Ask"}, "word: must be one of 'ask', 'auto'; it was 'Ask'"),
        ({"version": "6"}, "version: must be one of 6, 7; it was '6'"),
        ({"version": True}, "version: must be one of 6, 7; it was True"),
        ({"state": "idle"}, "state: must be one of 'waiting', 'pending', .*; it was 'idle'"),
        ({"names": "abc"}, "names: must be a sequence; it was 'abc'"),
        ({"names": ["a", 1]}, r"names\[1\]: must be a string; it was 1"),
        ({"labels": [1]}, "labels: must be a mapping with string keys or None; it was a value of type list"),
        ({"labels": {"k": "x" * 300_000}}, "labels: must be 262,144 bytes of JSON at most"),
        ({"texts": {"k": "v", "n": 1}}, r"texts\['n'\]: must be a string; it was 1"),
        ({"pair": (1,)}, r"pair\[1\]: must be given"),
        ({"function": 1}, "function: must be a function; it was 1"),
        ({"voice": Speaker}, "voice: must be a Speaks or a string; it was a class, not an instance of it"),
        ({"raw": b""}, "raw: must be a string; it was b''"),
        ({"nothings": [None, 0]}, r"nothings\[1\]: must be None; it was 0"),
        ({"row": (0, 0)}, r"row\[0\]: must be None; it was 0"),
        ({"either": [1, None, "x"]}, r"either\[2\]: must be a whole number or None; it was 'x'"),
        ({"nested": [["a"], ["b", 1]]}, r"nested\[1\]\[1\]: must be a string; it was 1"),
        ({"named": SimpleNamespace()}, "named: must be a Named or None; it was a value of type SimpleNamespace"),
        ({"content": ["a", 1]}, r"content\[1\]: must be a string; it was 1"),
        ({"words": ["a", "c"]}, r"words\[1\]: must be one of 'a', 'b'; it was 'c'"),
    ],
)
def test_wrong_type_is_refused_with_its_argument(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{problem}.*; nothing was written$") as refused:
        call(**{"text": "x", **arguments})
    assert refused.value.argument.startswith(next(iter(arguments)))
    assert isinstance(refused.value, SettingsError)


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "\0"},
        {"text": "\ud800"},
        {"names": ["\ud800"]},
        {"value": float("inf")},
        {"value": 10**4300},
        {"value": DEEP},
        {"value": {"\0": 1}},
    ],
)
def test_unstorable_value_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidContent):
        call(**{"text": "x", **arguments})


def test_checked_values_become_plain_copies() -> None:
    metadata = {"k": (1, Text("v"))}
    taken = call(
        Text("x"), labels=metadata, names=[Text("a")], state="pending", voice=Speaker(), later="x", raw="\ud800"
    )  # type: ignore[arg-type]
    assert (type(taken["text"]), type(taken["names"][0]), taken["state"]) == (str, str, ChatState.pending)
    assert taken["labels"] == {"k": [1, "v"]}
    assert taken["labels"] is not metadata
    assert (taken["later"], taken["raw"]) == ("x", "\ud800")
    nested = call("x", nothings=[None], row=(None, 1), either=[1, None])
    assert (nested["nothings"], nested["row"], nested["either"]) == ((None,), (None, 1), (1, None))


def test_misspelt_or_missing_argument_is_named() -> None:
    with pytest.raises(WrongCall, match="flga: call has no such argument; did you mean 'flag'"):
        call("x", key="k", flga=True)  # type: ignore[call-arg]
    with pytest.raises(WrongCall, match="text: call needs it"):
        call()  # type: ignore[call-arg]
    with pytest.raises(WrongCall, match="takes 1 arguments by place, not 2"):
        call("x", "y")  # type: ignore[misc]
    with pytest.raises(WrongCall, match=r"^store: Engine takes 1 arguments by place, not 2;"):
        Engine("sqlite://", "demo")  # type: ignore[misc]


def test_checked_class_checks_init_and_public_methods() -> None:
    @checked
    class Counter:
        def __init__(self, start: int) -> None:
            self.count = start

        @classmethod
        def made_of(cls, start: int) -> Self:
            return cls(start)

        async def add(self, more: int) -> int:
            return self._add(more)

        async def walk(self, steps: int) -> AsyncIterator[int]:
            for step in range(steps):
                yield step

        def _add(self, more: int) -> int:
            return self.count + more

    with pytest.raises(InvalidArgument, match="start"):
        Counter("1")  # type: ignore[arg-type]
    with pytest.raises(WrongCall, match="began"):
        Counter.made_of(began=1)  # type: ignore[call-arg]
    counter = Counter.made_of(1)
    assert inspect.iscoroutinefunction(counter.add)
    with pytest.raises(InvalidArgument, match="more"):
        counter.add("1").send(None)  # type: ignore[arg-type, attr-defined]
    with pytest.raises(InvalidArgument, match="steps"):
        counter.walk("1")  # type: ignore[arg-type]
    assert counter._add(1.5) == 2.5  # type: ignore[arg-type]


def test_configuration_is_checked() -> None:
    @configuration(within="point.", kw_only=False)
    class Point:
        x: int
        notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

        def moved(self, by: float) -> float:
            return self.x + by

    with pytest.raises(InvalidArgument, match=r"^point\.x: "):
        Point("1")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"^point\.x: "):
        dataclasses.replace(Point(1), x="1")
    with pytest.raises(WrongCall, match=r"^point\.note: .* did you mean 'notes'"):
        Point(1, note={})  # type: ignore[call-arg]
    assert Point(1).moved("1" and 1) == 2
