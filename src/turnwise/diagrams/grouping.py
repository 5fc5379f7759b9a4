"""Groups what several states share: edges into arrows from groups, rows into entries of a list; captions of arrows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec

from turnwise.diagrams.model import Line, Picture
from turnwise.states.names import LEASED, ChatState, Party
from turnwise.states.table import BUSY
from turnwise.states.triggers import TRIGGERS

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "every state": tuple(state.value for state in ChatState),
    "busy": tuple(state.value for state in BUSY),
    "leased": tuple(state.value for state in ChatState if state in LEASED),
}
"""States that are drawn inside one frame, the widest frame first."""

SAME: Final = "same"
"""The target of a line that leaves a chat where it is."""


class Arrow(msgspec.Struct, frozen=True):
    """Lines that lead from a state, or from every state of a group, to one target or back to the `SAME` state."""

    origin: str
    sources: tuple[str, ...]
    target: str
    lines: tuple[Line, ...]


class TableEntry(msgspec.Struct, frozen=True):
    """Rows that differ in nothing but their source."""

    sources: tuple[str, ...]
    target: str
    line: Line

    @property
    def origin(self) -> str:
        """The sources in words, with the name of each group for its members."""
        sources, words = list(self.sources), []
        for name, members in GROUPS.items():
            if set(members) <= set(sources):
                sources = [source for source in sources if source not in members]
                words.append(name)
        return ", ".join([*words, *sources])


def arrows(picture: Picture) -> tuple[Arrow, ...]:
    """Return every row of the picture exactly once, on the widest group all of whose states share it."""
    rest = dict.fromkeys((edge.source, edge.target, line) for edge in picture.edges for line in edge.lines)
    drawn: list[Arrow] = []
    for name, members in GROUPS.items():
        for target in dict.fromkeys((*members, *(node.id for node in picture.states), SAME)):
            lines = _shared(rest, members, target)
            if lines:
                drawn.append(Arrow(name, members, target, lines))
                for line in lines:
                    for source in members:
                        del rest[source, source if target == SAME else target, line]
    singles: dict[tuple[str, str], list[Line]] = {}
    for source, target, line in rest:
        singles.setdefault((source, SAME if source == target else target), []).append(line)
    drawn += [Arrow(source, (source,), target, tuple(lines)) for (source, target), lines in singles.items()]
    return tuple(drawn)


def entries(picture: Picture) -> tuple[TableEntry, ...]:
    """Return every row of the picture exactly once: by trigger, then by source, in the order in which guards are asked.

    Rows that differ in nothing but their source share an entry.
    """
    shared: dict[tuple[str, Line], list[str]] = {}
    for source, target, line in picture.rows:
        shared.setdefault((SAME if source == target else target, line), []).append(source)
    triggers = [*TRIGGERS]
    places = [node.id for node in picture.nodes]

    def rank(entry: TableEntry) -> tuple[int, int]:
        return triggers.index(entry.line.trigger), places.index(entry.sources[0])

    unsorted = (
        TableEntry(tuple(sorted(sources, key=places.index)), target, line) for (target, line), sources in shared.items()
    )
    return tuple(sorted(unsorted, key=rank))


def _shared(rest: Iterable[tuple[str, str, Line]], members: tuple[str, ...], target: str) -> tuple[Line, ...]:
    present = set(rest)
    return tuple(
        line
        for source, _, line in rest
        if source == members[0]
        and all((member, member if target == SAME else target, line) in present for member in members)
    )


class Caption(msgspec.Struct, frozen=True):
    """Triggers under one condition. The condition is a summary; the list of rows has it in full."""

    triggers: tuple[str, ...]
    party: Party
    condition: str


def captions(lines: Iterable[Line]) -> tuple[Caption, ...]:
    """Return the captions of an arrow, in the order of its lines; neighbours under one condition share a caption."""
    by_trigger: dict[str, list[Line]] = {}
    for line in lines:
        by_trigger.setdefault(line.trigger, []).append(line)
    conditions = ((same[0].party, _condition(same), trigger) for trigger, same in by_trigger.items())
    return tuple(
        Caption(tuple(trigger for *_, trigger in neighbours), party, condition)
        for (party, condition), neighbours in groupby(conditions, key=itemgetter(0, 1))
    )


def _condition(lines: list[Line]) -> str:
    """The guards of one line: first those that all lines share, then those that differ."""
    if not any(line.when for line in lines):
        return "otherwise" if len(lines) == 1 and lines[0].otherwise else ""
    common = [guard for guard in lines[0].when if all(guard in line.when for line in lines)]
    differing = [[guard.words for guard in line.when if guard not in common] for line in lines]
    terms = [guard.words for guard in common]
    if all(differing):
        terms.append(" or ".join(" and ".join(words) for words in differing))
    return ", ".join(terms)
