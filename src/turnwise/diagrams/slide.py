"""The machine on one slide: the states, the happy path, and how a chat leaves it. Also one state as a sticker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from turnwise.diagrams.document import KIND_WORDS, arrow, arrowhead, document, drawn_label
from turnwise.diagrams.graph import OPTIONS, START
from turnwise.diagrams.layout import Box, Graph, Layout, Size, layout_of, outline
from turnwise.diagrams.markup import MONO, SANS, Block, Pen, tag, text, title
from turnwise.diagrams.model import Node, machine
from turnwise.diagrams.palette import INK, KIND_TINT, LIT, MUTED, PAPER, STATE_INK
from turnwise.states import triggers as t
from turnwise.states.names import NEW, SPECS, ChatState
from turnwise.states.triggers import Trigger
from turnwise.states.values.checked import checked


class Way(NamedTuple):
    """A trigger that leads from a place to another, and whether it does where all goes well."""

    trigger: type[Trigger]
    happy: bool = False


_S: Final = ChatState
WAYS: Final[Mapping[tuple[str, str], Way]] = {
    (NEW, _S.waiting): Way(t.Create, happy=True),
    (_S.waiting, _S.pending): Way(t.SendMessage, happy=True),
    (_S.pending, _S.streaming): Way(t.Claimed, happy=True),
    (_S.streaming, _S.executing_tools): Way(t.StepFinished, happy=True),
    (_S.executing_tools, _S.streaming): Way(t.ToolsFinished, happy=True),
    (_S.streaming, _S.waiting): Way(t.StepFinished, happy=True),
    (_S.streaming, _S.requires_action): Way(t.StepFinished),
    (_S.executing_tools, _S.requires_action): Way(t.ToolsFinished),
    (_S.requires_action, _S.pending): Way(t.SubmitToolResults),
    (_S.streaming, _S.compacting): Way(t.StepFinished),
    (_S.compacting, _S.streaming): Way(t.Compacted),
    (_S.streaming, _S.error): Way(t.Failed),
    (_S.streaming, _S.interrupted): Way(t.Interrupt),
    (_S.interrupted, _S.pending): Way(t.Resume),
}
"""What the slide shows of the table: for each two places the trigger that mostly leads from one to the other."""

_MARGIN: Final = 60.0
_TOP: Final = 110.0
_NODE: Final = Size(210, 84)
_NAME: Final = Pen(20, INK, "bold", anchor="middle", family=MONO)
_WORDS: Final = Pen(15, MUTED, anchor="middle")
_LABEL: Final = Pen(16, INK)
_HAPPY: Final = "#0f6b73"
_OTHER: Final = "#8a95a1"


class Graphic(NamedTuple):
    """The graph as elements, and where it ends."""

    elements: tuple[str, ...]
    width: float
    height: float

    @property
    def view(self) -> str:
        """The part of the document that holds the graph, as a `viewBox`."""
        return f"{_MARGIN - 10:.0f} {_TOP - 10:.0f} {self.width - 2 * _MARGIN + 20:.0f} {self.height - _TOP + 20:.0f}"


@checked
def slide(state: str | None = None) -> str:
    """Return the states and the happy path as an SVG document in the format of a slide, with `state` lit.

    Raises:
        NoSuchState: `state` is no state of the machine.
    """
    current = machine().current(state)
    drawn = graph(
        {node.id: KIND_WORDS[node.kind] for node in machine().states},
        {pair: way.trigger.name for pair, way in WAYS.items()},
        lit=current,
        bold=[pair for pair, way in WAYS.items() if way.happy],
    )
    return document(
        "The life of a chat",
        "The happy path, and how a chat leaves it",
        *drawn.elements,
        width=drawn.width,
        height=drawn.height + _MARGIN,
        data_graph=drawn.view,
    )


def slide_graph() -> Graph:
    """Return the graph to lay out: every state, and the arrows of the slide with their triggers."""
    nodes = {node.id: START if node.kind == "start" else _NODE for node in machine().nodes if node.kind != "unknown"}
    labels = {pair: Block((((way.trigger.name, _LABEL),),)) for pair, way in WAYS.items()}
    return Graph("slide", OPTIONS, nodes, labels)


def graph(
    words: Mapping[str, str],
    labels: Mapping[tuple[str, str], str],
    *,
    lit: str | None,
    bold: Collection[tuple[str, str]],
) -> Graphic:
    """Return the graph: arrows with their labels, some of them bold, and states with words in them."""
    layout = layout_of(slide_graph()).moved(_MARGIN, _TOP)
    start = layout.nodes[NEW]
    radius = start.width / 2
    elements = (
        tag("defs", *(arrowhead(ink) for ink in (_HAPPY, _OTHER))),
        *(_arrow(pair, layout, labels.get(pair, ""), bold=pair in bold) for pair in WAYS),
        tag("circle", cx=start.x + radius, cy=start.y + radius, r=radius, fill=INK),
        *(_state(node, layout.nodes[node.id], words[node.id], lit=node.id == lit) for node in machine().states),
    )
    return Graphic(elements, layout.size.width + 2 * _MARGIN, layout.size.height + _TOP)


def _state(node: Node, box: Box, words: str, *, lit: bool) -> str:
    fill, stroke = LIT if lit else KIND_TINT[node.kind]
    middle = box.x + box.width / 2
    return tag(
        "g",
        outline(box, 14, fill=fill, stroke=stroke, stroke_width=3 if lit else 1.5),
        text((middle, box.y + 38), node.id, _NAME),
        text((middle, box.y + 62), words, _WORDS),
        class_="state current" if lit else "state",
        data_state=node.id,
    )


def _arrow(pair: tuple[str, str], layout: Layout, label: str, *, bold: bool) -> str:
    ink = _HAPPY if bold else _OTHER
    route = layout.route(*pair)
    pen = Pen(_LABEL.size, ink, "600" if bold else None)
    return tag(
        "g",
        arrow(route.points, ink, bold=bold),
        drawn_label(Block((((label, pen),),)), route),
        class_="edge taken" if bold else "edge",
        data_source=pair[0],
        data_target=pair[1],
        data_label=label,
    )


_LETTER: Final = 6.6
_PRODUCT: Final = "turnwise"
_DARK: Final = "#3b4652"


@checked
def sticker(state: str) -> str:
    """Return a small SVG badge that names a state.

    Raises:
        NoSuchState: `state` is no state of the machine.
    """
    named = ChatState(machine().current(state) or "")
    left, right = (len(word) * _LETTER + 14 for word in (_PRODUCT, named))
    pen = Pen(11, PAPER, anchor="middle")
    drawing = tag(
        "svg",
        title(f"{_PRODUCT}: {named}"),
        tag("rect", width=left + right, height=20, rx=4, fill=STATE_INK[SPECS[named].colour]),
        tag("path", d=f"M4,0 H{left:.1f} V20 H4 A4,4 0 0 1 0,16 V4 A4,4 0 0 1 4,0 Z", fill=_DARK),
        text((left / 2, 14), _PRODUCT, pen),
        text((left + right / 2, 14), named, pen),
        xmlns="http://www.w3.org/2000/svg",
        width=left + right,
        height=20,
        role="img",
        font_family=SANS,
    )
    return drawing + "\n"
