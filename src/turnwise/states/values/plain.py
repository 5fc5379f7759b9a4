"""Text and JSON that can be stored: untrusted values are checked, copied and mended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final, NamedTuple


def well_formed(text: str) -> str:
    """Return the text with the halves of a surrogate pair joined, and single halves replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def without_half(text: str) -> str:
    """Return the text without the first half of a character at its end: the other half may come yet."""
    return text[:-1] if "\ud800" <= text[-1:] <= "\udbff" else text


def well_formed_json(value: Any) -> Any:
    """Return a JSON value with all of its text well-formed."""
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {well_formed_json(key): well_formed_json(inner) for key, inner in value.items()}
        case list():
            return [well_formed_json(inner) for inner in value]
    return value


DEEPEST: Final = 100
"""How many objects and arrays may stand inside each other."""
BIGGEST: Final = 2**63
"""The first whole number that 64 bits do not hold: arguments and columns that count are smaller, JSON need not be."""
LONGEST_NUMBER: Final = 4300
"""How many digits a whole number in JSON may have: Python reads and writes no more."""
COUNTABLE: Final = 2**62
"""Numbers from here on are damage: no counter gets this far, and 64 bits would soon overflow."""


class JsonLimits(NamedTuple):
    """What a JSON value may hold."""

    levels: int
    """How many objects and arrays may stand inside each other."""
    nul: bool
    """Whether its text may hold the character NUL."""


CALLER_LIMITS: Final = JsonLimits(DEEPEST, nul=False)
"""The limits of what an application gives."""
MODEL_LIMITS: Final = JsonLimits(DEEPEST + 8, nul=True)
"""The limits of a message from models and tools, which are not asked to correct it."""
_TOO_LONG: Final = 10**LONGEST_NUMBER
_ATOMIC: Final = frozenset({str, int, float, bool, type(None)})
_NESTING: Final = (dict, list)
_WORD: Final = 120
"""How much of a value an error shows."""
_PASSWORD: Final = re.compile(r"(://[^:/@\s]*:)\S*@")
"""The password in a URL: the address of a store may be given where something else belongs."""


class Misfit(ValueError):
    """A value is not what it must be.

    `place` is the place inside the argument. `type_only`: the value is of another type altogether. `unstorable`: it is
    of the right type, but no store can hold it.
    """

    def __init__(self, problem: str, *, type_only: bool = False, unstorable: bool = False) -> None:
        self.problem = problem
        self.place = ""
        self.type_only = type_only
        self.unstorable = unstorable


def type_name(value: object) -> str:
    return type(value).__name__


def shown(value: Any) -> str:
    """Return a value as an error shows it: short, and without calling any foreign code."""
    kind = type(value)
    if kind is int and abs(value) >= BIGGEST:
        return f"a whole number of {value.bit_length()} bits"
    if value is None or kind in (bool, int, float):
        return repr(value)
    if kind in (str, bytes):
        spelled = _PASSWORD.sub(r"\1***@", repr(value[: 8 * _WORD]))
        return spelled if len(value) <= _WORD else f"{spelled[:_WORD]}... ({len(value):,} long)"
    return "a class, not an instance of it" if issubclass(kind, type) else f"a value of type {type_name(value)}"


def text(value: str, *, nul: bool = False) -> str:
    """Return a string, of Python's own class.

    Raises:
        Misfit: it is not well-formed, or has a NUL where that is not allowed.
    """
    own = value if type(value) is str else str.__str__(value)
    if not nul and "\0" in own:
        raise Misfit("must not hold the character NUL", unstorable=True)
    if not own.isascii():
        try:
            own.encode()
        except UnicodeEncodeError:
            raise Misfit(
                "must be well-formed text; it holds half a character (a lone surrogate)", unstorable=True
            ) from None
    return own


def plain(value: Any, limits: JsonLimits = CALLER_LIMITS, depth: int = 0) -> Any:
    """Return a JSON value as Python's own objects, a copy, or raise `Misfit`: it is not JSON, or beyond the limits."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if issubclass(kind, str):
        return text(value, nul=limits.nul)
    if issubclass(kind, int):
        return _integer(int(value))
    if issubclass(kind, float):
        return _finite(float(value))
    if depth >= limits.levels:
        raise Misfit(f"must not be nested deeper than {limits.levels} levels", unstorable=True)
    if issubclass(kind, Mapping):
        return {_key(key, limits): plain(inner, limits, depth + 1) for key, inner in value.items()}
    if issubclass(kind, list | tuple):
        return [plain(inner, limits, depth + 1) for inner in value]
    raise Misfit(f"must hold JSON values only; it held {shown(value)}", unstorable=True)


def plain_object(value: Any) -> dict[str, Any]:
    """Return a JSON object as plain JSON, a copy."""
    if not isinstance(value, Mapping):
        raise Misfit(f"must be a mapping with string keys; it was {shown(value)}", type_only=True)
    mapping: dict[str, Any] = plain(value)
    return mapping


def copied(value: Any) -> Any:
    """Return a copy of a JSON value, many times as fast as `deepcopy`, which copies what is no JSON in it."""
    kind = type(value)
    if kind in _ATOMIC:
        return value
    if kind is dict:
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if kind is list else deepcopy(value)


def is_shallow(value: Any, room: int = DEEPEST) -> bool:
    """Return whether a JSON value is not nested deeper than `room` levels."""
    if not isinstance(value, _NESTING):
        return True
    if room <= 0:
        return False
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, _NESTING) and not is_shallow(inner, room - 1):
            return False
    return True


def _key(key: Any, limits: JsonLimits) -> str:
    if not isinstance(key, str):
        raise Misfit(f"must have strings as keys; one was {shown(key)}", unstorable=True)
    return text(key, nul=limits.nul)


def _integer(value: int) -> int:
    if abs(value) >= _TOO_LONG:
        problem = f"must hold whole numbers of {LONGEST_NUMBER:,} digits at most; one was {shown(value)}"
        raise Misfit(problem, unstorable=True)
    return value


def _finite(value: float) -> float:
    if value - value != 0:
        raise Misfit(f"must hold finite numbers; one was {value}", unstorable=True)
    return value
