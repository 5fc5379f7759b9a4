"""The heads of the pictures: their titles, and what tints and arrows mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from turnwise.diagrams.arrows import arrow
from turnwise.diagrams.markup import SANS, Pen, tag, text, title
from turnwise.diagrams.model import Kind
from turnwise.diagrams.palette import INK, KIND_TINT, MUTED, PAPER, PARTY_INK
from turnwise.states.names import Party

KIND_WORDS: Final[dict[Kind, str]] = {"resting": "at rest", "claimable": "to be claimed", "leased": "held by a worker"}

_HEAD: Final = Pen(26, INK, "bold")
_BELOW: Final = Pen(13, MUTED)
_WORDS: Final = Pen(12, INK)
_LEFT: Final = 700.0
_GAP: Final = 22.0


def heading(parties: Iterable[Party]) -> str:
    """Return the title and the key to the tints and to the arrows of these parties."""
    pieces = [
        text((40, 48), "The life of a chat", _HEAD),
        text((40, 72), "An arrow from a dashed box leaves each of the states that the box names.", _BELOW),
    ]
    x = _LEFT
    for kind, words in KIND_WORDS.items():
        fill, stroke = KIND_TINT[kind]
        pieces.append(tag("rect", x=x, y=37, width=22, height=14, rx=4, fill=fill, stroke=stroke))
        pieces.append(text((x + 29, 48), words, _WORDS))
        x += 29 + _WORDS.width(words) + _GAP
    for party in parties:
        words = f"fired by the {party}"
        pieces.append(arrow(((x, 44), (x + 26, 44)), PARTY_INK[party]))
        pieces.append(text((x + 34, 48), words, _WORDS))
        x += 34 + _WORDS.width(words) + _GAP
    return tag("g", *pieces, class_="heading")


def document(
    heading: str, below: str, *elements: str, height: float, width: float, data_graph: str | None = None
) -> str:
    """Return an SVG document with a heading; `data_graph` is the part of it that holds a graph, as a `viewBox`."""
    drawing = tag(
        "svg",
        title(heading),
        tag("rect", width=width, height=height, rx=14, fill=PAPER),
        text((60, 50), heading, _HEAD),
        *(text((60, 74 + place * 17), line, _BELOW) for place, line in enumerate(_BELOW.lines(below, width - 120))),
        *elements,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        font_family=SANS,
        data_graph=data_graph,
    )
    return drawing + "\n"
