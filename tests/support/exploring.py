"""The number and choice of examples of property tests.

A plain run draws the same few each time, so only changes of the code can fail it. `PROVE=1`, which `make prove` sets,
draws five times as many. `make explore` draws others, many times as many.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from random import SystemRandom
from typing import Any, Final

import pytest

EXPLORING: Final = "EXPLORE" in os.environ
_TIMES: Final = int(os.environ.get("EXPLORE", "1"))
_MORE: Final = 5 if os.environ.get("PROVE", "0") not in ("", "0") else 1


def examples(count: int) -> int:
    """Return the number of examples for a test: of `count`, a plain run draws a quarter."""
    return count * _TIMES if EXPLORING else -(-count // 4) * _MORE


def seeds(count: int) -> range:
    """Return the seeds of a test that draws `count` lives in a plain run."""
    first = SystemRandom().randrange(1 << 32) if EXPLORING else 0
    return range(first, first + count * _TIMES * _MORE)


def seeds_until(met: Counter[str], least: Mapping[str, int], *, lives: int) -> Iterator[int]:
    """Yield the seeds of that many lives, and of more until each situation has occurred so often.

    In a live engine, which situations occur depends on the load of the machine as well as on the seed.
    """
    drawn = seeds(lives)
    for seed in range(drawn.start, drawn.stop + 20 * lives):
        if seed >= drawn.stop and all(met[what] >= times for what, times in least.items()):
            return
        yield seed
    raise AssertionError(f"too rare after {20 * lives} lives more: {met}, expected {least}")


def few(cases: Iterable[Any], plain: int) -> list[Any]:
    """Return cases for `parametrize`: the first `plain` of them run in `make test`, the others are deep.

    A case that is a tuple has a value for each argument.
    """
    return [
        case if place < plain else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.deep)
        for place, case in enumerate(cases)
    ]
