"""Times and durations as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

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
