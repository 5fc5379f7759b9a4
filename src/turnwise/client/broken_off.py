"""A body that a service may break off: its content, and the problem behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

PROBLEM_AFTER: Final = "X-Problem-After"
"""The header with the mark behind which a body that breaks off says why."""


class BrokenOff:
    """What has come of a body that may break off.

    Args:
        mark: what stands before the problem; empty if the service tells none.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self.rest = b""
        """What came last: it may be the beginning of the mark, or the mark with what stands behind it."""

    def content(self, piece: bytes) -> bytes:
        """Take the next piece; return what is content of what came, whatever comes next."""
        came = self.rest + piece
        place = came.find(self._mark) if self._mark else len(came)
        end = place if place >= 0 else max(len(came) - len(self._mark) + 1, 0)
        self.rest = came[end:]
        return came[:end]

    @property
    def problem(self) -> Mapping[str, Any] | None:
        """For what the service broke the body off; `None` if it has not said."""
        if not self._mark or not self.rest.startswith(self._mark):
            return None
        try:
            return msgspec.json.decode(self.rest.removeprefix(self._mark), type=dict[str, Any])
        except msgspec.DecodeError:
            return None
