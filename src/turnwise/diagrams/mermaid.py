"""The picture as Mermaid text (`stateDiagram-v2`)."""

from __future__ import annotations

from typing import Final

from turnwise.diagrams.extract import machine
from turnwise.diagrams.grouping import SAME, arrows
from turnwise.diagrams.model import Edge, Line, Node, Picture
from turnwise.diagrams.palette import INK, KIND_TINT, LIT, Tint
from turnwise.diagrams.slide import WAYS
from turnwise.states.names import NEW
from turnwise.states.values.checked import checked

_LINE_BREAK: Final = "<br/>"


@checked
def mermaid(state: str | None = None, *, simple: bool = False) -> str:
    """Return the machine as Mermaid text, with `state` lit; if `simple`, what `slide` shows of it.

    Every row is written out, except that triggers which leave a chat where it is in every state stand in one note.

    Raises:
        NoSuchState: `state` is no state of the machine.
    """
    picture = machine()
    current = picture.current(state)
    everywhere = _everywhere(picture)
    places = list(picture.states) if simple else [node for node in picture.nodes if node.kind != "start"]
    text = [
        "stateDiagram-v2",
        "    accTitle: The life of a chat",
        "    accDescr: States, and the triggers that lead from one to another",
        "    direction LR",
    ]
    text += [_style(kind, KIND_TINT[kind]) for kind in dict.fromkeys(node.kind for node in places)]
    text += [_style("current", LIT) + ",stroke-width:3px"] if current else []
    text += [line for node in places for line in _node(node, current)]
    if simple:
        text += [f"    {_place(source)} --> {target} : {way.trigger.name}" for (source, target), way in WAYS.items()]
    else:
        text += [line for edge in picture.edges for line in _edge(edge, everywhere)]
        text += _note(picture.states[0], everywhere)
    return "\n".join(text) + "\n"


def _everywhere(picture: Picture) -> tuple[Line, ...]:
    states = tuple(node.id for node in picture.states)
    return tuple(
        line for arrow in arrows(picture) if arrow.target == SAME and arrow.sources == states for line in arrow.lines
    )


def _style(name: str, tint: Tint) -> str:
    return f"    classDef {name} fill:{tint.fill},stroke:{tint.stroke},color:{INK}"


def _node(node: Node, current: str | None) -> list[str]:
    style = "current" if node.id == current else node.kind
    job = f"{_LINE_BREAK}job {node.job}" if node.job else ""
    return [f'    state "{node.id}{job}" as {node.id}', f"    class {node.id} {style}"]


def _edge(edge: Edge, everywhere: tuple[Line, ...]) -> list[str]:
    lines = [str(line) for line in edge.lines if not edge.stays or line not in everywhere]
    return [f"    {_place(edge.source)} --> {edge.target} : {_LINE_BREAK.join(lines)}"] if lines else []


def _place(name: str) -> str:
    return "[*]" if name == NEW else name


def _note(node: Node, everywhere: tuple[Line, ...]) -> list[str]:
    lines = [f"        {line}" for line in everywhere]
    return [f"    note left of {node.id}", "        in every state", *lines, "    end note"] if lines else []
