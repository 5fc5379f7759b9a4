"""Arrows, their heads and their labels, where a layout puts them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from turnwise.diagrams.layout import Route
from turnwise.diagrams.markup import Anchor, Block, Point, rounded, tag

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
