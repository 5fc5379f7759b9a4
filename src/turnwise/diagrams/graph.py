"""What is drawn of the machine: arrows and rows that several states share, and texts, whose sizes a layout needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec

from turnwise.diagrams.layout import Graph, Size
from turnwise.diagrams.markup import MONO, Block, Pen, Piece
from turnwise.diagrams.model import Line, Node, Picture, words
from turnwise.diagrams.palette import INK, MUTED, PARTY_INK
from turnwise.states.names import LEASED, ChatState, Party
from turnwise.states.table import BUSY
from turnwise.states.triggers import TRIGGERS

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "every state": tuple(state.value for state in ChatState),
    "busy": tuple(state.value for state in BUSY),
    "leased": tuple(state.value for state in ChatState if state in LEASED),
}
"""States that are drawn inside one frame, the widest frame first."""

SAME: Final = "same"
"""The target of a line that leaves a chat where it is."""

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


class Arrow(msgspec.Struct, frozen=True):
    """Lines that lead from a state, or from every state of a group, to one target or back to the `SAME` state."""

    origin: str
    sources: tuple[str, ...]
    target: str
    lines: tuple[Line, ...]


class TableEntry(msgspec.Struct, frozen=True):
    """Rows that differ in nothing but their source."""

    sources: tuple[str, ...]
    target: str
    line: Line

    @property
    def origin(self) -> str:
        """The sources in words, with the name of each group for its members."""
        sources, groups = list(self.sources), []
        for name, members in GROUPS.items():
            if set(members) <= set(sources):
                sources = [source for source in sources if source not in members]
                groups.append(name)
        return ", ".join([*groups, *sources])


def arrows(picture: Picture) -> tuple[Arrow, ...]:
    """Return every row of the picture exactly once, on the widest group all of whose states share it."""
    rest = dict.fromkeys((edge.source, edge.target, line) for edge in picture.edges for line in edge.lines)
    drawn: list[Arrow] = []
    for name, members in GROUPS.items():
        for target in dict.fromkeys((*members, *(node.id for node in picture.states), SAME)):
            lines = _find_shared(rest, members, target)
            if lines:
                drawn.append(Arrow(name, members, target, lines))
                for line in lines:
                    for source in members:
                        del rest[source, source if target == SAME else target, line]
    singles: dict[tuple[str, str], list[Line]] = {}
    for source, target, line in rest:
        singles.setdefault((source, SAME if source == target else target), []).append(line)
    drawn += [Arrow(source, (source,), target, tuple(lines)) for (source, target), lines in singles.items()]
    return tuple(drawn)


def entries(picture: Picture) -> tuple[TableEntry, ...]:
    """Return every row of the picture exactly once: by trigger, then by source, in the order in which guards are asked.

    Rows that differ in nothing but their source share an entry.
    """
    shared: dict[tuple[str, Line], list[str]] = {}
    for source, target, line in picture.rows:
        shared.setdefault((SAME if source == target else target, line), []).append(source)
    triggers = [*TRIGGERS]
    places = [node.id for node in picture.nodes]

    def rank(entry: TableEntry) -> tuple[int, int]:
        return triggers.index(entry.line.trigger), places.index(entry.sources[0])

    unsorted = (
        TableEntry(tuple(sorted(sources, key=places.index)), target, line) for (target, line), sources in shared.items()
    )
    return tuple(sorted(unsorted, key=rank))


def _find_shared(rest: Iterable[tuple[str, str, Line]], members: tuple[str, ...], target: str) -> tuple[Line, ...]:
    present = set(rest)
    return tuple(
        line
        for source, _, line in rest
        if source == members[0]
        and all((member, member if target == SAME else target, line) in present for member in members)
    )


class Caption(msgspec.Struct, frozen=True):
    """Triggers under one condition. The condition is a summary; the list of rows has it in full."""

    triggers: tuple[str, ...]
    party: Party
    condition: str


def captions(lines: Iterable[Line]) -> tuple[Caption, ...]:
    """Return the captions of an arrow, in the order of its lines; neighbours under one condition share a caption."""
    by_trigger: dict[str, list[Line]] = {}
    for line in lines:
        by_trigger.setdefault(line.trigger, []).append(line)
    conditions = ((same[0].party, _condition(same), trigger) for trigger, same in by_trigger.items())
    return tuple(
        Caption(tuple(trigger for *_, trigger in neighbours), party, condition)
        for (party, condition), neighbours in groupby(conditions, key=itemgetter(0, 1))
    )


def _condition(lines: list[Line]) -> str:
    """The guards of one line: first those that all lines share, then those that differ."""
    if not any(line.when for line in lines):
        return "otherwise" if len(lines) == 1 and lines[0].otherwise else ""
    common = [guard for guard in lines[0].when if all(guard in line.when for line in lines)]
    differing = [[words(guard) for guard in line.when if guard not in common] for line in lines]
    terms = [*map(words, common)]
    if all(differing):
        terms.append(" or ".join(" and ".join(names) for names in differing))
    return ", ".join(terms)


class Drawn(msgspec.Struct, frozen=True):
    """The graph of the machine, and what stands in it."""

    graph: Graph
    texts: Mapping[str, Block]
    """What stands in each node that is a box."""
    arrows: tuple[Arrow, ...]
    """Those that lead from a node to another."""
    stays: Mapping[str, tuple[str, ...]]
    """The triggers on which a state, or every state of a group, stays as it is."""


def machine_graph(picture: Picture) -> Drawn:
    """Return the graph of the machine. A group of states is a node of its own."""
    gathered = arrows(picture)
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
    invariants = ", ".join(map(words, node.invariants))
    return Block((((node.id, _NAME), *job), *_wrap(invariants, _BODY, _TEXT_WIDTH), *_stays(stays)))


def _group(name: str, members: tuple[str, ...], stays: tuple[str, ...]) -> Block:
    listed = "" if len(members) == len(ChatState) else ", ".join(members)
    return Block((((name, _GROUP),), *_wrap(listed, _BODY, _TEXT_WIDTH), *_stays(stays)))


def _stays(triggers: tuple[str, ...]) -> tuple[tuple[Piece, ...], ...]:
    return _wrap("stays on " + ", ".join(triggers), _SMALL, _TEXT_WIDTH) if triggers else ()


def _label(labels: tuple[Caption, ...]) -> Block:
    lines: list[tuple[Piece, ...]] = []
    for caption in labels:
        pen = Pen(11.5, PARTY_INK[caption.party], "600", family=MONO)
        lines += [((trigger, pen),) for trigger in caption.triggers]
        lines += _wrap(f"[{caption.condition}]", _SMALL, _LABEL_WIDTH) if caption.condition else ()
    return Block(tuple(lines))


def _wrap(words: str, pen: Pen, width: float) -> tuple[tuple[Piece, ...], ...]:
    return tuple(((line, pen),) for line in pen.lines(words, width))
