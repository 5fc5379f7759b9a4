"""The machine as SVG: the graph, laid out by ELK, and every row of the table. No fonts, styles or scripts."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from turnwise.diagrams.document import arrow, arrowhead, drawn_label, heading, image
from turnwise.diagrams.graph import GROUPS, PADDING, Arrow, Drawn, TableEntry, captions, entries, machine_graph
from turnwise.diagrams.layout import Box, Layout, layout_of, outline
from turnwise.diagrams.markup import MONO, Pen, tag, text, title
from turnwise.diagrams.model import Node, Picture, machine, meaning
from turnwise.diagrams.palette import FAINT, INK, KIND_TINT, LIT, MUTED, PAPER, PARTY_INK
from turnwise.states.values.checked import checked

_MARGIN: Final = 40.0
_TOP: Final = 96.0
WIDTH: Final = 1680
COLUMNS: Final = {
    "trigger": (40.0, 140.0),
    "from": (185.0, 250.0),
    "to": (445.0, 120.0),
    "when": (570.0, 340.0),
    "actions": (920.0, 720.0),
}
"""Where each column starts and how wide it is."""

_HEAD: Final = Pen(11, MUTED, "bold")
_CELL: Final = Pen(11, INK)
_LEADING: Final = 14
_RIGHT: Final = 1640


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
    drawn = machine_graph(picture)
    layout = layout_of(drawn.graph).moved(_MARGIN, _TOP)
    firing = {line.party for one in drawn.arrows for line in one.lines}
    parties = [party for party in PARTY_INK if party in firing]
    width, height = max(WIDTH, layout.size.width + 2 * _MARGIN), _TOP + layout.size.height + _MARGIN
    drawn_rows, height = _draw_list(picture, height) if rows else ("", height)
    current_words = f" The chat stands in {current}." if current else ""
    return image(
        "The life of a chat",
        tag("desc", f"The states of a chat and every trigger that leads from one to another.{current_words}"),
        tag("defs", *(arrowhead(PARTY_INK[party]) for party in parties)),
        heading(parties),
        *(_edge(one, layout, drawn) for one in drawn.arrows),
        *(_group(name, layout.nodes[name], drawn) for name in GROUPS),
        *(_node(node, layout.nodes[node.id], drawn, lit=node.id == current) for node in picture.nodes),
        *([drawn_rows] if rows else []),
        width=width,
        height=height,
    )


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
        outline(box, 12, fill=PAPER, stroke=MUTED, stroke_dasharray="5 4"),
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
        title("\n".join([node.id, *map(meaning, node.invariants)])),
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


@checked
def table() -> str:
    """Return every row of the table as an SVG document of its own."""
    drawn, height = _draw_list(machine(), 0)
    return image("Every row of the table", drawn, width=WIDTH, height=height)


def _draw_list(picture: Picture, top: float) -> tuple[str, float]:
    """Return the list as one group of elements, and the height at which it ends."""
    y = top + 20
    pieces = [text((40, y), "Every row", Pen(18, INK, "bold"))]
    for party, fired in groupby(entries(picture), key=lambda entry: entry.line.party):
        pieces.append(text((40, y + 34), f"fired by the {party}", Pen(13, PARTY_INK[party], "bold")))
        pieces += [text((x, y + 54), name, _HEAD) for name, (x, _) in COLUMNS.items()]
        y += 62
        for _, rows in groupby(fired, key=lambda entry: entry.line.trigger):
            pieces.append(tag("path", d=f"M40,{y:.1f} H{_RIGHT}", stroke=FAINT))
            for place, entry in enumerate(rows):
                drawn, height = _row(entry, y, Pen(11, PARTY_INK[party], "600"), named=place == 0)
                pieces.append(drawn)
                y += height
    return tag("g", *pieces, class_="rows"), y + 30


def _row(entry: TableEntry, top: float, trigger_pen: Pen, *, named: bool) -> tuple[str, float]:
    """Draw an entry; only the first of a trigger names it."""
    line = entry.line
    cells = {
        "trigger": (line.trigger if named else "", trigger_pen),
        "from": (entry.origin, _CELL),
        "to": (entry.target, _CELL),
        "when": (line.condition, _CELL),
        "actions": (line.actions_in_words, _CELL),
    }
    wrapped = {name: pen.lines(words, COLUMNS[name][1]) for name, (words, pen) in cells.items()}
    drawn = tag(
        "g",
        *(
            text((COLUMNS[name][0], top + 15 + place * _LEADING), words, cells[name][1])
            for name, lines in wrapped.items()
            for place, words in enumerate(lines)
        ),
        class_="row",
        data_trigger=line.trigger,
        data_source=" ".join(entry.sources),
        data_target=entry.target,
    )
    return drawn, max(len(lines) for lines in wrapped.values()) * _LEADING + 5
