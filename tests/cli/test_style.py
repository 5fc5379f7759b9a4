"""How things look in a terminal: what is hidden of words, and how tables, times and figures are told."""

from __future__ import annotations

import io
import json
import logging
import sys
import unicodedata
from decimal import Decimal

import pytest
from rich.console import Console

from support.terminal import Terminal
from turnwise.cli import style
from turnwise.cli.style import (
    clean,
    excerpt,
    plain_table,
    print_json,
    quiet_logs,
    tokens,
)
from turnwise.states.usage import Usage

TURNING = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
HIDDEN = {
    "ARABIC LETTER MARK",
    "LEFT-TO-RIGHT MARK",
    "RIGHT-TO-LEFT MARK",
    "ZERO WIDTH SPACE",
    "WORD JOINER",
    "ZERO WIDTH NO-BREAK SPACE",
    "INTERLINEAR ANNOTATION ANCHOR",
    "INTERLINEAR ANNOTATION SEPARATOR",
    "INTERLINEAR ANNOTATION TERMINATOR",
}


def steers(character: str) -> bool:
    """Return whether a character is a command, turns a line around, ends it, or hides in it."""
    return (
        unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(character) in TURNING
        or unicodedata.name(character, "") in HIDDEN
        or 0xE0000 <= ord(character) <= 0xE007F
    )


def test_only_control_characters_are_escaped() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    spelled = [character for character in every if clean(character) != character]
    assert spelled == [character for character in every if steers(character) and character != "\n"]
    told = {character: clean(character) for character in spelled}
    assert (told.pop("\t"), told.pop("\r")) == ("    ", "")
    assert all(words.isascii() and words.startswith("\\") for words in told.values())


def test_pipes_get_raw_characters(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "".join(
        chr(code) for code in range(sys.maxunicode + 1) if steers(chr(code)) and not 0xD800 <= code < 0xE000
    )
    print_json({"said": hostile})
    told = capsys.readouterr().out
    assert json.loads(told) == {"said": hostile}
    assert [character for character in told if steers(character) and character != "\n"] == []
    assert told.startswith('{\n  "said"')
    assert r"\u007f\u0080" in told


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "latin-1", "ascii", "cp1252", "utf-16"])
def test_output_survives_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """What is no text of the encoding is written as a question mark, in prose: JSON must hold what was said."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    monkeypatch.setattr("sys.stdout", out)
    said = {"Größe €": "日本 👩 \u0301"}
    print_json(said)
    out.flush()
    out.seek(0)
    told = out.read()
    assert json.loads(told) == said
    assert told.isascii() is (encoding not in ("utf-8", "UTF8"))


@pytest.mark.parametrize(
    ("value", "length", "told"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("ab cd", 4, "ab…"),
        ("abcd", 1, "…"),
        ("abcd", 0, "…"),
        (" a \n b\t", 9, "a b"),
        ({"a": [1, "b"]}, 20, '{"a":[1,"b"]}'),
        (ValueError("odd"), 20, '"odd"'),
    ],
)
def test_excerpt_is_one_short_line(value: object, length: int, told: str) -> None:
    assert excerpt(value, length) == told


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (Usage(), "tokens unknown"),
        (Usage(input_tokens=1), "tokens unknown"),
        (Usage(output_tokens=1), "tokens unknown"),
        (Usage(input_tokens=0, output_tokens=0), "0 tokens in, 0 out"),
        (Usage(input_tokens=1200, output_tokens=3400), "1,200 tokens in, 3,400 out"),
        (Usage(input_tokens=1, output_tokens=2, partial=True), "1 tokens in, 2 out at least"),
        (Usage(input_tokens=1, output_tokens=2, cost=Decimal("0.0123")), "1 tokens in, 2 out · $0.0123"),
        (Usage(cost=Decimal("1234.5"), cost_partial=True), "tokens unknown · $1,234.50 at least"),
        (Usage(cost=Decimal("0.00009")), "tokens unknown · under $0.0001"),
        (Usage(cost=Decimal("0.0001")), "tokens unknown · $0.0001"),
        (Usage(cost=Decimal(0)), "tokens unknown · $0.00"),
        (Usage(cost=Decimal(1)), "tokens unknown · $1.00"),
    ],
)
def test_unknown_usage_is_not_zero(usage: Usage, told: str) -> None:
    assert tokens(usage) == told


def test_library_log_is_not_printed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for quiet in (quiet_logs, lambda: terminal.run("--version")):
        monkeypatch.setattr(logging.getLogger("turnwise"), "handlers", [])
        quiet()
        assert [type(handler) for handler in logging.getLogger("turnwise").handlers] == [logging.NullHandler]


@pytest.mark.parametrize("said", ["[/m1]", "[bold]m1", r"\[m1]", ":warning:"])
@pytest.mark.parametrize("console", [style.console, style.errors])
def test_markup_is_printed_literally(console: Console, said: str) -> None:
    """In lines, and in the cells of tables: whoever writes a message's id or an error may write anything."""
    table = plain_table("")
    table.add_row(said)
    with console.capture() as told:
        console.print(said)
        console.print(table)
    assert told.get().split() == [said, said]
