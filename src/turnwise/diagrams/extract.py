"""Makes the picture of the declared table."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from turnwise.diagrams.model import Edge, Line, Node, Picture, Term
from turnwise.states.invariants import INVARIANTS
from turnwise.states.names import NEW, SPECS, UNKNOWN, ChatState
from turnwise.states.table import TABLE, Row, rows_of


def machine() -> Picture:
    """Return the picture of the table: a node for every state, an edge for every pair of nodes that its rows join."""
    return Picture(nodes=_nodes(), edges=_edges())


def _nodes() -> tuple[Node, ...]:
    states = tuple(
        Node(state.value, SPECS[state].kind, SPECS[state].job, tuple(map(_term, INVARIANTS[state])))
        for state in ChatState
    )
    return (Node(NEW, "start"), *states, Node(UNKNOWN, "unknown"))


def _edges() -> tuple[Edge, ...]:
    lines: dict[tuple[str, str], list[Line]] = {}
    for row in TABLE:
        lines.setdefault((str(row.source), row.target.value), []).append(_line(row))
    return tuple(Edge(*joined, tuple(joining)) for joined, joining in lines.items())


def _line(row: Row) -> Line:
    ladder = rows_of(row.trigger, row.source)
    return Line(
        trigger=row.trigger.name,
        party=row.trigger.party,
        when=tuple(_term(guard) for guard in row.when),
        actions=tuple(_term(action) for action in row.actions),
        otherwise=not row.when and len(ladder) > 1,
        rung=ladder.index(row),
    )


def _term(function: Callable[..., Any]) -> Term:
    meaning, _, _ = (inspect.getdoc(function) or "").partition("\n")
    return Term(function.__name__, meaning)
