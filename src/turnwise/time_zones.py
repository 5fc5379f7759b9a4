"""Time zones by their names."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from turnwise.states.errors import InvalidArgument

_LONGEST_NAME: Final = 200
_OF_THE_MACHINE: Final = ("localtime", "posixrules", "Factory", "posix/", "right/")
"""Files beside the time zones: they differ between machines, count leap seconds, or repeat the others."""


def time_zone(name: str) -> tzinfo:
    """Return the time zone of a name, such as `Europe/Berlin`. `UTC` needs no database of time zones."""
    if name == "UTC":
        return UTC
    with suppress(LookupError, ValueError, OSError):  # names may look like paths, or be those of folders
        if not name.startswith(_OF_THE_MACHINE):
            return ZoneInfo(name[:_LONGEST_NAME])
    problem = f"must be the name of a time zone, such as 'Europe/Berlin'; it was {name[:_LONGEST_NAME]!r}"
    raise InvalidArgument("timezone", problem)
