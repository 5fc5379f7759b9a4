"""Makes the picture of the declared table. Pure: the same table gives the same picture."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from turnwise.diagrams.model import Edge, Kind, Line, Node, Picture, Term
from turnwise.states.names import JOBS, LEASED, NEW, RESTING, UNKNOWN, ChatState, Party, Trigger
from turnwise.states.promises import PROMISES
from turnwise.states.table import TABLE, Row
from turnwise.states.triggers import OCCURRENCES


def machine(rows: Iterable[Row] = TABLE) -> Picture:
    """Return the picture of a table: a node for every place it names, an edge for every pair of places it joins."""
    rows = tuple(rows)
    return Picture(nodes=_nodes(), edges=_edges(rows))


def parties() -> dict[Trigger, Party]:
    """Return who fires each trigger, in the order of declaration."""
    return {trigger: OCCURRENCES[trigger].party for trigger in Trigger}


def _nodes() -> tuple[Node, ...]:
    states = tuple(
        Node(state.value, _kind(state), JOBS.get(state), tuple(_term(promise) for promise in PROMISES[state]))
        for state in ChatState
    )
    return (Node(NEW, "start"), *states, Node(UNKNOWN, "unknown"))


def _kind(state: ChatState) -> Kind:
    if state in LEASED:
        return "leased"
    return "resting" if state in RESTING else "claimable"


def _edges(rows: tuple[Row, ...]) -> tuple[Edge, ...]:
    edges: dict[tuple[str, str], Edge] = {}
    fired_by = parties()
    for row in rows:
        joined = (str(row.source), row.target.value)
        edge = edges.get(joined, Edge(*joined, lines=()))
        edges[joined] = replace(edge, lines=(*edge.lines, _line(row, fired_by[row.trigger], rows)))
    return tuple(edges.values())


def _line(row: Row, party: Party, rows: tuple[Row, ...]) -> Line:
    asked = {
        guard for other in rows if (other.trigger, other.source) == (row.trigger, row.source) for guard in other.when
    }
    return Line(
        trigger=row.trigger.value,
        party=party,
        when=tuple(_term(guard) for guard in row.when),
        unless=tuple(_term(guard) for guard in row.unless),
        actions=tuple(_term(action) for action in row.actions),
        otherwise=not asked.isdisjoint(row.unless),
    )


def _term(function: Callable[..., Any]) -> Term:
    meaning, _, _ = (inspect.getdoc(function) or "").partition("\n")
    return Term(function.__name__, meaning)
