"""The screen and the keyboard: text that scrolls while only the line under way is redrawn, and lines that are typed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final, Self

from rich.cells import cell_len, chop_cells
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from turnwise.cli.style import MAX_WIDTH, clean, console, trail
from turnwise.states.calls import ToolCall, ToolResult

MARGIN: Final = "  "
MIN_WIDTH: Final = 20
REDRAWS_PER_SECOND: Final = 12
_INDENT: Final = 4
"""Cells by which a line of a paragraph stands deeper than the one that it belongs to."""


class Scroll:
    """Prints text as it comes, of any length, above one live line. Without a terminal it prints only whole lines.

    Inside `with`, on a terminal, the line under way and a status stay at the bottom of the screen.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.tail = ""
        """The line under way."""
        self._style = ""
        self.status: Text | None = None
        """The status in the live line."""
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Show the live line."""
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._below,
                console=self._console,
                refresh_per_second=REDRAWS_PER_SECOND,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_failure: object) -> None:
        """Print what is under way and take the live line away."""
        self.end_line()
        if self._live is not None:
            self._live.stop()

    @property
    def width(self) -> int:
        """The cells that a line may fill."""
        return max(min(self._console.width, MAX_WIDTH) - len(MARGIN) - 1, MIN_WIDTH)

    def write(self, text: str, *, style: str = "") -> None:
        """Add to the line under way; a change of style begins a new line."""
        if style != self._style:
            self.end_line()
            self._style = style
        lines, self.tail = wrapped(self.tail + clean(text), self.width)
        for line in lines:
            self._put(Text(line, style=style))

    def end_line(self) -> None:
        """Print the line under way, if there is one."""
        tail, self.tail = self.tail, ""
        if tail.strip():
            self._put(Text(tail, style=self._style))

    def line(self, text: Text) -> None:
        """Print one line within the margin, cut where the screen ends."""
        self.end_line()
        text.truncate(self.width, overflow="ellipsis")
        self._put(text)

    def paragraph(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Print a text of any length, whole; its further lines stand deeper than its first."""
        self.end_line()
        lines, last = wrapped(text, self.width - _INDENT * (indent + 1))
        for number, line in enumerate([*lines, last]):
            depth = indent if number == 0 else indent + 1
            self._put(Text(" " * _INDENT * depth + line, style=style))

    def user_message(self, text: str) -> None:
        """Print a message of the user."""
        self.end_line()
        lines, last = wrapped(clean(text), self.width)
        for number, line in enumerate([*lines, last]):
            mark = ("» ", "bold green") if number == 0 else MARGIN
            self._console.print(Text.assemble(mark, (line, "bold")), soft_wrap=True)

    def trail(self, states: Sequence[str]) -> None:
        """Print the states that a chat went through."""
        self.end_line()
        self._console.print(Padding(trail(states), (0, 0, 0, len(MARGIN)), expand=False), width=self.width)

    def _put(self, text: Text) -> None:
        self._console.print(Text.assemble(MARGIN, text), soft_wrap=True)

    def _below(self) -> RenderableType:
        tail = [Text(MARGIN + self.tail, style=self._style)] if self.tail else []
        if self.status is None:
            return Group(*tail)
        self._spinner.update(text=self.status)
        return Group(*tail, self._spinner)


def wrapped(text: str, width: int) -> tuple[list[str], str]:
    """Return the complete lines, and the rest, which the caller puts before the next piece."""
    *lines, rest = [line for paragraph in text.split("\n") for line in _lines_of(paragraph, width)]
    return lines, rest


def _lines_of(paragraph: str, width: int) -> Iterator[str]:
    start = 0
    while (fits := _fits(paragraph, start, width)) < len(paragraph) - start:
        space = paragraph.rfind(" ", start, start + fits + 1)
        end = space if space > start else start + fits
        yield paragraph[start:end]
        start = end + 1 if end == space else end
    yield paragraph[start:]


def _fits(paragraph: str, start: int, width: int) -> int:
    """Return how many characters from `start` on fill no more than `width` cells, without measuring all of the text."""
    taken = width + 1
    while cell_len(piece := paragraph[start : start + taken]) <= width:
        if start + taken >= len(paragraph):
            return len(piece)
        taken *= 2  # some characters fill no cell
    return len(chop_cells(piece, width)[0])


PROMPT: Final = "» "
COMMANDS: Final = ("/help", "/state", "/resume", "/compact", "/clear", "/quit")
STEER: Final = "/steer "
"""Begins a line that steers the turn under way."""


def is_command(line: str) -> bool:
    """Return whether a typed line is a command, and no message or answer."""
    return line in COMMANDS or line.startswith(STEER)


def typed(prompt: str) -> str:
    """Return the next line; print a line from a pipe, which no terminal has shown."""
    line = input(prompt).strip()
    if not sys.stdin.isatty():
        console.print(clean(line))
    return line


def question_of(call: ToolCall) -> str:
    """Return the prompt for a person's answer to a client's call."""
    return f"  allow {clean(call.name)}? (y/n) " if call.approval == "asked" else f"  {clean(call.name)}: "


def answer_to(call: ToolCall, line: str) -> ToolResult:
    """Return a typed line as the result of a client's call; "y" and "yes" approve it."""
    return ToolResult(call.call_id, line.lower() in ("y", "yes") if call.approval == "asked" else line)
