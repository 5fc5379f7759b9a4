"""Times of a life: durations in words, and where a time stands in a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from turnwise.diagrams.life import Instant, Stay
from turnwise.states.names import RESTING

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
_EXACT: Final = 10


def duration(span: timedelta) -> str:
    """Return a duration in the two largest units that it has: `2 d 3 h`, `4 min`, `12 s`, `0.25 s`."""
    seconds = max(span.total_seconds(), 0)
    for place, (unit, size) in enumerate(_UNITS):
        if seconds >= size:
            below, part = _UNITS[place + 1] if place + 1 < len(_UNITS) else ("s", 1)
            rest = int(seconds % size) // part
            return f"{int(seconds // size)} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{seconds:.0f} s" if seconds >= _EXACT else f"{seconds:.2g} s"


def moment(at: datetime) -> str:
    """Return a time to the second, without its zone, which is UTC."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


_RESTS: Final = 0.25
"""How long all rests together are drawn at most, as a share of the time in which something went on."""
_FEW: Final = 3
"""Fewer rests share as much as this many."""


class Scale:
    """Where each time of a life is drawn, between a left and a right end."""

    def __init__(self, stays: Sequence[Stay], end: Instant, *, left: float, right: float) -> None:
        spans = [stay.lasted(end).total_seconds() for stay in stays]
        rests = [stay.state in RESTING for stay in stays]
        active = sum(span for span, rest in zip(spans, rests, strict=True) if not rest) or 1.0
        longest = _RESTS * active / max(sum(rests), _FEW)
        drawn = [min(span, longest) if rest else span for span, rest in zip(spans, rests, strict=True)]
        drawn[-1] = max(drawn[-1], longest)
        unit = (right - left) / sum(drawn)
        self.shortened: Final = frozenset(
            stay.since for stay, span, length in zip(stays, spans, drawn, strict=True) if length < span
        )
        """When each rest began that is drawn shorter than it was."""
        self._times = [*(stay.since.passed for stay in stays), end.passed]
        self._places = [left]
        for span in drawn:
            self._places.append(self._places[-1] + span * unit)

    def x(self, at: Instant | None) -> float:
        """Return the place of an instant; that of one before all stays is the left end, that of none the right."""
        if at is None:
            return self._places[-1]
        passed = max(at.passed, self._times[0])
        for (since, until), (left, right) in zip(pairwise(self._times), pairwise(self._places), strict=True):
            if passed < until:
                return left + (passed - since) / (until - since) * (right - left)
        return self._places[-1]
