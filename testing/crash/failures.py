"""What a crash test found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

_SHOWN: Final = 20


class CrashFailure(msgspec.Struct, frozen=True):
    """One crash after which the scenario did not end as promised."""

    point: str
    """Where the engine was killed; `no crash` if the scenario fails without one."""
    problem: str


class CrashTestFailed(AssertionError):
    """The scenario did not end as promised. `failures` names every point at which the engine was killed."""

    def __init__(self, failures: Sequence[CrashFailure], *, tried: int) -> None:
        self.failures = tuple(failures)
        listed = [f"  killed {failure.point}: {failure.problem}" for failure in self.failures[:_SHOWN]]
        if len(self.failures) > _SHOWN:
            listed.append(f"  and {len(self.failures) - _SHOWN} more")
        super().__init__("\n".join([f"{len(self.failures)} of {tried} crashes broke the scenario:", *listed]))
