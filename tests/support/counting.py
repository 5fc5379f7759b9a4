"""What something costs, counted rather than timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def functions_called(act: Callable[[], object]) -> int:
    """Return how many functions are called to do it, of Python and of C.

    The first time may take more: then things are learned that are kept.
    """
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # to collect calls functions, too
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return counted
