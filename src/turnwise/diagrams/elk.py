"""Computes layouts by ELK's layered algorithm: `elkjs`, run by Node.js. A tool for development, never for drawing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from turnwise.diagrams.layout import Box, Graph, Layout, Route, Size, edge_id

ELKJS: Final = "elkjs@0.12.1"
_SCRIPT: Final = """
const ELK = require("elkjs");
const graph = JSON.parse(require("fs").readFileSync(0));
new ELK().layout(graph).then((found) => console.log(JSON.stringify(found)));
"""


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
    labels = graph.labels
    return {
        "id": graph.name,
        "layoutOptions": dict(graph.options),
        "children": [{"id": name, "width": one.width, "height": one.height} for name, one in graph.nodes.items()],
        "edges": [
            {
                "id": edge_id(source, target),
                "sources": [source],
                "targets": [target],
                "labels": [{"text": " ", "width": labels[name].width, "height": labels[name].height}],
            }
            for source, target in graph.edges
            for name in [edge_id(source, target)]
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
