"""The argument text of a tool call: complete JSON, repairable, or unusable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

ARGUMENT_TEXT: Final = "_arguments_text"
"""The single key of a call's arguments if their text is unusable; its value is the text."""

_NO_OBJECT: Final = "are no JSON object"
_SEVERAL: Final = "hold more than one JSON object"
_NO_VALUE: Final = "leave out the value of a field"
_NO_FIELD: Final = "leave out a field between two commas"
_IN_STRING: Final = "end inside a string"
_IN_WORD: Final = "end inside a word"
_AT_DIGIT: Final = "end directly behind a number, which may go on"
_AT_KEY: Final = "end behind the name of a field, without its value"
_AT_GAP: Final = "end before something that they announce"

_TOKEN: Final = re.compile(
    r"""(?P<space>\s++)
    | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<comma>,) | (?P<colon>:)
    | (?P<string> "(?:[^"\\]++|\\.)*+" | '(?:[^'\\]++|\\.)*+' | \u201c[^\u201d]*+\u201d | \u2018[^\u2019]*+\u2019)
    | (?P<half>["'\u201c\u2018].*)
    | (?P<word>[^\s\[\]{},:"]++)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_DIGITS: Final = re.compile(r"[-+.]*(?:\d[-+.\deE_]*)?")
"""A number, or the start of one."""
_LITERALS: Final = frozenset({"true", "false", "null"})
_WHOLE_AT_ONCE: Final = ("{", "[", '"', "'", "\u201c", "\u2018")


def whole(text: str) -> dict[str, Any] | None:
    """Parse the text as a JSON object; `None` if it is anything else, or incomplete."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fault_of(text: str) -> str | None:
    """Return why no call may run with the text, worded to follow "the arguments"; `None` if a call may.

    A call may run with a complete object, and with one that can be repaired without guessing a value. Other quotation
    marks, missing or extra commas, and closing brackets that are missing after a complete value can be repaired.
    """
    return None if whole(text) is not None else _Scan().fault(text)


def bracketed(text: str) -> dict[str, Any] | None:
    """Parse the text with its missing closing brackets added and text after the object removed.

    Return `None` if `fault_of` finds a fault, or if the text needs other repairs.
    """
    scan = _Scan()
    if scan.fault(text) is not None:
        return None
    if not scan.missing:
        return _first_object(text)
    return whole(text + scan.missing)


def _first_object(text: str) -> dict[str, Any] | None:
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _Scan:
    """One pass over the tokens of a text that should be a JSON object."""

    def __init__(self) -> None:
        self._brackets: list[str] = []
        """The open brackets."""
        self._latest: list[Literal["", "key", "colon", "value", "word", "comma"]] = []
        """The latest item inside each open bracket; a `word` is a value that is not JSON."""
        self._is_closed = False

    @property
    def missing(self) -> str:
        """The missing closing brackets."""
        return "".join("}" if bracket == "{" else "]" for bracket in reversed(self._brackets))

    def fault(self, text: str) -> str | None:
        if not text.lstrip().startswith("{"):
            return _NO_OBJECT
        kind, token = "", ""
        for kind, token in _tokens(text):
            problem = self._take(kind, token)
            if problem is not None:
                return problem
        return None if self._is_closed else self._fault_at_end(kind, token)

    def _take(self, kind: str, token: str) -> str | None:
        if self._is_closed:
            return _SEVERAL if kind == "open" else None
        match kind:
            case "half":
                return _IN_STRING
            case "open":
                self._note(token)
                self._brackets.append(token)
                self._latest.append("")
            case "close":
                return self._close({"}": "{", "]": "["}[token])
            case "comma":
                problem = _NO_FIELD if self._latest[-1] in {"", "comma"} else self._missing_value()
                self._latest[-1] = "comma"
                return problem
            case "colon":
                self._latest[-1] = "colon"
            case "string" | "word":
                self._note(token)
        return None

    def _note(self, token: str) -> None:
        """Record a string, a word or a bracket as a key or a value."""
        if not self._brackets:
            return
        if self._brackets[-1] == "{" and self._latest[-1] != "colon":
            self._latest[-1] = "key"
        else:
            is_whole = token.startswith(_WHOLE_AT_ONCE) or token in _LITERALS or _NUMBER.fullmatch(token)
            self._latest[-1] = "value" if is_whole else "word"

    def _missing_value(self) -> str | None:
        return _NO_VALUE if self._latest[-1] in {"key", "colon"} else None

    def _close(self, bracket: str) -> str | None:
        """Close the open brackets up to the given one; closing brackets may be missing."""
        while self._brackets:
            problem = self._missing_value()
            if problem is not None:
                return problem
            self._latest.pop()
            if self._brackets.pop() == bracket:
                break
        self._is_closed = not self._brackets
        return None

    def _fault_at_end(self, kind: str, token: str) -> str | None:
        if kind == "word" and _DIGITS.fullmatch(token):
            return _AT_DIGIT
        match self._latest[-1]:
            case "value":
                return None
            case "word":
                return _IN_WORD
            case "key":
                return _IN_WORD if kind == "word" else _AT_KEY
            case _:
                return _AT_GAP


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(text):
        yield str(match.lastgroup), match[0]
