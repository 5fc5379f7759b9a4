"""The look of the terminal: consoles, the colours of the states, text made safe to print."""

from __future__ import annotations

import codecs
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import pydantic_core
import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from turnwise.states.names import SPECS
from turnwise.states.usage import Usage
from turnwise.states.values.values import fields_of


def _width() -> int | None:
    """Return the width if `COLUMNS` is set: a 0 means unknown, but rich would show nothing."""
    return shutil.get_terminal_size().columns if os.environ.get("COLUMNS", "").isdigit() else None


# Brackets and colons are text of users and models, never rich's markup: what has colours is a `Text`.
console: Final = Console(highlight=False, markup=False, emoji=False, width=_width())
errors: Final = Console(stderr=True, highlight=False, markup=False, emoji=False, width=_width())

_LEAST: Final = Decimal("0.0001")
"""The smallest amount of dollars that is shown as a number."""
_ROOM_FOR_IDS: Final = 60
_LONGEST_WORD: Final = 48
"""Cells of the longest word that a column has to have room for; longer ones are broken."""
_GAP: Final = 2
"""Cells between two columns."""
MAX_WIDTH: Final = 100
"""Cells beyond which lines of prose are tiring to read."""

STATE_STYLE: Final[dict[str, str]] = {state: spec.colour for state, spec in SPECS.items()}


_INVISIBLE: Final = (
    *range(32),
    *range(127, 160),
    0x061C,  # these turn the direction of what follows: a word may look like another
    *range(0x200E, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    0x2028,  # these end a line, or take no room
    0x2029,
    0x200B,
    0x2060,
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xD800, 0xE000),
    *range(0xE0000, 0xE0080),
)
_DELETE: Final = 127
_SPELLED: Final[dict[int, str]] = {
    **{code: chr(code).encode("unicode_escape").decode() for code in _INVISIBLE},
    ord("\n"): "\n",
    ord("\t"): "    ",
    ord("\r"): "",
}
_IN_JSON: Final = {
    _DELETE: r"\u007f",
    **{code: json.dumps(chr(code))[1:-1] for code in _INVISIBLE if code > _DELETE},
}


def clean(text: str) -> str:
    r"""Return the text with characters that control the terminal, or the direction of text, spelled out: `\u202e`."""
    return text.translate(_SPELLED)


def in_json(value: object) -> str:
    """Return any value as JSON in one line."""
    return pydantic_core.to_json(value, fallback=str).decode()


def excerpt(value: object, length: int) -> str:
    """Return a value in one line of at most `length` characters."""
    text = value if isinstance(value, str) else in_json(value)
    words = " ".join(clean(text).split())
    return words if len(words) <= length else f"{words[: max(length - 1, 0)].rstrip()}…"


def state_text(state: str) -> Text:
    """Return a state's name in its colour."""
    return Text(clean(str(state)), style=STATE_STYLE.get(state, ""))


def quiet_logs() -> None:
    """Keep the library's log off the screen. `turnwise worker` shows it."""
    logging.getLogger("turnwise").addHandler(logging.NullHandler())


def show_logs(*, quiet: bool) -> None:
    """Write the library's log to standard error: every transition or, if `quiet`, warnings and errors alone."""
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.raiseExceptions = False  # the reader of the log may leave


def trail(states: Iterable[str]) -> Text:
    """Return the states that a chat went through."""
    return Text(" → ", style="dim").join([state_text(state) for state in states])


def moment(at: datetime | None) -> str:
    """Return date and time, to the millisecond, in UTC."""
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}" if at is not None else ""


def is_narrow() -> bool:
    """Whether the screen only has room for the most important columns."""
    return console.width < MAX_WIDTH - 10


def tokens(usage: Usage) -> str:
    """Describe usage and cost in words. Values that were not reported are unknown, not zero."""
    cost = "" if usage.cost is None else f" · {dollars(usage.cost)}{' at least' if usage.cost_partial else ''}"
    if usage.input_tokens is None or usage.output_tokens is None:
        return f"tokens unknown{cost}"
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{' at least' if usage.partial else ''}{cost}"


def dollars(cost: Decimal) -> str:
    """Return an amount of US dollars: in cents, or more exactly if it is less than a dollar."""
    if 0 < cost < _LEAST:
        return f"under ${_LEAST}"
    return f"${cost:,.2f}" if cost >= 1 or not cost else f"${cost:.4f}"


class _PlainTable(Table):
    """A table that cuts no word. On a narrow screen each cell gets a line with the name of its column."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[column.header, *column.cells] if self.show_header else [*column.cells] for column in self.columns]
        measured = [[Measurement.get(console, options, cell) for cell in column] for column in cells]
        most = [max((one.maximum for one in column), default=0) for column in measured]
        words = [min(max((one.minimum for one in column), default=0), _LONGEST_WORD) for column in measured]
        least = [max(word, column.min_width or 0) for word, column in zip(words, self.columns, strict=True)]
        rest = options.max_width - _GAP * (len(cells) - 1) - sum(least)
        if rest < 0 and self.show_header:
            yield self._cell_by_cell()
            return
        if rest < 0:
            least[-1] = max(1, least[-1] + rest)
        # Columns that need little get it; those that need more share the rest.
        by_need = sorted(range(len(cells)), key=lambda place: most[place] - least[place])
        for done, place in enumerate(by_need):
            more = max(0, min(most[place] - least[place], rest // (len(cells) - done)))
            self.columns[place].width = least[place] + more
            rest -= more
        yield from super().__rich_console__(console, options)

    def _cell_by_cell(self) -> Table:
        lines = labelled(())
        for row in zip(*(column.cells for column in self.columns), strict=True):
            if lines.row_count:
                lines.add_row()
            for column, cell in zip(self.columns, row, strict=True):
                if str(cell):
                    lines.add_row(Text(str(column.header), style="dim"), cell)
        return lines


def plain_table(*columns: str) -> Table:
    """Return a table without a frame, and with a head unless its columns have no names. People copy ids of chats."""
    table = _PlainTable(box=None, show_header=any(columns), header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "chat" and console.width >= _ROOM_FOR_IDS)
    return table


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """Return lines of text, each behind a faint label."""
    table = plain_table("", "")
    for label, text in rows:
        table.add_row(Text(f"  {label}", style="dim"), Text(clean(text)))
    return table


class Report(msgspec.Struct, frozen=True):
    """The result of a command: a value for programs, and how a person sees it."""

    value: Any
    shown: RenderableType | Callable[[], object]
    """What is printed, or a function that prints it."""
    code: int = 0
    """The exit code."""

    def print(self, *, as_json: bool) -> None:
        """Print the report; raise `typer.Exit` with a code other than 0."""
        if as_json:
            print_json(self.value)
        elif callable(self.shown):
            self.shown()
        else:
            console.print(self.shown)
        if self.code:
            raise typer.Exit(self.code)


def print_json(value: Any) -> None:
    """Print a value as JSON, with characters that control the terminal escaped; without UTF-8, all beyond ASCII."""
    in_ascii = codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    text = pydantic_core.to_json(value, indent=2, ensure_ascii=in_ascii, fallback=fields_of).decode()
    sys.stdout.write(f"{text.translate(_IN_JSON)}\n")
