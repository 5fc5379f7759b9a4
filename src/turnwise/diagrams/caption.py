"""Captions of arrows: each trigger once, with only those guards that a reader needs there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from turnwise.diagrams.model import Line
from turnwise.states.names import Party


@dataclass(frozen=True, slots=True)
class Caption:
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
    """What must hold for one of the lines: the guards all of them demand, then those by which they differ."""
    if not any(line.when for line in lines):
        return "otherwise" if len(lines) == 1 and lines[0].otherwise else ""
    common = [guard for guard in lines[0].when if all(guard in line.when for line in lines)]
    differing = [[guard.words for guard in line.when if guard not in common] for line in lines]
    terms = [guard.words for guard in common]
    if all(differing):
        terms.append(" or ".join(" and ".join(words) for words in differing))
    return ", ".join(terms)
