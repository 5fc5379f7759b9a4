"""What is drawn of the machine: the texts of its nodes and labels, whose sizes its layout is made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from turnwise.diagrams.grouping import GROUPS, SAME, Arrow, Caption, captions
from turnwise.diagrams.layout import Graph, Size
from turnwise.diagrams.markup import MONO, Block, Pen, Piece
from turnwise.diagrams.model import Node, Picture
from turnwise.diagrams.palette import INK, MUTED, PARTY_INK
from turnwise.states.names import ChatState

OPTIONS: Final = {
    "elk.algorithm": "layered",
    "elk.direction": "DOWN",
    "elk.edgeRouting": "ORTHOGONAL",
    "elk.layered.cycleBreaking.strategy": "MODEL_ORDER",
    "elk.layered.nodePlacement.strategy": "NETWORK_SIMPLEX",
    "elk.layered.thoroughness": "60",
    "elk.layered.spacing.edgeEdgeBetweenLayers": "10",
    "elk.layered.spacing.edgeNodeBetweenLayers": "14",
    "elk.layered.spacing.nodeNodeBetweenLayers": "20",
    "elk.padding": "[top=0,left=0,bottom=0,right=0]",
    "elk.spacing.edgeEdge": "14",
    "elk.spacing.edgeLabel": "5",
    "elk.spacing.edgeNode": "18",
    "elk.spacing.nodeNode": "26",
}
"""What ELK is asked for. An arrow against the order in which the nodes are declared is one that leads back."""

PADDING: Final = 13
START: Final = Size(20, 20)
_TEXT_WIDTH: Final = 250
_LABEL_WIDTH: Final = 185

_NAME: Final = Pen(15, INK, "bold", family=MONO)
_GROUP: Final = Pen(14, MUTED, "bold", family=MONO)
_BODY: Final = Pen(11.5, INK)
_SMALL: Final = Pen(10.5, MUTED)


class Drawn(msgspec.Struct, frozen=True):
    """The graph of the machine, and what stands in it."""

    graph: Graph
    texts: Mapping[str, Block]
    """What stands in each node that is a box."""
    arrows: tuple[Arrow, ...]
    """Those that lead from a node to another."""
    stays: Mapping[str, tuple[str, ...]]
    """The triggers on which a state, or every state of a group, stays as it is."""


def machine_graph(picture: Picture, gathered: tuple[Arrow, ...]) -> Drawn:
    """Return what is drawn of the machine; a group of states is a node beside them."""
    stays = {
        one.origin: tuple(dict.fromkeys(line.trigger for line in one.lines)) for one in gathered if one.target == SAME
    }
    leading = tuple(one for one in gathered if one.target != SAME)
    texts = {node.id: _state(node, stays.get(node.id, ())) for node in picture.nodes if node.kind != "start"}
    texts |= {name: _group(name, members, stays.get(name, ())) for name, members in GROUPS.items()}
    sizes = {node.id: START for node in picture.nodes if node.kind == "start"}
    sizes |= {name: Size(text.width + 2 * PADDING, text.height + 2 * PADDING) for name, text in texts.items()}
    labels = {(one.origin, one.target): _label(captions(one.lines)) for one in leading}
    return Drawn(Graph("machine", OPTIONS, sizes, labels), texts, leading, stays)


def _state(node: Node, stays: tuple[str, ...]) -> Block:
    job = [(f"job {node.job}", _SMALL)] if node.job else []
    invariants = ", ".join(one.words for one in node.invariants)
    return Block((((node.id, _NAME), *job), *_wrapped(invariants, _BODY, _TEXT_WIDTH), *_stays(stays)))


def _group(name: str, members: tuple[str, ...], stays: tuple[str, ...]) -> Block:
    listed = "" if len(members) == len(ChatState) else ", ".join(members)
    return Block((((name, _GROUP),), *_wrapped(listed, _BODY, _TEXT_WIDTH), *_stays(stays)))


def _stays(triggers: tuple[str, ...]) -> tuple[tuple[Piece, ...], ...]:
    return _wrapped("stays on " + ", ".join(triggers), _SMALL, _TEXT_WIDTH) if triggers else ()


def _label(labels: tuple[Caption, ...]) -> Block:
    lines: list[tuple[Piece, ...]] = []
    for caption in labels:
        pen = Pen(11.5, PARTY_INK[caption.party], "600", family=MONO)
        lines += [((trigger, pen),) for trigger in caption.triggers]
        lines += _wrapped(f"[{caption.condition}]", _SMALL, _LABEL_WIDTH) if caption.condition else ()
    return Block(tuple(lines))


def _wrapped(words: str, pen: Pen, width: float) -> tuple[tuple[Piece, ...], ...]:
    return tuple(((line, pen),) for line in pen.lines(words, width))
