"""The machine as text: Mermaid, JSON, and a page to look things up in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any, Final

from turnwise.diagrams.graph import SAME, arrows, entries
from turnwise.diagrams.model import Edge, Line, Node, Picture, Term, machine, meaning, words
from turnwise.diagrams.palette import INK, KIND_TINT, LIT, Tint
from turnwise.diagrams.slide import WAYS
from turnwise.states.names import NEW, UNKNOWN, ChatState, Party
from turnwise.states.table import TABLE, Row
from turnwise.states.triggers import TRIGGERS
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


FORMAT: Final = "turnwise-machine/1"


@checked
def machine_json() -> str:
    """Return the states, the triggers and every row of the table as JSON, a row a line.

    A row's `source` is a state, `new` before the first record, or `unknown` for any word that is no state.
    """
    triggers = {
        trigger: {"party": kind.party, "while_archived": kind.while_archived} for trigger, kind in TRIGGERS.items()
    }
    parts: dict[str, Any] = {
        "format": FORMAT,
        "new": NEW,
        "unknown": UNKNOWN,
        "states": [state.value for state in ChatState],
        "triggers": triggers,
    }
    head = [f'  "{name}": {json.dumps(part)},' for name, part in parts.items()]
    rows = ",\n".join(f"    {json.dumps(_fields(row))}" for row in TABLE)
    return "\n".join(["{", *head, '  "rows": [', rows, "  ]", "}", ""])


def _fields(row: Row) -> dict[str, Any]:
    return {
        "trigger": row.trigger.name,
        "source": str(row.source),
        "target": row.target.value,
        "when": [guard.__name__ for guard in row.when],
        "actions": [action.__name__ for action in row.actions],
    }


REFUSED = "-"
"""The cell of a trigger that a state refuses."""

_HEAD = """\
# The machine, looked up

Generated from the declared table by `python -m turnwise.diagrams`; a test checks that it is current. The same machine
as a drawing: [machine.svg](../../src/turnwise/diagrams/rendered/machine.svg), and as Mermaid text:
[machine.mmd](../../src/turnwise/diagrams/rendered/machine.mmd).
"""
_CELLS = f"""\
A cell names every state the trigger can lead to; `{SAME}` leaves the chat where it is, and `{REFUSED}` means that the
trigger is refused and nothing is written. The guards, below, decide which target is taken.
"""


def matrix() -> str:
    """Return the page as Markdown."""
    picture = machine()
    sections = [
        _HEAD,
        "## The invariants of each state\n",
        _invariants(picture),
        f"## What each trigger does in each state\n\n{_CELLS}",
    ]
    for party, fired in groupby(TRIGGERS.values(), key=lambda trigger: trigger.party):
        sections += [f"### Fired by the {party}\n", _cells(picture, party, [trigger.name for trigger in fired])]
    lines = [line for edge in picture.edges for line in edge.lines]
    sections += [
        "## Every row\n",
        _rows(picture),
        "## What the guards ask\n",
        _glossary(chain.from_iterable(line.when for line in lines)),
        "## What the actions do\n",
        _glossary(chain.from_iterable(line.actions for line in lines)),
    ]
    return "\n".join(sections)


def _invariants(picture: Picture) -> str:
    rows = (
        (
            f"`{node.id}`",
            node.kind,
            f"`{node.job}`" if node.job else "",
            " ".join(map(meaning, node.invariants)),
        )
        for node in picture.states
    )
    return _table(("state", "kind", "job", "invariants"), rows)


def _cells(picture: Picture, party: Party, triggers: Sequence[str]) -> str:
    rows = [(edge, line.trigger) for edge in picture.edges for line in edge.lines if line.party == party]
    used = {edge.source for edge, _ in rows}
    columns = [node.id for node in picture.nodes if node in picture.states or node.id in used]

    def cell(trigger: str, source: str) -> str:
        edges = (edge for edge, fired in rows if (fired, edge.source) == (trigger, source))
        return ", ".join(dict.fromkeys(SAME if edge.stays else edge.target for edge in edges)) or REFUSED

    cells = ((f"`{trigger}`", *(cell(trigger, column) for column in columns)) for trigger in triggers)
    return _table(("trigger", *columns), cells)


def _rows(picture: Picture) -> str:
    rows = (
        (f"`{one.line.trigger}`", ", ".join(one.sources), one.target, one.line.condition, one.line.actions_in_words)
        for one in entries(picture)
    )
    return _table(("trigger", "from", "to", "when", "actions"), rows)


def _glossary(terms: Iterable[Term]) -> str:
    by_name = sorted(set(terms), key=lambda term: term.__name__)
    return _table(("name", "meaning"), ((words(term), meaning(term)) for term in by_name))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
