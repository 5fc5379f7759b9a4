"""Streamed text of any length is shown whole, once, within the width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from turnwise.cli.scroll import Scroll, wrapped
from turnwise.cli.style import clean, excerpt

TEXT = st.text(st.sampled_from("ab 界é\n"), max_size=200)


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
