"""The machine on one slide: the states, the happy path, and how a chat leaves it. `svg` has every row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from turnwise.diagrams.extract import machine
from turnwise.diagrams.layout import Box, Route
from turnwise.diagrams.legend import KIND_WORDS
from turnwise.diagrams.markup import MONO, SANS, Pen, Point, rounded, tag, text, title
from turnwise.diagrams.model import Node
from turnwise.diagrams.palette import INK, KIND_TINT, LIT, MUTED, PAPER
from turnwise.states import triggers as t
from turnwise.states.checked import checked
from turnwise.states.names import NEW, ChatState
from turnwise.states.triggers import Trigger

WIDTH: Final = 1480
HEIGHT: Final = 640

_WAITING: Final = Box(60, 270, 200, 90)
_PENDING: Final = Box(440, 270, 200, 90)
_STREAMING: Final = Box(830, 270, 200, 90)
_EXECUTING: Final = Box(830, 100, 200, 90)
_COMPACTING: Final = Box(830, 490, 200, 90)
_ACTION: Final = Box(1220, 270, 200, 90)
_INTERRUPTED: Final = Box(60, 490, 200, 90)
_ERROR: Final = Box(1220, 490, 200, 90)
BOXES: Final = {
    "waiting": _WAITING,
    "pending": _PENDING,
    "streaming": _STREAMING,
    "executing_tools": _EXECUTING,
    "compacting": _COMPACTING,
    "requires_action": _ACTION,
    "interrupted": _INTERRUPTED,
    "error": _ERROR,
}
_START: Final = (130.0, 190.0)


class Way(NamedTuple):
    """One arrow of the slide: a trigger that leads from a place to another."""

    trigger: type[Trigger]
    route: Route
    happy: bool = False


_S: Final = ChatState
WAYS: Final[Mapping[tuple[str, str], Way]] = {
    (NEW, _S.waiting): Way(t.Create, Route((_START, _WAITING.top(70)), (140, 235)), happy=True),
    (_S.waiting, _S.pending): Way(
        t.SendMessage, Route((_WAITING.right(45), _PENDING.left(45)), (272, 305)), happy=True
    ),
    (_S.pending, _S.streaming): Way(
        t.Claimed, Route((_PENDING.right(45), _STREAMING.left(45)), (648, 305)), happy=True
    ),
    (_S.streaming, _S.executing_tools): Way(
        t.StepFinished, Route((_STREAMING.top(60), _EXECUTING.bottom(60)), (882, 235), anchor="end"), happy=True
    ),
    (_S.executing_tools, _S.streaming): Way(
        t.ToolsFinished, Route((_EXECUTING.bottom(140), _STREAMING.top(140)), (978, 235)), happy=True
    ),
    (_S.streaming, _S.waiting): Way(
        t.StepFinished,
        Route((_STREAMING.left(18), (735, 288), (735, 212), (225, 212), _WAITING.top(165)), (420, 202)),
        happy=True,
    ),
    (_S.streaming, _S.requires_action): Way(
        t.StepFinished, Route((_STREAMING.right(25), _ACTION.left(25)), (1042, 287))
    ),
    (_S.executing_tools, _S.requires_action): Way(
        t.ToolsFinished, Route((_EXECUTING.right(45), (1320, 145), _ACTION.top(100)), (1042, 137))
    ),
    (_S.requires_action, _S.pending): Way(
        t.SubmitToolResults,
        Route((_ACTION.bottom(100), (1320, 425), (590, 425), _PENDING.bottom(150)), (1140, 417)),
    ),
    (_S.streaming, _S.compacting): Way(
        t.StepFinished, Route((_STREAMING.bottom(60), _COMPACTING.top(60)), (882, 462), anchor="end")
    ),
    (_S.compacting, _S.streaming): Way(t.Compacted, Route((_COMPACTING.top(140), _STREAMING.bottom(140)), (978, 462))),
    (_S.streaming, _S.error): Way(
        t.Failed, Route((_STREAMING.right(70), (1125, 340), (1125, 535), _ERROR.left(45)), (1135, 480))
    ),
    (_S.streaming, _S.interrupted): Way(
        t.Interrupt, Route((_STREAMING.left(72), (735, 342), (735, 535), _INTERRUPTED.right(45)), (540, 527))
    ),
    (_S.interrupted, _S.pending): Way(
        t.Resume, Route((_INTERRUPTED.top(150), (210, 425), (510, 425), _PENDING.bottom(70)), (218, 417))
    ),
}
"""What the slide shows of the table: for each two places the trigger that mostly leads from one to the other."""

_HEAD: Final = Pen(26, INK, "bold")
_LEGEND: Final = Pen(13, MUTED)
_NAME: Final = Pen(17, INK, "bold", anchor="middle", family=MONO)
_WORDS: Final = Pen(12.5, MUTED, anchor="middle")
_HALO: Final = {"stroke": PAPER, "stroke_width": "4", "stroke_linejoin": "round", "paint_order": "stroke"}
_HAPPY: Final = "#0f6b73"
_OTHER: Final = "#8a95a1"


@checked
def slide(state: str | None = None) -> str:
    """Return the states and the happy path as an SVG document in the format of a slide, with `state` lit.

    Raises:
        NoSuchState: `state` is no state of the machine.
    """
    current = machine().current(state)
    words = {node.id: KIND_WORDS[node.kind] for node in machine().states}
    return document(
        "The life of a chat",
        "The happy path, and how a chat leaves it",
        *graph(
            words,
            {pair: way.trigger.name for pair, way in WAYS.items()},
            lit=current,
            bold=[pair for pair, way in WAYS.items() if way.happy],
        ),
    )


def graph(
    words: Mapping[str, str],
    labels: Mapping[tuple[str, str], str],
    *,
    lit: str | None,
    bold: Collection[tuple[str, str]],
) -> Iterable[str]:
    """Yield the elements of the graph: arrows with their labels, some of them bold, and states with words in them."""
    yield tag("defs", *(_head(ink) for ink in (_HAPPY, _OTHER)))
    for pair, way in WAYS.items():
        yield _arrow(pair, way, labels.get(pair, ""), bold=pair in bold)
    x, y = _START
    yield tag("circle", cx=x, cy=y, r=9, fill=INK)
    for node in machine().states:
        yield _state(node, words[node.id], lit=node.id == lit)


def document(heading: str, below: str, *elements: str, height: float = HEIGHT, width: float = WIDTH) -> str:
    """Return an SVG document with a heading."""
    drawing = tag(
        "svg",
        title(heading),
        tag("rect", width=width, height=height, rx=14, fill=PAPER),
        text((60, 50), heading, _HEAD),
        text((60, 74), below, _LEGEND),
        *elements,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        font_family=SANS,
    )
    return drawing + "\n"


def _state(node: Node, words: str, *, lit: bool) -> str:
    box = BOXES[node.id]
    fill, stroke = LIT if lit else KIND_TINT[node.kind]
    middle = box.x + box.width / 2
    return tag(
        "g",
        tag(
            "rect",
            x=box.x,
            y=box.y,
            width=box.width,
            height=box.height,
            rx=14,
            fill=fill,
            stroke=stroke,
            stroke_width=3 if lit else 1.5,
        ),
        text((middle, box.y + 40), node.id, _NAME),
        text((middle, box.y + 64), words, _WORDS),
        class_="state current" if lit else "state",
        data_state=node.id,
    )


def _arrow(pair: tuple[str, str], way: Way, label: str, *, bold: bool) -> str:
    ink = _HAPPY if bold else _OTHER
    pen = Pen(13, ink, "600" if bold else None, anchor=way.route.anchor)
    at: Point = way.route.label
    return tag(
        "g",
        tag(
            "path",
            d=rounded(way.route.points),
            fill="none",
            stroke=ink,
            stroke_width=2.5 if bold else 1.5,
            marker_end=f"url(#{_head_id(ink)})",
        ),
        tag("g", text(at, label, pen), **_HALO),
        class_="edge taken" if bold else "edge",
        data_source=pair[0],
        data_target=pair[1],
        data_label=label,
    )


def _head(ink: str) -> str:
    return tag(
        "marker",
        tag("path", d="M0,0.5 L9,4 L0,7.5 L2,4 Z", fill=ink),
        id=_head_id(ink),
        viewBox="0 0 9 8",
        refX=8.5,
        refY=4,
        markerWidth=11,
        markerHeight=10,
        markerUnits="userSpaceOnUse",
        orient="auto",
    )


def _head_id(ink: str) -> str:
    return f"turnwise-slide-{ink.removeprefix('#')}"
