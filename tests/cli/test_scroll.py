"""Streamed text of any length is shown whole, once, within the width."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from support.look import lines_of, look, screen_of
from turnwise.cli import scroll as scroll_
from turnwise.cli.scroll import Scroll, wrapped
from turnwise.cli.style import clean, excerpt

TEXT = st.text(st.sampled_from("ab 界é\u0301\n"), max_size=200)


@given(TEXT, st.integers(2, 30))
def test_no_line_is_too_wide_and_no_character_is_lost(text: str, width: int) -> None:
    lines, rest = wrapped(text, width)
    assert all(cell_len(line) <= width for line in [*lines, rest])
    assert "".join([*lines, rest]).replace(" ", "") == text.replace(" ", "").replace("\n", "")


@given(st.lists(st.text(st.sampled_from("ab 界\n"), max_size=20), max_size=20), st.integers(2, 12))
def test_the_lines_are_the_same_however_the_stream_is_cut(deltas: list[str], width: int) -> None:
    lines: list[str] = []
    rest = ""
    for delta in deltas:
        more, rest = wrapped(rest + delta, width)
        lines += more
    assert (lines, rest) == wrapped("".join(deltas), width)


def test_words_stay_whole_where_they_fit() -> None:
    assert wrapped("one two three", 8) == (["one two"], "three")
    assert wrapped("a" * 10, 4) == (["aaaa", "aaaa"], "aa")


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "word " * 20_000, "short\n" * 20_000, "e\u0301\u0301" * 30_000, "e" + "\u0301" * 100_000]
)
def test_the_work_for_a_long_text_grows_with_its_length_and_no_faster(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A message may have 32 MB and no line feed: an hour of work, if each line measured all that follows it."""
    measured = 0

    def counted(measure: Callable[..., Any]) -> Callable[..., Any]:
        def count(piece: str, *width: int) -> Any:
            nonlocal measured
            measured += len(piece)
            return measure(piece, *width)

        return count

    for name in ("cell_len", "chop_cells"):
        monkeypatch.setattr(scroll_, name, counted(getattr(scroll_, name)))
    lines, rest = wrapped(text, 77)
    assert measured < 10 * len(text)
    assert "".join([*lines, rest]).replace(" ", "") == text.replace(" ", "").replace("\n", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_text_taller_than_the_screen_is_printed_once(*, terminal: bool) -> None:
    words = [f" word{number}" for number in range(500)]
    printed = _printed(words, terminal=terminal)
    assert [word for word in words if printed.count(f"{word.strip()} ") + printed.count(f"{word.strip()}\n") < 1] == []
    assert not terminal or "\x1b" in printed


def test_what_would_steer_the_terminal_is_spelled_out() -> None:
    assert clean("a\x1b[2Jb\tc\r\x9b1m\n") == r"a\x1b[2Jb    c\x9b1m" + "\n"
    assert clean("user\u202etxt.exe \u2067 \ud800 \U000e0041") == r"user\u202etxt.exe \u2067 \ud800 \U000e0041"
    assert clean("a family: 👨\u200d👩, שלום") == "a family: 👨\u200d👩, שלום"
    assert excerpt("one\n two" + "o" * 50, 10) == "one twooo…"
    assert excerpt({"a": 1}, 20) == '{"a":1}'


def _printed(deltas: list[str], *, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=40, height=10, color_system=None, _environ={})
    with Scroll(console) as scroll:
        for delta in deltas:
            scroll.write(delta)
    return out.getvalue()


def test_a_space_at_the_beginning_of_a_line_breaks_no_word() -> None:
    assert wrapped(" aaaa", 3) == ([" aa"], "aa")
    assert wrapped("one two", 3) == (["one"], "two")
    assert wrapped("one two", 7) == ([], "one two")


def test_what_is_printed_stands_within_the_margin() -> None:
    screen = screen_of(30)
    scroll = Scroll(screen)
    scroll.write("an answer")
    scroll.user_message("a question that is longer than the line")
    scroll.line(Text("a line that is longer than the screen", style="red"))
    scroll.line(Text("x" * 27))
    scroll.write("half", style="dim")
    scroll.trail(["waiting", "pending", "streaming", "executing_tools"])
    assert lines_of(screen) == [
        "  an answer",
        "[bold green]» [/][bold]a question that is longer[/]",
        "  [bold]than the line[/]",
        "  [red]a line that is longer than…[/]",
        f"  {'x' * 27}",
        "  [dim]half[/]",
        "  [dim green]waiting[/][dim] → [/][dim yellow]pending[/][dim] → [/]~~~~~",
        "  [dim cyan]streaming[/][dim] → [/]~~~~~~~~~~~~~",
        "  [dim blue]executing_tools[/]~~~~~~~~~~",
    ]


def test_on_a_screen_that_is_too_narrow_the_terminal_breaks_the_lines() -> None:
    screen = screen_of(10)
    scroll = Scroll(screen)
    scroll.line(Text("123456789012345"))
    scroll.user_message("123456789012345")
    assert lines_of(screen) == ["  123456789012345", "[bold green]» [/][bold]123456789012345[/]"]


def test_below_stands_the_line_under_way_and_what_goes_on() -> None:
    scroll = Scroll(screen_of())
    assert look(scroll._below()) == []
    scroll.write("so far", style="dim")
    assert look(scroll._below()) == ["[dim]  so far[/]"]
    scroll.status = Text("streaming", style="green")
    told = look(scroll._below())
    assert told[0] == "[dim]  so far[/]"
    assert re.fullmatch(r"\[cyan\].\[/\] \[green\]streaming\[/\]", told[1])
    scroll.end_line()
    assert len(look(scroll._below())) == 1


def test_at_a_terminal_the_line_under_way_is_redrawn_and_goes_away() -> None:
    """Its last state is printed for good, once."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=40, height=10, color_system=None, _environ={})
    screen = pyte.Screen(40, 10)
    stream = pyte.Stream(screen)

    def seen() -> list[str]:
        stream.feed(out.getvalue().replace("\n", "\r\n"))
        out.seek(0)
        out.truncate()
        return [line.rstrip() for line in screen.display if line.strip()]

    for number in range(2):
        with (scroll := Scroll(console)):
            scroll.status = Text("streaming")
            scroll.write(f"line {number}")
            assert scroll._live is not None
            scroll._live.refresh()
            during = seen()
        assert during[number] == f"  line {number}"
        assert during[number + 1].endswith("streaming")
        assert seen() == [f"  line {done}" for done in range(number + 1)]
