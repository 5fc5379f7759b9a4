"""Times of PostgreSQL: those that Python cannot hold arrive as texts, so that one of them is one chat's trouble."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
BEFORE_ALL: Final = str(-(2**63))
"""PostgreSQL's `-infinity`."""


async def use_own_times(connection: Any) -> None:
    """Let a connection read and write times as this module does."""
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", encoder=_encoded, decoder=_decoded, format="tuple"
    )


def _encoded(time: datetime | str) -> tuple[int]:
    return (int(time) if isinstance(time, str) else (time - _EPOCH) // _MICROSECOND,)


def _decoded(stored: tuple[int]) -> datetime | str:
    """Return the time; what no `datetime` can hold, as the microseconds since 2000 in digits."""
    try:
        return _EPOCH + timedelta(0, 0, stored[0])
    except OverflowError:
        return str(stored[0])


def time_in(row: asyncpg.Record, column: str) -> datetime | None:
    """Return the time in a column.

    Raises:
        ValueError: Python cannot hold it.
    """
    time: datetime | str | None = row[column]
    if isinstance(time, str):
        raise ValueError("a time belongs here")  # noqa: TRY004 - what is stored is wrong
    return time
