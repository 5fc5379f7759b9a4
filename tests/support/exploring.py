"""How many examples the property tests draw, and which.

A plain run draws the same each time, so that it fails for what was changed and for nothing else. `make explore` draws
others, many times as many.
"""

from __future__ import annotations

import os
from typing import Final

EXPLORING: Final = "EXPLORE" in os.environ
_TIMES: Final = int(os.environ.get("EXPLORE", "1"))


def examples(count: int) -> int:
    """Return how many examples a test is to draw that draws `count` in a plain run."""
    return count * _TIMES
