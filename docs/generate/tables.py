"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a cell may hold several lines, and any character."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines)


def cell(text: str) -> str:
    """Return a text in one line, with no end of a cell in it."""
    return " ".join(text.split()).replace("|", "\\|")


def code(value: object) -> str:
    """Return a value as code; nothing for nothing."""
    return f"`{value}`" if str(value) else ""
