"""What stands for something that a call leaves as it is, where `None` says something."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final


class Unchanged(Enum):
    """The type of `UNCHANGED`, for annotations."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


def changes_of(**fields: Any) -> dict[str, Any]:
    """Return the fields that a call changes: all that are not `UNCHANGED`."""
    return {name: value for name, value in fields.items() if value is not UNCHANGED}
