"""Odd values: what nobody should hand to a library, and somebody will."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
from hypothesis import strategies as st

from turnwise import ChatState, ClientTool, Engine, FilePart, Message, Settings, TextPart, ToolResult
from turnwise.providers.scripted import ScriptedModel


def _refuse(*_: object) -> NoReturn:
    raise ZeroDivisionError("asked something of a value that answers nothing")


def unchecked(kind: Any, **fields: object) -> Any:
    """Return a value of a kind that checks what it is made of, made past its checks."""
    return msgspec.StructMeta.__call__(kind, **fields)


class Hostile:
    """Raises whatever is asked of it."""

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __call__ = __fspath__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        _refuse()


class HostileText(str):
    """A string that raises where strings answer."""

    __slots__ = ()
    __repr__ = __str__ = __eq__ = __hash__ = __len__ = __iter__ = encode = strip = _refuse  # type: ignore[assignment]


class HostileNumber(int):
    """A number that cannot be compared."""

    __repr__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __index__ = __int__ = __hash__ = _refuse


class HostileList(list[Any]):
    """A list that cannot be read."""

    __iter__ = __len__ = __getitem__ = __eq__ = __repr__ = _refuse


class HostileMapping(Mapping[str, Any]):
    """A mapping that cannot be read."""

    __iter__ = __len__ = __getitem__ = _refuse


class ReadWithoutEnd(BaseException):
    """Whoever read so far would have read on until the memory was full. No `Exception`, so that nobody takes it for bad input."""


TOO_FAR: Final = 100_000


class EndlessSequence(Sequence[str]):
    """A sequence that says it is short, and never ends."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: Any) -> str:
        if place == TOO_FAR:
            raise ReadWithoutEnd("a sequence that says it has two")
        return "again"


class Liar:
    """Says that it is a string."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return str


def _endless() -> Iterator[str]:
    yield from itertools.repeat("again", TOO_FAR)
    raise ReadWithoutEnd("an iterator that never ends")


def _nested(depth: int, *, mapping: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"k": value} if mapping else [value]
    return value


def _knotted() -> list[Any]:
    knot: list[Any] = []
    knot.append(knot)
    return knot


def _knotted_mapping() -> dict[str, Any]:
    knot: dict[str, Any] = {}
    knot["again"] = knot
    return knot


WORDS = (
    *("", " ", "\n", "\0", "a\0b", "\ud800", "half \udfff", "waiting", "Waiting", "idle", "Ask", "ask", "at-most-once"),
    *(
        "queue",
        "Queue",
        "user",
        "demo",
        "sqlite://",
        "c404",
        "m1",
        "m404",
        "call_1",
        "0",
        "-1",
        "nan",
        "\u202e\u200f",
        "💥",
    ),
    *(
        "x" * 1025,
        "x" * 20_000,
        "é" * 600,
        "x" * 400_000,
        "a b",
        "../../etc/passwd",
        "'; DROP TABLE chats; --",
        "%s%n",
        "{}",
    ),
)
NUMBERS = (
    *(0, 1, -1, 2, True, False, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, -(10**5000)),
    *(0.0, -0.0, 0.5, -1.5, 1e308, float("nan"), float("inf"), float("-inf"), 1j, decimal.Decimal(1)),
)
OTHERS: tuple[Any, ...] = (
    *(
        b"",
        b"hi",
        b"\xff",
        bytearray(b"x"),
        memoryview(b"x"),
        Path("x.db"),
        Path("/"),
        range(3),
        slice(1),
        ...,
        NotImplemented,
    ),
    *(
        set(),
        {1, "a"},
        frozenset({"waiting"}),
        (),
        ("a",),
        [],
        ["a"],
        [None],
        [1],
        {},
        {"k": 1},
        {1: 2},
        {None: 1},
        {b"k": 1},
        {("a",): 1},
    ),
    *(
        {"\0": 1},
        {"\ud800": 1},
        {"k": "\0"},
        {"k": float("nan")},
        {"k": 2**70},
        {"k": {1}},
        {"k": b"x"},
        {"type": "object"},
    ),
    *(
        object(),
        object,
        str,
        int,
        Engine,
        ScriptedModel,
        Settings,
        TextPart,
        ChatState,
        ChatState.waiting,
        Hostile,
        Hostile(),
    ),
    *(
        HostileText("hi"),
        HostileNumber(1),
        HostileList(["a"]),
        HostileMapping(),
        Liar(),
        EndlessSequence(),
        {"k": Hostile()},
        [Hostile()],
    ),
    *(_nested(60, mapping=True), _nested(200, mapping=True), _nested(200, mapping=False), _nested(5000, mapping=False)),
    *(
        _nested(5000, mapping=True),
        _knotted(),
        _knotted_mapping(),
        [1] * 70_000,
        {str(number): number for number in range(70_000)},
    ),
    *(print, len, lambda: None, lambda *_, **__: None, _refuse, itertools, ValueError("x"), KeyboardInterrupt()),
    *(dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.date(2026, 1, 1), dt.timedelta(days=1), uuid.UUID(int=0)),
    *(
        TextPart(text="hi"),
        TextPart(text=""),
        [TextPart(text="hi")],
        [unchecked(TextPart, text=None)],
        [unchecked(TextPart, text=1)],
    ),
    *([unchecked(TextPart, text="\ud800")], [TextPart(text="hi", metadata={"k": object()})]),
    *(
        [FilePart(media_type="image/png")],
        [FilePart(media_type="", data="aGk=")],
        [FilePart(media_type="image/png", data="?")],
    ),
    *(
        [FilePart(media_type="image/png", data="aGk=", url="https://example.org/x")],
        [unchecked(FilePart, media_type=None)],
    ),
    *([FilePart(media_type="image/png", data="aGk=")], [unchecked(FilePart, media_type=3, data=b"x")]),
    *(
        [unchecked(Message, id=1, role="?", parts=None, turn="", step="", created_at=0)],
        [ToolResult("call_1", 1)],
        ToolResult("call_1", 1),
        [ToolResult("", None)],
    ),
    *([object.__new__(ToolResult)], [object.__new__(ClientTool)], object.__new__(Settings)),
    *(
        [ClientTool("a", "A.", {"type": "object"})],
        ClientTool("a", "A.", {"type": "object"}),
        Settings(),
        ScriptedModel("ok"),
    ),
)
SINGLE_USE = (_endless, lambda: iter(["a"]), lambda: (item for item in (1, 2)), lambda: zip([1], [2], strict=True))
"""Makers of what can be read only once, or never to its end."""


class Odd:
    """An odd value that can be told of, although its own repr may raise or never end."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        self.value = value
        self._name = name

    def __repr__(self) -> str:
        return self._name or repr(self.value)[:80]


