"""Where nodes, arrows and labels stand: coordinates by ELK's layered algorithm, committed in `layout.json`.

`graph` declares what is laid out. Drawing reads the file; only `laid_out`, a tool for development, needs Node.js.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from turnwise.diagrams.markup import Block, Point, tag

FILE: Final = Path(__file__).with_name("layout.json")
RENEW: Final = "run `make docs`, which computes it (it needs Node.js), look at the pictures, and commit what it writes"


ELKJS: Final = "elkjs@0.12.1"
_SCRIPT: Final = """
const ELK = require("elkjs");
const graph = JSON.parse(require("fs").readFileSync(0));
new ELK().layout(graph).then((found) => console.log(JSON.stringify(found)));
"""


class Size(msgspec.Struct, frozen=True, array_like=True):
    """Width and height."""

    width: float
    height: float


class Box(msgspec.Struct, frozen=True, array_like=True):
    """A rectangle by its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def size(self) -> Size:
        return Size(self.width, self.height)


def outline(box: Box, radius: int, **style: str | float | None) -> str:
    """Return a box as a rectangle with round corners."""
    return tag("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=radius, **style)


class Route(msgspec.Struct, frozen=True):
    """The way of an arrow, from border to border, and the room of its label."""

    points: tuple[Point, ...]
    label: Box


class Graph(msgspec.Struct, frozen=True):
    """What is to be laid out: how large each node is, and how large the label of each arrow."""

    name: str
    options: Mapping[str, str]
    """What ELK is asked for."""
    nodes: Mapping[str, Size]
    edges: Mapping[tuple[str, str], Block]

    @property
    def labels(self) -> dict[str, Size]:
        """The size of each arrow's label, by the name of the arrow."""
        return {edge_id(*ends): Size(block.width, block.height) for ends, block in self.edges.items()}


class Layout(msgspec.Struct, frozen=True):
    """A graph that is laid out, with its upper left corner at 0, 0."""

    options: dict[str, str]
    size: Size
    nodes: dict[str, Box]
    edges: dict[str, Route]

    def fits(self, graph: Graph) -> bool:
        """Whether it is a layout of this graph: the same options, nodes, arrows and sizes."""
        sizes = {name: box.size for name, box in self.nodes.items()}
        labels = {name: route.label.size for name, route in self.edges.items()}
        return (self.options, sizes, labels) == (dict(graph.options), dict(graph.nodes), graph.labels)

    def route(self, source: str, target: str) -> Route:
        return self.edges[edge_id(source, target)]

    def moved(self, right: float, down: float) -> Layout:
        """Return the same layout with its upper left corner elsewhere."""

        def box(one: Box) -> Box:
            return Box(one.x + right, one.y + down, one.width, one.height)

        def route(one: Route) -> Route:
            return Route(tuple((x + right, y + down) for x, y in one.points), box(one.label))

        nodes = {name: box(one) for name, one in self.nodes.items()}
        return Layout(self.options, self.size, nodes, {name: route(one) for name, one in self.edges.items()})


class StaleLayout(RuntimeError):
    """The committed layout is that of another table. The message says how to compute it anew."""


def edge_id(source: str, target: str) -> str:
    return f"{source} > {target}"


@cache
def committed(path: Path = FILE) -> dict[str, Layout]:
    """Return the layouts in the file, by the name of their graph."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Layout])


def is_current(graph: Graph) -> bool:
    """Whether the committed layout of a graph has the same options, nodes, arrows and sizes."""
    layout = committed().get(graph.name)
    return layout is not None and layout.fits(graph)


def layout_of(graph: Graph) -> Layout:
    """Return the committed layout of a graph.

    Raises:
        StaleLayout: there is none, or a node, an arrow or the size of one has changed since.
    """
    if not is_current(graph):
        raise StaleLayout(f"{FILE.name} is not the layout of the {graph.name} that the table declares; {RENEW}")
    return committed()[graph.name]


def encoded(layouts: Mapping[str, Layout]) -> str:
    """Return layouts as the text of the file: a line for each node and each arrow."""
    lines = [
        f'"{name}":{{"options":{{\n{_lines(one.options)}\n}},"size":{_json(one.size)},'
        f'"nodes":{{\n{_lines(one.nodes)}\n}},"edges":{{\n{_lines(one.edges)}\n}}}}'
        for name, one in layouts.items()
    ]
    return "{" + ",\n".join(lines) + "}\n"


def _lines(parts: Mapping[str, str] | Mapping[str, Box] | Mapping[str, Route]) -> str:
    return ",\n".join(f"{_json(name)}:{_json(part)}" for name, part in parts.items())


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


class NoLayout(RuntimeError):
    """ELK could not be run. The message says what is missing."""


def laid_out(graph: Graph, folder: Path) -> Layout:
    """Return the layout of a graph; `folder` keeps `elkjs`, which npm installs there once.

    Raises:
        NoLayout: Node.js or npm is not installed, or npm cannot reach its registry.
    """
    if not (folder / "node_modules" / "elkjs").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--silent", "--no-save", "--prefix", ".", ELKJS], folder)
    return _layout(graph, json.loads(_run(["node", "-e", _SCRIPT], folder, json.dumps(_question(graph)))))


def _run(command: Sequence[str], folder: Path, given: str = "") -> str:
    try:
        done = subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, check=True)  # noqa: S603
    except FileNotFoundError as error:
        raise NoLayout(f"computing the layout needs Node.js, and there is no `{command[0]}` here") from error
    except subprocess.CalledProcessError as error:
        raise NoLayout(f"`{' '.join(command[:2])}` failed: {error.stderr.strip()}") from error
    return done.stdout


def _question(graph: Graph) -> dict[str, Any]:
    return {
        "id": graph.name,
        "layoutOptions": dict(graph.options),
        "children": [{"id": name, "width": one.width, "height": one.height} for name, one in graph.nodes.items()],
        "edges": [
            {
                "id": edge_id(source, target),
                "sources": [source],
                "targets": [target],
                "labels": [{"text": " ", "width": label.width, "height": label.height}],
            }
            for (source, target), label in graph.edges.items()
        ],
    }


def _layout(graph: Graph, answer: dict[str, Any]) -> Layout:
    edges = {}
    for edge in answer["edges"]:
        (section,) = edge["sections"]
        points = (section["startPoint"], *section.get("bendPoints", ()), section["endPoint"])
        edges[edge["id"]] = Route(tuple((_short(at["x"]), _short(at["y"])) for at in points), _box(edge["labels"][0]))
    size = Size(_short(answer["width"]), _short(answer["height"]))
    return Layout(dict(graph.options), size, {node["id"]: _box(node) for node in answer["children"]}, edges)


def _box(found: dict[str, Any]) -> Box:
    return Box(_short(found["x"]), _short(found["y"]), found["width"], found["height"])


def _short(value: float) -> float:
    return round(value, 1)
