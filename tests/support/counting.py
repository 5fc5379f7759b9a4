"""What something costs, counted rather than timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Counted:
    """How many functions were called, of Python and of C."""

    functions = 0


@contextmanager
def counting() -> Iterator[Counted]:
    """Count the functions that this thread calls meanwhile."""
    counted = Counted()

    def count(_frame: Any, event: str, _argument: Any) -> None:
        counted.functions += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # to collect calls functions, too
    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(before)
        gc.enable()


def functions_called(act: Callable[[], object]) -> int:
    """Return how many functions are called to do it.

    The first time may take more: then things are learned that are kept.
    """
    with counting() as counted:
        act()
    return counted.functions


async def functions_awaited(act: Callable[[], Awaitable[object]]) -> int:
    """Return how many functions the event loop's thread calls until it is done, in whatever tasks."""
    with counting() as counted:
        await act()
    return counted.functions
