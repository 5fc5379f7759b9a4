"""How things look in a terminal: what is hidden of words, and how tables, times and figures are told."""

from __future__ import annotations

import io
import json
import logging
import sys
import unicodedata
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from rich.console import Console

from support.look import look
from support.terminal import Terminal
from turnwise.cli import style
from turnwise.cli.scroll import Scroll
from turnwise.cli.style import (
    clean,
    excerpt,
    is_narrow,
    labelled,
    moment,
    plain_table,
    print_json,
    quiet_logs,
    state_text,
    tokens,
    trail,
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


def test_of_all_characters_those_that_steer_are_spelled_out_and_no_others() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    spelled = [character for character in every if clean(character) != character]
    assert spelled == [character for character in every if steers(character) and character != "\n"]
    told = {character: clean(character) for character in spelled}
    assert (told.pop("\t"), told.pop("\r")) == ("    ", "")
    assert all(words.isascii() and words.startswith("\\") for words in told.values())


def test_programs_get_every_character_and_terminals_no_command(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_programs_get_every_character_whatever_the_output_is_encoded_in(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
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
def test_an_excerpt_is_one_line_of_at_most_its_length(value: object, length: int, told: str) -> None:
    assert excerpt(value, length) == told


def test_times_are_told_to_the_millisecond() -> None:
    assert moment(datetime(2026, 1, 2, 3, 4, 5, 67_999, tzinfo=UTC)) == "2026-01-02 03:04:05.067"
    assert moment(None) == ""


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
def test_what_nobody_reported_is_not_zero(usage: Usage, told: str) -> None:
    assert tokens(usage) == told


def test_states_are_told_in_their_colours() -> None:
    assert look(state_text("error"), state_text("waiting"), state_text("odd")) == [
        "[bold red]error[/]",
        "[green]waiting[/]",
        "odd",
    ]
    assert look(trail(["pending", "odd", "error"])) == ["[dim yellow]pending[/][dim] → odd → [/][bold dim red]error[/]"]


def test_a_table_has_a_head_and_no_frame_and_cuts_no_word() -> None:
    table = plain_table("one", "two")
    table.add_row("first", "x" * 12)
    assert look(table, width=15) == ["[dim]one    two     [/]", "first  xxxxxxxx", "       xxxx~~~~"]


@pytest.mark.parametrize(("width", "narrow"), [(89, True), (90, False), (100, False)])
def test_a_screen_is_narrow_below_ninety_cells(monkeypatch: pytest.MonkeyPatch, width: int, *, narrow: bool) -> None:
    monkeypatch.setattr(style.console, "width", width)
    assert is_narrow() is narrow


@pytest.mark.parametrize(("width", "fills"), [(10, 20), (23, 20), (24, 21), (100, 97), (200, 97)])
def test_lines_fill_the_screen_as_far_as_can_be_read(monkeypatch: pytest.MonkeyPatch, width: int, fills: int) -> None:
    monkeypatch.setattr(style.console, "width", width)
    assert Scroll(style.console).width == fills


def test_figures_in_prose_stay_plain_and_errors_go_where_errors_go(
    coloured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    style.console.print("1 of 'all' is None")
    style.errors.print("2 of 'all' are None")
    assert capsys.readouterr() == ("1 of 'all' is None\n", "2 of 'all' are None\n")


def test_the_librarys_log_stays_off_the_screen(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for quiet in (quiet_logs, lambda: terminal.run("--version")):
        monkeypatch.setattr(logging.getLogger("turnwise"), "handlers", [])
        quiet()
        assert [type(handler) for handler in logging.getLogger("turnwise").handlers] == [logging.NullHandler]


def test_labels_are_faint_and_what_they_say_is_made_safe() -> None:
    told = io.StringIO()
    Console(file=told, force_terminal=True, color_system="standard", width=60).print(labelled([("kept", "a\x1b[2Jb")]))
    assert "\x1b[2m  kept\x1b[0m" in told.getvalue()
    assert "a\\x1b[2Jb" in told.getvalue()


@pytest.mark.usefixtures("coloured")
def test_words_have_the_colours_they_are_given_and_complaints_go_to_the_other_stream(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for console in (style.console, style.errors):
        console.print("at 12:30 'somebody' said True, 42 times")
    said = capsys.readouterr()
    assert said.out == said.err == "at 12:30 'somebody' said True, 42 times\n"


@pytest.mark.parametrize("said", ["[/m1]", "[bold]m1", r"\[m1]", ":warning:"])
@pytest.mark.parametrize("console", [style.console, style.errors])
def test_brackets_and_colons_are_shown_as_they_were_said(console: Console, said: str) -> None:
    """In lines, and in the cells of tables: whoever writes a message's id or an error may write anything."""
    table = plain_table("")
    table.add_row(said)
    with console.capture() as told:
        console.print(said)
        console.print(table)
    assert told.get().split() == [said, said]
