"""Titles of chats: their source, and the title in a model's answer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from turnwise.engine.prompt.history import transient
from turnwise.states.messages import Message, TextPart
from turnwise.states.values.plain import well_formed

TITLE_PROMPT: Final = """\
Give the conversation above a title of at most six words, in its own language. Answer with the title alone: one line \
of plain text, without quotation marks and without a full stop."""

LONGEST_TITLE: Final = 80
"""Characters of a title that turnwise makes."""
_EXCERPT: Final = 4000
"""Characters of the question, and of the answer, that a model gets."""
_UNSEEN: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of characters that a line must not hold: control characters, separators of lines."""
_TURNS_TEXT: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that reverse the text after them, also outside the title."""
_PAIRS: Final = ('""', "''", "``", "**", "__", "“”", "„“", "‘’", "‚‘", "«»", "»«", "‹›", "「」", "『』")  # noqa: RUF001 - quotes
_AROUND: Final = {pair[0]: pair[1] for pair in _PAIRS}
"""Marks that models put around a title: the one before it, with the one after it."""
_EMPHASIS: Final = re.compile(r"(`[^`]*`)|(?<![\w*])(\*\*|\*|_)(?=\S)((?:(?!\2).)+)(?<=\S)\2(?![\w*])")
"""Code, which stays as it is, or words between marks of emphasis. `__` is none: it is part of many names."""


class TitleSource(NamedTuple):
    """The messages that a title is made of."""

    question: Message
    """The first message of the user that has text."""
    answer: Message | None
    """The first answer of the model; `None` if its turns so far have ended without words."""


def source_of(history: Sequence[Message]) -> TitleSource | None:
    """Return the source of a title; `None` if the user has written no text."""
    messages = [one for one in history if one.text.strip() and not one.synthetic and not one.erased]
    question = next((one for one in messages if one.role == "user"), None)
    answer = next((one for one in messages if one.role == "assistant" and not one.partial and not one.calls), None)
    return None if question is None else TitleSource(question, answer)


def title_messages(source: TitleSource) -> list[Message]:
    """Return the messages of a request for a title: question, answer, and the prompt."""
    question, answer = source
    messages = [question] if answer is None else [question, answer]
    excerpts = [replace(one, parts=(TextPart(text=one.text[:_EXCERPT]),), step=0) for one in messages]
    return [*excerpts, transient("user", TITLE_PROMPT, messages[-1])]


def first_line_of(text: str) -> str | None:
    """Return the first line of a user's text as a title, cut between words; `None` if it is blank."""
    lines = (_in_one_line(line).lstrip("#").strip() for line in _beginning(text))
    return _cut(next(filter(None, lines), "")) or None


def title_in(reply: str) -> str | None:
    """Return the title in a model's reply: its first line, without quotation marks; `None` if it is blank."""
    lines = [line for line in map(_bare, _beginning(reply)) if line]
    if len(lines) > 1 and lines[0].endswith(":"):  # "Here is a title:"
        lines = lines[1:]
    return _cut(lines[0]) if lines else None


def _beginning(text: str) -> list[str]:
    return text.lstrip()[:_EXCERPT].splitlines()


def _bare(line: str) -> str:
    """Return a line without the marks that models put around a title, or the word before it."""
    bare = _without_marks(_in_one_line(line).lstrip("# "))
    name, colon, rest = bare.partition(":")
    return _without_marks(rest.lstrip("*_ ")) if colon and name.strip("*_ ").lower() == "title" else bare


def _without_marks(line: str) -> str:
    """Return a line without quotation marks or emphasis around all of it, and without the full stop of a sentence."""
    line = line.strip()
    if line.find(".") == len(line) - 1:
        line = line[:-1].rstrip()
    while len(line) > 1 and line[-1] == _AROUND.get(line[0]):
        first, last = line[0], line[-1]
        core = line.lstrip(first).rstrip(last)
        if first in core or last in core:
            break
        line = core.strip()
    return line


def _in_one_line(text: str) -> str:
    """Return the text on one line, without characters that no line holds, and without emphasis of its words."""
    unseen = (" " if unicodedata.category(one) in _UNSEEN or one in _TURNS_TEXT else one for one in well_formed(text))
    return _EMPHASIS.sub(lambda match: match[1] or match[3], " ".join("".join(unseen).split()))


def _cut(line: str) -> str:
    """Return the line, cut after a word if it is too long; a single long word is cut within."""
    if len(line) <= LONGEST_TITLE:
        return line
    end = LONGEST_TITLE - 1
    space = line.rfind(" ", end // 2, end + 1)
    return f"{line[: end if space < 0 else space].rstrip(' ,;:.-')}…"
