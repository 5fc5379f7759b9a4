"""SVG markup from Python values: elements, wrapped text, rounded paths. Presentation attributes only.

A page with a strict content security policy drops style elements and style attributes, so there are none; a
page's own style sheet wins over every attribute written here.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Final, Literal
from xml.sax.saxutils import escape, quoteattr

import msgspec

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

SANS: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

GLYPH_WIDTH: Final = 0.6
"""The width of a letter in font sizes: of every letter of a monospaced font, and no less than the mean of a plain one.

There is no font to measure.
"""


class Pen(msgspec.Struct, frozen=True):
    """How a text is set."""

    size: float
    fill: str
    weight: str | None = None
    anchor: Anchor = "start"
    family: str | None = None

    @property
    def attributes(self) -> dict[str, str | float | None]:
        """The attributes of a text in this pen, except where it stands."""
        return {"font_size": self.size, "fill": self.fill, "font_weight": self.weight, "font_family": self.family}

    def width(self, words: str) -> float:
        """Return the maximum width of words, in a language with small letters."""
        return len(words) * self.size * GLYPH_WIDTH

    def lines(self, words: str, width: float) -> list[str]:
        """Break words into lines that fit a width."""
        return textwrap.wrap(words, int(width / (self.size * GLYPH_WIDTH)), break_long_words=False)


Piece = tuple[str, Pen]
"""Words, and how they are set."""

_GAP: Final = 5.0
"""Between two pieces of a line."""


class Block(msgspec.Struct, frozen=True):
    """Lines of text, one below the other, each of pieces that stand side by side."""

    lines: tuple[tuple[Piece, ...], ...]

    @property
    def width(self) -> int:
        lines = (sum(pen.width(words) for words, pen in line) + _GAP * (len(line) - 1) for line in self.lines)
        return ceil(max(lines, default=0))

    @property
    def height(self) -> int:
        return ceil(sum(_leading(line) for line in self.lines))

    def drawn(self, at: Point, anchor: Anchor = "start", **attributes: str | float | None) -> list[str]:
        """Return the lines below a point, at which each of them starts, ends or has its middle."""
        x, y = at
        drawn = []
        for line in self.lines:
            y += _leading(line)
            drawn.append(_spans((x, y - 0.3 * line[0][1].size), line, anchor=anchor, **attributes))
        return drawn


def _leading(line: Sequence[Piece]) -> float:
    return max(1.25 * pen.size for _, pen in line)


def tag(name: str, *children: str, **attributes: str | float | None) -> str:
    """Return an element. `data_state` becomes `data-state`, `class_` becomes `class`; `None` is left out."""
    text = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_plain(value))}"
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return f"<{name}{text}/>"
    separator = "" if name in ("text", "tspan", "title", "desc") else "\n"
    return f"<{name}{text}>{separator}{separator.join(children)}{separator}</{name}>"


def legible(words: str) -> str:
    r"""Return words of a chat as they may stand in a picture: what XML has not, or hides or turns text, as `\u202e`."""
    return "".join(one.encode("unicode_escape", "backslashreplace").decode() if _hides(one) else one for one in words)


def _hides(character: str) -> bool:
    return character != " " and (unicodedata.category(character)[0] in "CZ" or character in "\ufffe\uffff")


def text(at: Point, words: str, pen: Pen) -> str:
    """Return one line of text whose baseline starts or ends at a point."""
    return _line(at, [escape(words)], pen.anchor, **pen.attributes)


def _spans(at: Point, pieces: Sequence[Piece], *, anchor: str, **attributes: str | float | None) -> str:
    """Return one line of text in several pens."""
    children = [
        tag("tspan", escape(words), **pen.attributes, dx=_GAP if place else None)
        for place, (words, pen) in enumerate(pieces)
    ]
    return _line(at, children, anchor, **attributes)


def title(words: str) -> str:
    """Return a title: a screen reader reads it, and a pointer shows it."""
    return tag("title", escape(words))


def rounded(points: Sequence[Point], radius: float = 16) -> str:
    """Return the path through points, its corners rounded."""
    moves = [f"M{_pair(points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        start, end = _towards(corner, before, radius), _towards(corner, after, radius)
        moves.append(f"L{_pair(start)} Q{_pair(corner)} {_pair(end)}")
    moves.append(f"L{_pair(points[-1])}")
    return " ".join(moves)


def _line(at: Point, children: Iterable[str], anchor: str, **attributes: str | float | None) -> str:
    return tag("text", *children, x=at[0], y=at[1], text_anchor=None if anchor == "start" else anchor, **attributes)


def _towards(start: Point, goal: Point, distance: float) -> Point:
    dx, dy = goal[0] - start[0], goal[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    part = min(distance, length / 2) / length
    return start[0] + dx * part, start[1] + dy * part


def _pair(point: Iterable[float]) -> str:
    return ",".join(_plain(value) for value in point)


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