CHOSEN: Final = (
    *(
        Odd(None, "None"),
        Odd(object(), "an object"),
        Odd(Hostile(), "Hostile()"),
        Odd(HostileText("hi"), "HostileText"),
    ),
    *(Odd(10**400, "10**400"), Odd(-1, "-1"), Odd(float("nan"), "nan"), Odd(HostileNumber(1), "HostileNumber(1)")),
    *(Odd("", "''"), Odd("a\0b", "NUL"), Odd("half \ud800", "half a character"), Odd("x" * 400_000, "400,000 letters")),
    *(Odd(b"\xff", "bytes"), Odd(Path("x.db"), "a path"), Odd(EndlessSequence(), "EndlessSequence()")),
    *(Odd(_nested(5000, mapping=False), "5,000 lists"), Odd(_nested(5000, mapping=True), "5,000 mappings")),
)
"""What every parameter is given, one after another: each kind of wrong, huge and odd."""


def _listed(name: str, values: Sequence[Any]) -> st.SearchStrategy[Odd]:
    return st.integers(0, len(values) - 1).map(lambda place: Odd(values[place], f"{name}[{place}]"))


odd_values: st.SearchStrategy[Odd] = st.one_of(
    _listed("WORDS", WORDS),
    _listed("NUMBERS", NUMBERS),
    st.none().map(Odd),
    _listed("OTHERS", OTHERS),
    st.integers(0, len(SINGLE_USE) - 1).map(lambda place: Odd(SINGLE_USE[place](), f"SINGLE_USE[{place}]()")),
    st.text(max_size=8).map(Odd),
    st.integers().map(Odd),
    st.floats().map(Odd),
    st.binary(max_size=8).map(Odd),
    st.lists(_listed("OTHERS", OTHERS), max_size=3).map(
        lambda odds: Odd([odd.value for odd in odds], f"list of {odds}")
    ),
    st.tuples(_listed("WORDS", WORDS), _listed("OTHERS", OTHERS)).map(
        lambda pair: Odd({pair[0].value: pair[1].value}, f"mapping of {pair}")
    ),
)
