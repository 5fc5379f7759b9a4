"""The machine as nodes and edges, made of the declared table: what to draw, in words, without colours or positions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from turnwise.states.errors import InvalidArgument
from turnwise.states.invariants import INVARIANTS
from turnwise.states.names import NEW, SPECS, UNKNOWN, ChatState, Party, StateKind
from turnwise.states.table import TABLE, Row, rows_of
from turnwise.states.values.plain import shown

Kind = StateKind | Literal["start", "unknown"]
"""The kind of a state; `start` and `unknown` are no states."""


class NoSuchState(InvalidArgument, ValueError):
    """The machine has no such state. Nothing was drawn."""

    def __init__(self, problem: str) -> None:
        super().__init__("state", problem)


Term = Callable[..., Any]
"""A named function of the machine: a guard, an action or an invariant."""


def words(term: Term) -> str:
    """Return the name of a guard, an action or an invariant as it is read aloud."""
    return term.__name__.replace("_", " ")


def meaning(term: Term) -> str:
    """Return the first line of a guard's, an action's or an invariant's docstring."""
    return (inspect.getdoc(term) or "").partition("\n")[0]


class Line(msgspec.Struct, frozen=True):
    """What one row says beside its source and target."""

    trigger: str
    party: Party
    when: tuple[Term, ...]
    actions: tuple[Term, ...]
    otherwise: bool
    """Whether the row has no guards and is the last of several of its trigger and source."""

    @property
    def condition(self) -> str:
        """All guards, in words; empty when the row always holds."""
        return "otherwise" if self.otherwise else ", ".join(map(words, self.when))

    @property
    def actions_in_words(self) -> str:
        return ", ".join(map(words, self.actions))

    def __str__(self) -> str:
        condition = f" [{self.condition}]" if self.condition else ""
        done = f" / {self.actions_in_words}" if self.actions_in_words else ""
        return f"{self.trigger}{condition}{done}"


class Node(msgspec.Struct, frozen=True):
    """A state, or one of the two places that are none: `new` and `unknown`."""

    id: str
    kind: Kind
    job: str | None = None
    invariants: tuple[Term, ...] = ()


class Edge(msgspec.Struct, frozen=True):
    """Every row that leads from one node to another, or back to itself."""

    source: str
    target: str
    lines: tuple[Line, ...]

    @property
    def stays(self) -> bool:
        """Whether the chat is afterwards where it was."""
        return self.source == self.target


class Picture(msgspec.Struct, frozen=True):
    """Nodes and rows in the order of their declaration."""

    nodes: tuple[Node, ...]
    rows: tuple[tuple[str, str, Line], ...]
    """Source, target and the rest of each row. Of those of one source and trigger the first that holds is taken."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The rows by the nodes that they join: no two edges join the same nodes in the same direction."""
        lines: dict[tuple[str, str], list[Line]] = {}
        for source, target, line in self.rows:
            lines.setdefault((source, target), []).append(line)
        return tuple(Edge(*joined, tuple(joining)) for joined, joining in lines.items())

    @property
    def states(self) -> tuple[Node, ...]:
        """The nodes a chat can stand in."""
        return tuple(node for node in self.nodes if node.kind not in ("start", "unknown"))

    def current(self, state: str | None) -> str | None:
        """Return the id of the state to light; `NoSuchState` names the states there are."""
        states = [node.id for node in self.states]
        if state is not None and state not in states:
            raise NoSuchState(f"unknown state {shown(state)}; the states are {', '.join(states)}")
        return None if state is None else str(state)


def machine() -> Picture:
    """Return the picture of the table: a node for every state, and every row of the table."""
    states = (Node(state.value, SPECS[state].kind, SPECS[state].job, INVARIANTS[state]) for state in ChatState)
    rows = tuple((str(row.source), row.target.value, _line(row)) for row in TABLE)
    return Picture((Node(NEW, "start"), *states, Node(UNKNOWN, "unknown")), rows)


def _line(row: Row) -> Line:
    otherwise = not row.when and len(rows_of(row.trigger, row.source)) > 1
    return Line(row.trigger.name, row.trigger.party, row.when, row.actions, otherwise)
