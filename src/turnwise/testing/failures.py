"""What the tests of `turnwise.testing` found, or did not come to test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

UNCUT: Final = "without a crash"
"""The point of a run in which nothing is killed."""
_SHOWN: Final = 20


class NotTested(AssertionError):
    """A test met less than it promises to test. `missing` names each thing; nothing that was met went wrong."""

    def __init__(self, missing: Sequence[str], advice: str) -> None:
        self.missing = tuple(missing)
        super().__init__(_text("this was not tested:", self.missing) + f"\n{advice}")


class CrashReport(msgspec.Struct, frozen=True):
    """The points at which an engine was killed. After each of them the scenario ended as promised."""

    points: tuple[str, ...]
    missed: tuple[str, ...] = ()
    """Points of the run without a crash that the run of their own did not come by: timing was otherwise."""


class CrashFailure(msgspec.Struct, frozen=True):
    """One run of a scenario that did not end as promised."""

    point: str
    """Where the engine was killed; `without a crash` if the scenario fails without one."""
    problem: str


class CrashTestFailed(AssertionError):
    """A scenario did not end as promised. `failures` names every point at which the engine was killed."""

    def __init__(self, failures: Sequence[CrashFailure], *, tried: int) -> None:
        self.failures = tuple(failures)
        header = f"{len(failures)} of {tried} runs did not end as promised. The engine was killed"
        if any(failure.point == UNCUT for failure in failures):
            header = "the scenario fails, whether the engine is killed or not:"
        super().__init__(_text(header, [f"{failure.point}: {failure.problem}" for failure in failures]))


class WorldsReport(msgspec.Struct, frozen=True):
    """The situations that worlds without problems have met."""

    seeds: tuple[int, ...]
    tools: dict[str, int]
    """How often each tool succeeded."""


class WorldsFailed(AssertionError):
    """Worlds found problems: `problems` has them by seed. The same seed finds the same ones again."""

    def __init__(self, problems: Mapping[int, Sequence[str]]) -> None:
        self.problems = {seed: list(found) for seed, found in problems.items()}
        lines = [f"seed {seed}: {problem}" for seed, found in self.problems.items() for problem in found]
        super().__init__(_text(f"{len(problems)} worlds found problems:", lines))


def _text(header: str, lines: Sequence[str]) -> str:
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join([header, *(f"  {line}" for line in lines[:_SHOWN]), *more])
