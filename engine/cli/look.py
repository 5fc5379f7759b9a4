"""How things look in a terminal: consoles, the colours of the states, words made fit to print."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import pydantic_core
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise.states.names import ChatState
from turnwise.states.usage import Usage

console: Final = Console(highlight=False)
errors: Final = Console(stderr=True, highlight=False)

MAX_WIDTH: Final = 100
"""Cells beyond which lines of prose are tiring to read."""

STATE_STYLE: Final[dict[str, str]] = {
    ChatState.waiting: "green",
    ChatState.pending: "yellow",
    ChatState.streaming: "cyan",
    ChatState.executing_tools: "blue",
    ChatState.compacting: "magenta",
    ChatState.requires_action: "bold yellow",
    ChatState.interrupted: "bold magenta",
    ChatState.error: "bold red",
}

_CONTROL: Final = {code: None for code in (*range(32), 127, *range(128, 160)) if code != ord("\n")} | {
    ord("\t"): "    "
}


def clean(text: str) -> str:
    """Return the text without what would steer the terminal: models and files may say anything."""
    return text.translate(_CONTROL)


def excerpt(value: object, length: int) -> str:
    """Return a value in one line of at most `length` characters."""
    text = value if isinstance(value, str) else pydantic_core.to_json(value, fallback=str).decode()
    words = " ".join(clean(text).split())
    return words if len(words) <= length else f"{words[: max(length - 1, 0)].rstrip()}…"


def state_text(state: str) -> Text:
    """Return a state's name in its colour."""
    return Text(str(state), style=STATE_STYLE.get(state, ""))


def trail(states: Iterable[str]) -> Text:
    """Return the states that a chat went through."""
    return Text(" → ", style="dim").join([state_text(state) for state in states])


def clock_time(at: datetime | None) -> str:
    """Return the time of day, to the millisecond, in UTC."""
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}" if at is not None else ""


def tokens(usage: Usage) -> str:
    """Return what was used, in words; what nobody reported is not zero."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return "tokens unknown"
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{' at least' if usage.partial else ''}"


def plain_table(*columns: str, title: str | None = None) -> Table:
    """Return a table with a head and no frame."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_json(value: Any) -> None:
    """Print a value as JSON, as it is: no colours, no wrapping."""
    sys.stdout.write(pydantic_core.to_json(value, indent=2).decode() + "\n")
