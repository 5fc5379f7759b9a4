"""Printed output with its styles: `[bold]word[/]`, and a `~` for each blank at a line's end."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Final

import pytest
from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.style import Style
from rich.text import Text

from turnwise.cli import style

WIDTH: Final = 100
_COLOURS: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def look(*shown: RenderableType, width: int = WIDTH) -> list[str]:
    screen = screen_of(width)
    for one in shown:
        screen.print(one)
    return lines_of(screen)


def screen_of(width: int = WIDTH) -> Console:
    return Console(file=io.StringIO(), width=width, color_system="standard", highlight=False, _environ={})


def lines_of(screen: Console) -> list[str]:
    return marked(screen.file.getvalue())


def marked(printed: str) -> list[str]:
    """Return printed lines with their styles as markup."""
    lines = [_spelled(Text.from_ansi(line)) for line in printed.splitlines()]
    return [re.sub(r" +$", lambda blanks: "~" * len(blanks.group()), line) for line in lines]


@contextmanager
def colours(*, width: int = WIDTH) -> Iterator[None]:
    """Make commands of this process print with a terminal's width and colours."""
    with pytest.MonkeyPatch.context() as patch:
        for console in (style.console, style.errors):
            patch.setattr(console, "_color_system", ColorSystem.STANDARD)
            patch.setattr(console, "no_color", False)
            patch.setattr(console, "_width", width)
            patch.setattr(console, "_height", 50)
        yield


def _spelled(text: Text) -> str:
    console = Console(_environ={})
    styles = [text.get_style_at_offset(console, place) for place in range(len(text))]
    runs = groupby(zip(text.plain, styles, strict=True), key=lambda one: one[1])
    reported = ((_name(of), "".join(letter for letter, _ in letters)) for of, letters in runs)
    return "".join(f"[{name}]{letters}[/]" if name else letters for name, letters in reported)


def _name(of: Style) -> str:
    kinds = [kind for kind in ("bold", "dim", "italic") if getattr(of, kind)]
    number = of.color.number if of.color is not None else None
    return " ".join([*kinds, *([_COLOURS[number]] if number is not None else [])])
