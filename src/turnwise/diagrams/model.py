"""The machine as nodes and edges: what to draw, in words, without colours or positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from turnwise.states.errors import InvalidArgument
from turnwise.states.names import Party, StateKind
from turnwise.states.values.plain import shown

Kind = StateKind | Literal["start", "unknown"]
"""The kind of a state; `start` and `unknown` are no states."""


class NoSuchState(InvalidArgument, ValueError):
    """The machine has no such state. Nothing was drawn."""

    def __init__(self, problem: str) -> None:
        super().__init__("state", problem)


@dataclass(frozen=True, slots=True)
class Term:
    """A named function of the machine: a guard, an action or an invariant."""

    name: str
    meaning: str

    @property
    def words(self) -> str:
        """The name as it is read aloud."""
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Line:
    """What one row says beside its source and target."""

    trigger: str
    party: Party
    when: tuple[Term, ...]
    actions: tuple[Term, ...]
    otherwise: bool
    """Whether the row has no guards and is the last of several of its trigger and source."""
    rung: int = field(compare=False)
    """The place among the rows of its trigger and source: the first whose guards hold is taken."""

    @property
    def condition(self) -> str:
        """All guards, in words; empty when the row always holds."""
        return "otherwise" if self.otherwise else ", ".join(guard.words for guard in self.when)

    @property
    def actions_in_words(self) -> str:
        """All actions, in words."""
        return ", ".join(action.words for action in self.actions)

    def __str__(self) -> str:
        condition = f" [{self.condition}]" if self.condition else ""
        done = f" / {self.actions_in_words}" if self.actions_in_words else ""
        return f"{self.trigger}{condition}{done}"


@dataclass(frozen=True, slots=True)
class Node:
    """A state, or one of the two places that are none: `new` and `unknown`."""

    id: str
    kind: Kind
    job: str | None = None
    invariants: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """Every row that leads from one node to another, or back to itself."""

    source: str
    target: str
    lines: tuple[Line, ...]

    @property
    def stays(self) -> bool:
        """Whether the chat is afterwards where it was."""
        return self.source == self.target


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes and edges in the order of their declaration. No two edges join the same nodes in the same direction."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

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
