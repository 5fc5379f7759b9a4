"""What the text of a call's arguments is worth: whole, mendable, or never to be run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

ARGUMENT_TEXT: Final = "_arguments_text"
"""The one key of a call's arguments that stand for JSON text which no call may run with."""

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
"""A number, or the beginning of one."""
_LITERALS: Final = frozenset({"true", "false", "null"})
_WHOLE_AT_ONCE: Final = ("{", "[", '"', "'", "\u201c", "\u2018")


def whole(text: str) -> dict[str, Any] | None:
    """Return the JSON object that `text` is, as it stands; `None` if it is none, or no whole one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fault_of(text: str) -> str | None:
    """Return why no call may run with `text`, however its reply ended, as the rest of a sentence about arguments.

    `None` if it is a whole object, or one that can be mended without guessing at a value: quotation marks of another
    kind, commas that are missing or too many, brackets that are missing behind a value which cannot go on.
    """
    return None if whole(text) is not None else _Scan().fault(text)


def bracketed(text: str) -> dict[str, Any] | None:
    """Return the object that `text` is once its last brackets are there, and what follows it is not.

    `None` if `fault_of` finds a fault, or more than that is wrong: whoever mends it has to guess.
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
    """One walk over the tokens of a text that is meant to be an object."""

    def __init__(self) -> None:
        self._brackets: list[str] = []
        """Those that are open."""
        self._latest: list[Literal["", "key", "colon", "value", "word", "comma"]] = []
        """What came last inside each of them; `word` is a value that is none of JSON's."""
        self._is_closed = False

    @property
    def missing(self) -> str:
        """The brackets that would close what is open."""
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
        """Note a string, a word or a bracket: in an object it is a key, unless it follows a colon."""
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
        """Close brackets up to this one: those between were left open."""
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
