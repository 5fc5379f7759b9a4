"""The error of a test that tested nothing."""

from __future__ import annotations

from collections.abc import Sequence


class NotTested(AssertionError):
    """A test met less than it promises to test. `missing` names each thing; nothing that was met went wrong."""

    def __init__(self, missing: Sequence[str], advice: str) -> None:
        self.missing = tuple(missing)
        listed = "\n".join(f"  - {one}" for one in self.missing)
        super().__init__(f"this was not tested:\n{listed}\n{advice}")
