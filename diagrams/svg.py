"""The picture as SVG: laid out by hand, drawn from the table, self-contained, without fonts, styles or scripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from turnwise.diagrams import layout
from turnwise.diagrams.caption import Caption, captions
from turnwise.diagrams.extract import machine
from turnwise.diagrams.grouping import GROUPS, SAME, Arrow, arrows
from turnwise.diagrams.layout import Box, Route
from turnwise.diagrams.legend import arrow, arrowhead, heading
from turnwise.diagrams.markup import MONO, SANS, Pen, Point, rounded, spans, tag, text, title
from turnwise.diagrams.model import Node
from turnwise.diagrams.palette import FRAME, INK, KIND_TINT, LIT, MUTED, PAPER, PARTY_INK
from turnwise.diagrams.rows import drawn_rows
from turnwise.states.checked import checked

_NAME: Final = Pen(15, INK, "bold", family=MONO)
_GROUP_NAME: Final = Pen(13, MUTED, "bold", family=MONO)
_BODY: Final = Pen(11.5, INK)
_SMALL: Final = Pen(10.5, MUTED)
_RIGHT: Final = Pen(10.5, MUTED, anchor="end")
_HALO: Final = {"stroke": PAPER, "stroke_width": "4", "stroke_linejoin": "round", "paint_order": "stroke"}
_LEADING: Final = 14.0
_MARGIN: Final = 13.0


@checked
def svg(state: str | None = None, *, rows: bool = True) -> str:
    """Return the machine as an SVG document, with `state` lit; `rows=False` leaves out the list below the graph.

    Every place is a group with `data-state`; the lit one has the classes `state current`. Every arrow is a group with
    `data-source` (all states it leaves), `data-target` and `data-triggers`.

    Raises:
        NoSuchState: `state` is no state of the machine.
    """
    picture = machine()
    current = picture.current(state)
    gathered = arrows(picture)
    ways = [(one, way) for one in gathered if (way := layout.route(one.origin, one.target))]
    firing = {line.party for one, _ in ways for line in one.lines}
    drawn = [party for party in PARTY_INK if party in firing]
    listed, height = drawn_rows(picture, layout.HEIGHT) if rows else ("", layout.HEIGHT)
    standing = f" The chat stands in {current}." if current else ""
    document = tag(
        "svg",
        title("The life of a chat"),
        tag("desc", f"The states of a chat and every trigger that leads from one to another.{standing}"),
        tag("defs", *(arrowhead(party) for party in drawn)),
        tag("rect", width=layout.WIDTH, height=height, rx=14, fill=PAPER),
        heading(drawn),
        *(_frame(name, _stays(name, gathered)) for name in GROUPS),
        *(_edge(one, way) for one, way in ways),
        *(_node(node, _stays(node.id, gathered), lit=node.id == current) for node in picture.nodes),
        *([listed] if rows else []),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {layout.WIDTH} {height:.0f}",
        role="img",
        font_family=SANS,
    )
    return document + "\n"


def _stays(origin: str, gathered: Iterable[Arrow]) -> tuple[str, ...]:
    """Return the triggers on which a state, or every state of a group, stays as it is."""
    staying = (one for one in gathered if (one.origin, one.target) == (origin, SAME))
    return tuple(dict.fromkeys(line.trigger for one in staying for line in one.lines))


def _frame(name: str, stays: tuple[str, ...]) -> str:
    box = layout.FRAMES[name]
    (x, y), width = layout.FRAME_TEXT[name]
    fill, stroke = FRAME
    return tag(
        "g",
        tag("rect", **asdict(box), rx=16, fill=fill, fill_opacity=0.035, stroke=stroke, stroke_dasharray="5 4"),
        text((x, y), name, _GROUP_NAME),
        *_stay_text((x, y + 20), stays, width),
        class_="frame",
        data_members=" ".join(GROUPS[name]),
        data_stays=" ".join(stays) or None,
    )


def _edge(one: Arrow, way: Route) -> str:
    labels = captions(one.lines)
    rows = "\n".join(str(line) for line in one.lines)
    return tag(
        "g",
        title(f"{', '.join(one.sources)} to {one.target}\n{rows}"),
        arrow(rounded(way.points), labels[0].party),
        *_label(labels, way),
        class_="edge",
        data_source=" ".join(one.sources),
        data_target=one.target,
        data_triggers=" ".join(trigger for caption in labels for trigger in caption.triggers),
    )


def _label(labels: Iterable[Caption], way: Route) -> list[str]:
    lines = [pieces for caption in labels for pieces in _pieces(caption, stacked=way.stacked)]
    x, y = way.label
    height = _LEADING * len(lines)
    first = {"above": y - height + _LEADING, "below": y + _LEADING, "beside": y - height / 2 + 10}[way.lift]
    return [
        spans((x, first + place * _LEADING), pieces, anchor=way.anchor, **_HALO) for place, pieces in enumerate(lines)
    ]


def _pieces(caption: Caption, *, stacked: bool) -> list[list[tuple[str, Pen]]]:
    pen = Pen(11.5, PARTY_INK[caption.party], "600")
    condition = [(f"[{caption.condition}]", _SMALL)] if caption.condition else []
    if not stacked:
        return [[(", ".join(caption.triggers), pen), *condition]]
    return [[(trigger, pen)] for trigger in caption.triggers] + ([condition] if condition else [])


def _node(node: Node, stays: tuple[str, ...], *, lit: bool) -> str:
    box = layout.BOXES[node.id]
    if node.kind == "start":
        return _start(node, box)
    fill, stroke = LIT if lit else KIND_TINT[node.kind]
    border = {"stroke": stroke, "stroke_width": 3 if lit else 1.5}
    dashes = "4 3" if node.kind == "unknown" else None
    return tag(
        "g",
        title("\n".join([node.id, *(promise.meaning for promise in node.promise)])),
        tag("rect", **asdict(box), rx=12, fill=fill, **border, stroke_dasharray=dashes),
        *_inside(node, box, stays),
        class_="state current" if lit else "state",
        data_state=node.id,
        data_kind=node.kind,
        data_stays=" ".join(stays) or None,
    )


def _inside(node: Node, box: Box, stays: tuple[str, ...]) -> list[str]:
    x, y = box.x + _MARGIN, box.y + 24
    width = box.width - 2 * _MARGIN
    promise = _BODY.lines(", ".join(one.words for one in node.promise), width)
    return [
        text((x, y), node.id, _NAME),
        *([text((x + width, y), f"job {node.job}", _RIGHT)] if node.job else []),
        *(text((x, y + 22 + place * (_LEADING + 1)), line, _BODY) for place, line in enumerate(promise)),
        *_stay_text((x, y + 27 + len(promise) * (_LEADING + 1)), stays, width),
    ]


def _stay_text(at: Point, stays: tuple[str, ...], width: float) -> list[str]:
    lines = _SMALL.lines("stays on " + ", ".join(stays), width) if stays else []
    return [text((at[0], at[1] + place * _LEADING), line, _SMALL) for place, line in enumerate(lines)]


def _start(node: Node, box: Box) -> str:
    x, y, radius = box.x + box.width / 2, box.y + box.height / 2, box.width / 2
    return tag(
        "g",
        title(node.id),
        tag("circle", cx=x, cy=y, r=radius, fill=KIND_TINT["start"].fill),
        text((x + radius + 8, y + 4), node.id, _GROUP_NAME),
        class_="start",
        data_state=node.id,
    )
