"""The drawing contains the table, is legible, and can be embedded in any page."""

import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from support.node import needs_node
from turnwise.diagrams import mermaid, slide, svg
from turnwise.diagrams.__main__ import graphs
from turnwise.diagrams.graph import SAME, arrows
from turnwise.diagrams.layout import (
    RENEW,
    Layout,
    NoLayout,
    StaleLayout,
    committed,
    edge_id,
    encoded,
    is_current,
    laid_out,
)
from turnwise.diagrams.model import machine
from turnwise.diagrams.slide import WAYS, Way
from turnwise.diagrams.svg import COLUMNS
from turnwise.states import triggers
from turnwise.states.names import ChatState
from turnwise.states.table import TABLE, rows_of

SVG = "{http://www.w3.org/2000/svg}"


def parsed(state: str | None = None, *, rows: bool = True) -> ET.Element:
    return ET.fromstring(svg(state, rows=rows))  # noqa: S314 - our own text


def groups(root: ET.Element, kind: str) -> list[ET.Element]:
    return [group for group in root.iter(f"{SVG}g") if kind in group.get("class", "").split()]


def goal(source: str, target: str) -> str:
    return source if target == SAME else target


def declared() -> set[tuple[str, ...]]:
    return {(row.trigger.name, str(row.source), row.target.value) for row in TABLE}


def graph_of(root: ET.Element) -> list[tuple[str, str, str]]:
    """Every (trigger, source, target) of the graph: arrows, and texts in states and groups."""
    found = []
    for edge in groups(root, "edge"):
        ends = itertools.product(edge.attrib["data-triggers"].split(), edge.attrib["data-source"].split())
        found += [(trigger, source, edge.attrib["data-target"]) for trigger, source in ends]
    for state in groups(root, "state"):
        found += [(trigger, state.attrib["data-state"], state.attrib["data-state"]) for trigger in stays(state)]
    for group in groups(root, "group"):
        ends = itertools.product(stays(group), group.attrib["data-members"].split())
        found += [(trigger, member, member) for trigger, member in ends]
    return found


def stays(group: ET.Element) -> list[str]:
    return group.get("data-stays", "").split()


def test_graph_has_exactly_the_declared_transitions() -> None:
    found = graph_of(parsed())
    assert set(found) == declared()
    assert len(found) == len(set(found))


def test_list_has_every_row_with_guards_and_actions() -> None:
    wanted, listed = [], []
    for row in TABLE:
        otherwise = ["otherwise"] if len(rows_of(row.trigger, row.source)) > 1 else []
        condition = [guard.__name__ for guard in row.when] or otherwise
        taken = [action.__name__ for action in row.actions]
        words = ", ".join(condition).replace("_", " "), ", ".join(taken).replace("_", " ")
        wanted.append((row.trigger.name, str(row.source), row.target.value, *words))
    for entry in groups(parsed(), "row"):
        columns: dict[float, list[str]] = {}
        for cell in entry.iter(f"{SVG}text"):
            columns.setdefault(float(cell.attrib["x"]), []).append(cell.text or "")
        asked, done = (" ".join(columns.get(COLUMNS[name][0], [])) for name in ("when", "actions"))
        for source in entry.attrib["data-source"].split():
            target = goal(source, entry.attrib["data-target"])
            listed.append((entry.attrib["data-trigger"], source, target, asked, done))
    assert sorted(listed) == sorted(wanted)


@pytest.mark.parametrize("state", ChatState)
def test_live_drawing_highlights_the_current_state(state: ChatState) -> None:
    root = parsed(state)
    assert [group.attrib["data-state"] for group in groups(root, "current")] == [state]
    assert f"stands in {state}" in root.findtext(f"{SVG}desc", "")


def test_drawing_has_no_style_script_or_font() -> None:
    """The inspector's page has a strict content security policy, and a drawing in a README is only an image."""
    for element in parsed("pending").iter():
        assert element.tag.removeprefix(SVG) not in {"style", "script", "font", "image", "foreignObject"}
        assert not {"style", "href", "onclick"} & element.attrib.keys()


def test_unknown_state_error_names_the_states() -> None:
    with pytest.raises(ValueError, match="'dreaming'; the states are waiting, pending"):
        svg("dreaming")


# The layout


Rect = tuple[float, float, float, float]
"""Left, top, right and bottom."""
GLYPH = 0.6
"""A letter of a monospaced font in font sizes; those of DejaVu Sans, the widest of the others, are narrower in text."""


def words_in(group: ET.Element) -> list[Rect]:
    """Return the box of each line of text in a group."""
    found = []
    for line in group.iter(f"{SVG}text"):
        pieces = [*line] or [line]
        width = sum(
            len(piece.text or "") * float(piece.attrib["font-size"]) * GLYPH + float(piece.get("dx", 0))
            for piece in pieces
        )
        x, y, size = float(line.attrib["x"]), float(line.attrib["y"]), float(pieces[0].attrib["font-size"])
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[line.get("text-anchor", "start")]
        found.append((left, y - 0.8 * size, left + width, y + 0.2 * size))
    return found


