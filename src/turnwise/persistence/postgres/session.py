"""A session with one server: what it can read there, and the times that Python cannot hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import asyncpg

_NO_PARTS: Final = (
    "(SELECT chat, seq, kind, 0::bigint AS step, 0::bigint AS attempt, at, body FROM events WHERE false)"
    " AS partial_events"
)


class Server(NamedTuple):
    """A host and its port, or `None` for what asyncpg finds in its environment."""

    host: str | None
    port: int | None

    def __str__(self) -> str:
        return f"{self.host or 'the default server'}{'' if self.port is None else f':{self.port}'}"


class Session(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection that knows its server."""

    __slots__ = ("cluster", "server", "timeline")

    server: Server
    cluster: str | None
    timeline: int | None
    """The server's timeline; `None` of a standby, or if it cannot be read."""

    def readable(self, sql: str) -> str:
        """Return a query that leaves the streamed parts out on a hot standby, which has no unlogged tables."""
        is_standby = getattr(self.get_settings(), "in_hot_standby", "off") == "on"
        return sql.replace("FROM partial_events", f"FROM {_NO_PARTS}") if is_standby else sql


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
