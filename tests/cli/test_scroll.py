"""Streamed text of any length is shown whole, once, within the width."""

from __future__ import annotations

import io

import pyte
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from turnwise.cli.scroll import Scroll, wrapped
from turnwise.cli.style import clean, excerpt

TEXT = st.text(st.sampled_from("ab 界é\u0301\n"), max_size=200)


@given(TEXT, st.integers(2, 30))
def test_wrapping_loses_no_character(text: str, width: int) -> None:
    lines, rest = wrapped(text, width)
    assert all(cell_len(line) <= width for line in [*lines, rest])
    assert "".join([*lines, rest]).replace(" ", "") == text.replace(" ", "").replace("\n", "")


@given(st.lists(st.text(st.sampled_from("ab 界\n"), max_size=20), max_size=20), st.integers(2, 12))
def test_wrapping_is_independent_of_chunks(deltas: list[str], width: int) -> None:
    lines: list[str] = []
    rest = ""
    for delta in deltas:
        more, rest = wrapped(rest + delta, width)
        lines += more
    assert (lines, rest) == wrapped("".join(deltas), width)


def test_control_characters_are_escaped() -> None:
    assert clean("a\x1b[2Jb\tc\r\x9b1m\n") == r"a\x1b[2Jb    c\x9b1m" + "\n"
    assert clean("user\u202etxt.exe \u2067 \ud800 \U000e0041") == r"user\u202etxt.exe \u2067 \ud800 \U000e0041"
    assert clean("a family: 👨\u200d👩, שלום") == "a family: 👨\u200d👩, שלום"
    assert excerpt("one\n two" + "o" * 50, 10) == "one twooo…"
    assert excerpt({"a": 1}, 20) == '{"a":1}'


def test_live_line_is_redrawn_and_removed() -> None:
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
