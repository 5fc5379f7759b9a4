"""The picture as SVG: laid out by ELK, drawn from the table, self-contained, without fonts, styles or scripts."""

from __future__ import annotations

from typing import Final

from turnwise.diagrams.document import arrow, arrowhead, drawn_label, heading
from turnwise.diagrams.graph import PADDING, Drawn, machine_graph
from turnwise.diagrams.grouping import GROUPS, Arrow, arrows, captions
from turnwise.diagrams.layout import Box, Layout, layout_of, outline
from turnwise.diagrams.markup import MONO, SANS, Pen, tag, text, title
from turnwise.diagrams.model import Node, machine
from turnwise.diagrams.palette import INK, KIND_TINT, LIT, MUTED, PAPER, PARTY_INK
from turnwise.diagrams.rows import WIDTH, drawn_rows
from turnwise.states.values.checked import checked

_MARGIN: Final = 40.0
_TOP: Final = 96.0


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
    drawn = machine_graph(picture, arrows(picture))
    layout = layout_of(drawn.graph).moved(_MARGIN, _TOP)
    firing = {line.party for one in drawn.arrows for line in one.lines}
    parties = [party for party in PARTY_INK if party in firing]
    width, height = max(WIDTH, layout.size.width + 2 * _MARGIN), _TOP + layout.size.height + _MARGIN
    listed, height = drawn_rows(picture, height) if rows else ("", height)
    current_words = f" The chat stands in {current}." if current else ""
    document = tag(
        "svg",
        title("The life of a chat"),
        tag("desc", f"The states of a chat and every trigger that leads from one to another.{current_words}"),
        tag("defs", *(arrowhead(PARTY_INK[party]) for party in parties)),
        tag("rect", width=width, height=height, rx=14, fill=PAPER),
        heading(parties),
        *(_edge(one, layout, drawn) for one in drawn.arrows),
        *(_group(name, layout.nodes[name], drawn) for name in GROUPS),
        *(_node(node, layout.nodes[node.id], drawn, lit=node.id == current) for node in picture.nodes),
        *([listed] if rows else []),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        font_family=SANS,
    )
    return document + "\n"


def _edge(one: Arrow, layout: Layout, drawn: Drawn) -> str:
    labels = captions(one.lines)
    rows = "\n".join(str(line) for line in one.lines)
    route = layout.route(one.origin, one.target)
    return tag(
        "g",
        title(f"{', '.join(one.sources)} to {one.target}\n{rows}"),
        arrow(route.points, PARTY_INK[labels[0].party]),
        drawn_label(drawn.graph.edges[one.origin, one.target], route),
        class_="edge",
        data_source=" ".join(one.sources),
        data_target=one.target,
        data_triggers=" ".join(trigger for caption in labels for trigger in caption.triggers),
    )


def _group(name: str, box: Box, drawn: Drawn) -> str:
    return tag(
        "g",
        outline(
            box,
            12,
            fill=PAPER,
            stroke=MUTED,
            stroke_dasharray="5 4",
        ),
        *_inside(name, box, drawn),
        class_="group",
        data_members=" ".join(GROUPS[name]),
        data_stays=" ".join(drawn.stays.get(name, ())) or None,
    )


def _node(node: Node, box: Box, drawn: Drawn, *, lit: bool) -> str:
    if node.kind == "start":
        return _start(node, box)
    fill, stroke = LIT if lit else KIND_TINT[node.kind]
    return tag(
        "g",
        title("\n".join([node.id, *(invariant.meaning for invariant in node.invariants)])),
        outline(
            box,
            12,
            fill=fill,
            stroke=stroke,
            stroke_width=3 if lit else 1.5,
            stroke_dasharray="4 3" if node.kind == "unknown" else None,
        ),
        *_inside(node.id, box, drawn),
        class_="state current" if lit else "state",
        data_state=node.id,
        data_kind=node.kind,
        data_stays=" ".join(drawn.stays.get(node.id, ())) or None,
    )


def _inside(name: str, box: Box, drawn: Drawn) -> list[str]:
    return drawn.texts[name].drawn((box.x + PADDING, box.y + PADDING))


def _start(node: Node, box: Box) -> str:
    radius = box.width / 2
    return tag(
        "g",
        title(node.id),
        tag("circle", cx=box.x + radius, cy=box.y + radius, r=radius, fill=KIND_TINT["start"].fill),
        text((box.x + box.width + 8, box.y + radius + 4), node.id, Pen(13, INK, "bold", family=MONO)),
        class_="start",
        data_state=node.id,
    )
