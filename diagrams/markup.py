"""SVG markup from Python values: elements, wrapped text, rounded paths. Presentation attributes only.

A page with a strict content security policy drops style elements and style attributes, so there are none; a
page's own style sheet wins over every attribute written here.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

Point = tuple[float, float]

SANS: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

GLYPH_WIDTH: Final = 0.53
"""The mean width of a letter of a plain sans-serif, in font sizes. There is no font to measure."""


@dataclass(frozen=True, slots=True)
class Pen:
    """How a text is set."""

    size: float
    fill: str
    weight: str | None = None
    anchor: str = "start"
    family: str | None = None

    @property
    def attributes(self) -> dict[str, str | float | None]:
        """The attributes of a text in this pen, except where it stands."""
        return {"font_size": self.size, "fill": self.fill, "font_weight": self.weight, "font_family": self.family}

    def lines(self, words: str, width: float) -> list[str]:
        """Break words into lines that should fit a width."""
        return textwrap.wrap(words, int(width / (self.size * GLYPH_WIDTH)), break_long_words=False)


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


def spans(at: Point, pieces: Sequence[tuple[str, Pen]], *, anchor: str, **attributes: str | float | None) -> str:
    """Return one line of text in several pens."""
    children = [
        tag("tspan", escape(words), **pen.attributes, dx=4 if place else None)
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
