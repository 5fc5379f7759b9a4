"""The machine as a page to look things up in: invariants, state by trigger, every row, and what the words mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby

from turnwise.diagrams.extract import machine
from turnwise.diagrams.grouping import SAME, entries
from turnwise.diagrams.model import Picture, Term
from turnwise.states.names import Party
from turnwise.states.triggers import TRIGGERS

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
trigger is refused and nothing is written. Which target is taken is told by the guards, below.
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
            " ".join(one.meaning for one in node.invariants),
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
    by_name = sorted(set(terms), key=lambda term: term.name)
    return _table(("name", "meaning"), ((term.words, term.meaning) for term in by_name))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