def lines_of(edge: ET.Element) -> list[Rect]:
    """Return each straight part of an arrow as a box without width or height."""
    arrow = edge.find(f"{SVG}path")
    assert arrow is not None
    corners = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", arrow.attrib["d"])]
    ends = itertools.pairwise(corners)
    return [(min(a, c), min(b, d), max(a, c), max(b, d)) for (a, b), (c, d) in ends]


def overlap(one: Rect, other: Rect) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("draw", [partial(svg, rows=False), slide], ids=["machine", "slide"])
def test_labels_lie_on_nothing_else(draw: Callable[[], str]) -> None:
    """Labels overlap no label, arrow or node; every text of a node is inside of it."""
    root = ET.fromstring(draw())  # noqa: S314 - our own text
    edges = groups(root, "edge")
    nodes = [*groups(root, "state"), *groups(root, "group")]
    boxes: dict[int, Rect] = {}
    for number, node in enumerate(nodes):
        rect = node.find(f"{SVG}rect")
        assert rect is not None
        x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        boxes[number] = (x, y, x + width, y + height)
        assert all(x < left and y < top and right < x + width and bottom < y + height
                   for left, top, right, bottom in words_in(node)), node.attrib  # fmt: skip
    labels = {number: words_in(edge) for number, edge in enumerate(edges)}
    assert sum(map(len, labels.values())) >= len(edges) > 10
    for number, words in labels.items():
        others = [box for other, found in labels.items() if other != number for box in found]
        others += [part for edge in edges for part in lines_of(edge)]
        assert not [other for word in words for other in [*others, *boxes.values()] if overlap(word, other)], edges[
            number
        ].attrib


def test_committed_layout_is_that_of_the_table() -> None:
    """If this fails: `make docs`, look at the pictures, commit them."""
    gathered = {(one.origin, one.target) for one in arrows(machine()) if one.target != SAME}
    for name, declared_edges in (("machine", gathered), ("slide", WAYS.keys())):
        assert committed()[name].edges.keys() == {edge_id(*ends) for ends in declared_edges}, RENEW
        assert {*ChatState} < committed()[name].nodes.keys(), RENEW
    assert all(is_current(graph) for graph in graphs()), RENEW


def test_drawing_without_its_layout_says_how_to_renew_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, ("compacting", "waiting"), Way(triggers.Compacted))  # type: ignore[misc]
    with pytest.raises(StaleLayout, match="slide that the table declares; run `make docs`"):
        slide()


ELKJS = """
module.exports = class {
  async layout(graph) {
    for (const node of graph.children) Object.assign(node, { x: 1.04, y: 2 });
    for (const edge of graph.edges) {
      Object.assign(edge.labels[0], { x: 5, y: 6 });
      edge.sections = [{ startPoint: { x: 1, y: 2 }, bendPoints: [{ x: 3, y: 2 }], endPoint: { x: 3, y: 4 } }];
    }
    return { ...graph, width: 10, height: 20 };
  }
};
"""


@needs_node
def test_layout_that_elk_computes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node.js runs a stand-in here; only a stale layout runs the real one."""
    (tmp_path / "node_modules" / "elkjs").mkdir(parents=True)
    (tmp_path / "node_modules" / "elkjs" / "index.js").write_text(ELKJS)
    for graph in graphs():
        found = laid_out(graph, tmp_path)
        assert found.fits(graph)
        assert {(box.x, box.y) for box in found.nodes.values()} == {(1.0, 2)}
        assert {route.points for route in found.edges.values()} == {((1, 2), (3, 2), (3, 4))}
        assert msgspec.json.decode(encoded({graph.name: found}), type=dict[str, Layout]) == {graph.name: found}
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoLayout, match=r"needs Node\.js, and there is no `node` here"):
        laid_out(graph, tmp_path)


# The slide


DECLARED = {(str(row.source), row.target.value, row.trigger.name) for row in TABLE}


def groups_in(drawing: str, kind: str) -> list[ET.Element]:
    found = ET.fromstring(drawing).iter(f"{SVG}g")  # noqa: S314 - our own text
    return [group for group in found if kind in group.get("class", "").split()]


def shown(drawing: str) -> set[tuple[str, str, str]]:
    edges = groups_in(drawing, "edge")
    return {(edge.attrib["data-source"], edge.attrib["data-target"], edge.attrib["data-label"]) for edge in edges}


def test_slide_arrows_are_rows_of_the_table() -> None:
    assert shown(slide()) == {(source, target, way.trigger.name) for (source, target), way in WAYS.items()}
    assert shown(slide()) <= DECLARED


def test_slide_has_and_reaches_every_state() -> None:
    assert [group.attrib["data-state"] for group in groups_in(slide(), "state")] == [*ChatState]
    assert {target for _, target, _ in shown(slide())} == {*ChatState}


@pytest.mark.parametrize("state", ChatState)
def test_slide_highlights_the_current_state(state: ChatState) -> None:
    assert [group.attrib["data-state"] for group in groups_in(slide(state), "current")] == [state]
    assert re.findall(r"class (\w+) current", mermaid(state, simple=True)) == [state]
