"""What the drawings share: arrows with their labels, the key to tints and arrows, and the document around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from turnwise.diagrams.layout import Route
from turnwise.diagrams.markup import SANS, Anchor, Block, Pen, Point, rounded, tag, text, title
from turnwise.diagrams.model import Kind
from turnwise.diagrams.palette import INK, KIND_TINT, MUTED, PAPER, PARTY_INK
from turnwise.states.names import Party

BESIDE: Final = 10.0
"""How far from its label an arrow passes at most."""


def arrow(points: Sequence[Point], ink: str, *, bold: bool = False) -> str:
    """Return a line in an ink, with its arrowhead."""
    return tag(
        "path",
        d=rounded(points, 8),
        fill="none",
        stroke=ink,
        stroke_width=2.5 if bold else 1.5,
        marker_end=f"url(#{_head_id(ink)})",
    )


def arrowhead(ink: str) -> str:
    """Return the definition that the arrows of an ink refer to."""
    return tag(
        "marker",
        tag("path", d="M0,0.5 L9,4 L0,7.5 L2,4 Z", fill=ink),
        id=_head_id(ink),
        viewBox="0 0 9 8",
        refX=8.5,
        refY=4,
        markerWidth=10,
        markerHeight=9,
        markerUnits="userSpaceOnUse",
        orient="auto",
    )


def drawn_label(block: Block, route: Route) -> str:
    """Return a label in the room that its route has for it, on the side where the arrow passes."""
    box = route.label
    anchor = _side(route)
    x = {"start": box.x, "middle": box.x + box.width / 2, "end": box.x + box.width}[anchor]
    down = (box.height - block.height) / 2
    return tag("g", *block.drawn((x, box.y + down), anchor), class_="label")


def _side(route: Route) -> Anchor:
    """Return where an upright part of the arrow passes the label; none does where it passes above or below."""
    box = route.label
    middle = box.y + box.height / 2
    for (x, y), (other, end) in pairwise(route.points):
        if x == other and min(y, end) <= middle <= max(y, end):
            if 0 <= x - box.x - box.width <= BESIDE:
                return "end"
            if 0 <= box.x - x <= BESIDE:
                return "start"
    return "middle"


def _head_id(ink: str) -> str:
    return f"turnwise-arrow-{ink.removeprefix('#')}"


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
    return image(
        heading,
        text((60, 50), heading, _HEAD),
        *(text((60, 74 + place * 17), line, _BELOW) for place, line in enumerate(_BELOW.lines(below, width - 120))),
        *elements,
        width=width,
        height=height,
        data_graph=data_graph,
    )


def image(name: str, *elements: str, width: float, height: float, data_graph: str | None = None) -> str:
    """Return an SVG document of elements on paper."""
    drawing = tag(
        "svg",
        title(name),
        tag("rect", width=width, height=height, rx=14, fill=PAPER),
        *elements,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        font_family=SANS,
        data_graph=data_graph,
    )
    return drawing + "\n"
